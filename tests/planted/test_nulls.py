"""Neurons that mean nothing: their examples are random, their weights are, and rates are counted right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import ffnmem as fm
from ffnmem.neurons.inputs import Firing, firing, random_places
from ffnmem.neurons.measuring import begin
from ffnmem.neurons.verdicts import RULE
from ffnmem.planted import Planted, plant
from ffnmem.planted.recovery import MEASURES, at_random, example_nulls, null_rates, scrambled
from ffnmem.scanning import Store
from ffnmem.scanning.state import sequence_of

from ..helpers import allclose

FROM_EXAMPLES, FROM_SAMPLE = ([n for n, one in MEASURES.items() if one.reads == by] for by in ("examples", "sample"))


@pytest.fixture(scope="module")
def found(meanings_store: Store) -> Firing:
    return firing(meanings_store, 0)


def test_examples_at_random_places(meanings_store: Store, found: Firing) -> None:
    """Of different sequences, neurons and layers apart: shared ones would make one chance of many."""
    places = random_places(meanings_store, 1)
    moved, other = (at_random(replace(found, layer=layer), places, 0) for layer in (0, 1))
    assert (moved.counts == np.minimum(found.counts, len(np.unique(sequence_of(places))))).all()
    assert moved.counts.max() > 10
    for i, count in enumerate(moved.counts.tolist()):
        mine = moved.places[i, :count]
        assert np.isin(mine, places).all()
        assert len(np.unique(sequence_of(mine))) == count
        assert moved.strengths[i].tolist() == [*found.strengths[i, :count], *[0] * (len(moved.strengths[i]) - count)]
        assert (moved.places[i, count:] == -1).all()
    assert len(np.unique(moved.places[:, 0])) > (moved.counts > 0).sum() // 2
    assert (moved.places != other.places).any(axis=1)[moved.counts > 1].all()
    assert (at_random(found, places, 0).places == moved.places).all()


def test_examples_nulls_are_rarely_rejected(meanings: Planted, meanings_store: Store) -> None:
    survey = begin(meanings_store, meanings.model, range(meanings_store.n_layers), 0, 40, RULE)
    frame = example_nulls(survey)
    assert list(frame.columns) == [f"{name}_p" for name in FROM_EXAMPLES]
    assert len(frame) == len(meanings.truth)
    rates = null_rates([frame], [])
    assert rates["measure"].tolist() == FROM_EXAMPLES
    assert (rates["low"] < 0.1).all()  # twice the nominal level: what 82 neurons can tell


def test_scrambled_weights_have_their_lengths(meanings: Planted) -> None:
    """Longer directions, or gates that open always, would be no baseline; the planted model stays as it is."""
    mixture = plant("meanings", seed=1, n_features=16, neurons=24, n_tokens=2000, experts=2)
    for planted in (meanings, mixture):
        before = planted.model.fingerprint
        nothing, same, other = (scrambled(planted, seed=seed) for seed in (2, 2, 3))
        prints = [one.model.fingerprint for one in (nothing, same, other)]
        assert prints[0] == prints[1] != prints[2]
        assert planted.model.fingerprint == before not in prints
        assert nothing.texts == planted.texts
        for old, new in zip(planted.model.ffn, nothing.model.ffn, strict=True):
            for name in ("keys", "values", *["gates"] * planted.model.gated):
                rows = [getattr(ffn, name).detach() for ffn in (old, new)]
                centred = [one - one.mean(-1, keepdim=True) for one in rows]
                assert allclose(*(one.norm(dim=-1) for one in (centred if planted.model.gated else rows)), 1e-4)
                assert float(torch.cosine_similarity(*rows, dim=-1).abs().mean()) < 0.5
            if new.key_bias is not None:
                assert allclose(new.key_bias, -new.keys.norm(dim=-1), 1e-5)
                assert float(new.keys.detach().mean(-1).abs().max()) < 1e-5 * float(new.keys.detach().norm())
    capture = fm.capture(nothing.model, list(mixture.texts[:20]))
    for layer, (old, ffn) in enumerate(zip(mixture.model.ffn, nothing.model.ffn, strict=True)):
        assert torch.equal(old.mixture.router.weight, ffn.mixture.router.weight)
        opens = (capture.ffn_in[layer][capture.content] @ ffn.gates.T > 0).double().mean(0)
        assert 0.05 < float(opens.mean()) < 0.35  # about one standard deviation below
        assert float(opens.max()) < 0.95


def test_rates_are_counted() -> None:
    """5 of 100 with a p below .05, NaN left out; several models are one crowd."""
    p = np.concatenate([np.full(5, 0.049), np.full(95, 0.05), [np.nan]])
    weights = [pd.DataFrame({f"{name}_p": part for name in FROM_SAMPLE}) for part in (p[:50], p[50:])]
    examples = [pd.DataFrame({f"{name}_p": np.full(3, 0.001) for name in FROM_EXAMPLES})]
    rates = null_rates(examples, weights).set_index("measure")
    assert rates.index.tolist() == list(MEASURES)
    assert (rates.loc[FROM_SAMPLE, ["rate", "neurons"]] == [0.05, 100]).all(axis=None)
    # Clopper and Pearson's for 5 of 100, from a table.
    assert rates.loc["kurtosis", ["low", "high"]].tolist() == pytest.approx([0.0164, 0.1128], abs=1e-4)
    assert rates.loc["ms", ["rate", "high", "neurons"]].tolist() == [1, 1, 3]
