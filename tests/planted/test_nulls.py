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


def test_a_scrambled_mixture_has_its_lengths_too() -> None:
    """Random directions that are longer, or whose gates open always, would be no baseline."""
    mixture = plant("meanings", seed=1, n_features=16, neurons=24, n_tokens=2000, experts=2)
    nothing = scrambled(mixture, seed=2)
    for old, new in zip(mixture.model.ffn, nothing.model.ffn, strict=True):
        assert old.gates is not None
        assert new.gates is not None
        for name in ("keys", "gates", "values"):
            before, after = (getattr(ffn, name).detach() for ffn in (old, new))
            lengths = [(rows - rows.mean(-1, keepdim=True)).norm(dim=-1) for rows in (before, after)]
            assert allclose(*lengths, 1e-4)
            assert float(torch.cosine_similarity(before, after, dim=-1).abs().mean()) < 0.5
        assert torch.equal(old.mixture.router.weight, new.mixture.router.weight)
    capture = fm.capture(nothing.model, list(mixture.texts[:20]))
    for layer, ffn in enumerate(nothing.model.ffn):
        opens = (capture.ffn_in[layer][capture.content] @ ffn.gates.T > 0).double().mean(0)
        assert 0.05 < float(opens.mean()) < 0.35  # about one standard deviation below
        assert float(opens.max()) < 0.95
    assert nothing.model.fingerprint != mixture.model.fingerprint
    assert scrambled(mixture, seed=2).model.fingerprint == nothing.model.fingerprint


@pytest.fixture(scope="module")
def nothing(meanings: Planted) -> Planted:
    return scrambled(meanings, seed=2)


def test_places_are_random_and_of_different_sequences(meanings_store: Store, found: Firing) -> None:
    places = random_places(meanings_store, 1)
    moved = at_random(found, places, 0)
    assert (moved.counts == np.minimum(found.counts, len(np.unique(sequence_of(places))))).all()
    assert moved.counts.max() > 10
    for i, count in enumerate(moved.counts.tolist()):
        mine = moved.places[i, :count]
        assert np.isin(mine, places).all()
        assert len(np.unique(sequence_of(mine))) == count
        assert moved.strengths[i, :count].tolist() == found.strengths[i, :count].tolist()
        assert (moved.places[i, count:] == -1).all()
        assert not moved.strengths[i, count:].any()


def test_neurons_and_layers_are_drawn_apart(meanings_store: Store, found: Firing) -> None:
    """Shared examples would make one chance of many, and the interval of their rate too narrow."""
    places = random_places(meanings_store, 1)
    full = replace(found, places=np.zeros_like(found.places), strengths=np.ones_like(found.strengths))
    moved = at_random(full, places, 0)
    assert len(np.unique(moved.places[:, 0])) > len(full.neurons) // 2
    other = at_random(replace(full, layer=1), places, 0)
    assert (moved.places != other.places).any(axis=1).all()
    assert (at_random(full, places, 0).places == moved.places).all()


def test_examples_nulls_are_rarely_rejected(meanings: Planted, meanings_store: Store) -> None:
    survey = begin(meanings_store, meanings.model, range(meanings_store.n_layers), 0, 40, RULE)
    frame = example_nulls(survey)
    assert list(frame.columns) == [f"{name}_p" for name in FROM_EXAMPLES]
    assert len(frame) == len(meanings.truth)
    rates = null_rates([frame], [])
    assert rates["measure"].tolist() == FROM_EXAMPLES
    assert (rates["low"] < 0.1).all()  # twice the nominal level: what 82 neurons can tell


def test_scrambled_weights_have_their_lengths(meanings: Planted, nothing: Planted) -> None:
    for old, new in zip(meanings.model.ffn, nothing.model.ffn, strict=True):
        for before, after in ((old.keys.detach(), new.keys.detach()), (old.values.detach(), new.values.detach())):
            assert allclose(after.norm(dim=-1), before.norm(dim=-1), 1e-5)
            assert float(after.mean(-1).abs().max()) < 1e-5 * float(after.norm(dim=-1).max())
            cosines = torch.cosine_similarity(before, after, dim=-1)
            assert float(cosines.abs().mean()) < 3 / before.shape[-1] ** 0.5
        assert allclose(new.key_bias, -new.keys.norm(dim=-1), 1e-5)


def test_scrambled_is_another_model(meanings: Planted, nothing: Planted) -> None:
    """The planted one stays what it is; the same seed gives the same nothing."""
    assert nothing.model.fingerprint != meanings.model.fingerprint
    assert meanings.pristine.transformer.h[0].mlp.c_fc.weight.T[3].tolist() == meanings.model.ffn[0].keys[3].tolist()
    assert scrambled(meanings, seed=2).model.fingerprint == nothing.model.fingerprint
    assert scrambled(meanings, seed=3).model.fingerprint != nothing.model.fingerprint
    assert nothing.texts == meanings.texts


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
