"""Verdicts by chance: neurons among directions as they are alone, and directions that fire as they are said to."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.neurons import ChanceVerdicts, chance_verdicts
from ffnmem.neurons.by_chance import Highest, make_directions, rotate_whitened
from ffnmem.neurons.inputs import MOST, TOP, background_of, choose_examples
from ffnmem.planted import Planted
from ffnmem.scanning import Store, open_store
from ffnmem.scanning.state import place_of

from ..helpers import allclose, refuses
from .gated import made, scanned


@pytest.fixture(scope="module")
def gated(tokenizer: Any) -> fm.Model:
    return made("llama", tokenizer)


@pytest.fixture(scope="module")
def gated_store(gated: fm.Model, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return scanned(gated, tmp_path_factory.mktemp("gated") / "store")


@pytest.fixture(scope="module")
def store(meanings_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A copy: what is measured is kept in it."""
    return open_store(shutil.copytree(meanings_store.folder, tmp_path_factory.mktemp("stores") / "chance"))


@pytest.fixture(scope="module")
def found(meanings: Planted, store: Store) -> ChanceVerdicts:
    return chance_verdicts(store, meanings.model, per_layer=48, draws=60)


def test_neurons_are_as_polysemanticity_has_them(found: ChanceVerdicts, meanings: Planted, store: Store) -> None:
    """The same examples, found again by another way, so the same numbers and verdicts."""
    own = found.table[found.table["kind"] == "own"].reset_index(drop=True)
    table = fm.polysemanticity(store, meanings.model, draws=60)
    assert own["neuron"].tolist() == table["neuron"].tolist()
    assert (own["examples"] == table["examples"]).mean() > 0.97
    assert (own["verdict"] == table["verdict"]).mean() > 0.97
    same = (own["examples"] == table["examples"]).to_numpy()
    np.testing.assert_allclose(own["ms"][same], table["ms"][same], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(own["firing_rate"], store.stats()["firing_rate"].to_numpy(), atol=2e-3)


def test_planted_neurons_are_told_from_directions(found: ChanceVerdicts) -> None:
    shares = found.shares().set_index("kind")
    assert shares.loc["own", "monosemantic_low"] > 2 * shares.loc["matched", "monosemantic_high"]
    assert shares.loc["own", "monosemantic_low"] > 2 * shares.loc["isotropic", "monosemantic_high"]
    assert shares.loc["own", ["meanings_told", "ms_told"]].tolist() == [0.5, 0.5]
    assert shares.loc["matched", "ms_told"] > 0.7
    assert (shares["directions"] == 96).all()
    assert allclose(shares[["monosemantic", "polysemantic", "unclear", "inactive"]].sum(axis=1), np.ones(3))


@pytest.mark.parametrize("reads", [1, 2])
def test_turned_alike_keeps_what_it_says(reads: int) -> None:
    """Mean, variance and the covariance of gate and key over inputs that vary unevenly; nothing of the direction."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((20_000, 12)) * np.linspace(0.2, 3, 12) + rng.standard_normal(12)).astype(np.float32)
    own = [
        (torch.from_numpy(rng.standard_normal((40, 12))).float(), torch.full((40,), 0.3) if place else None)
        for place in range(reads)
    ]
    background = background_of(x)
    turned = rotate_whitened(own, background, rng)

    def given(pairs: Any) -> np.ndarray:
        return np.stack([(torch.from_numpy(x) @ k.T + (0 if b is None else b)).numpy() for k, b in pairs])

    before, after = given(own), given(turned)
    np.testing.assert_allclose(after.mean(1), before.mean(1), atol=0.05)
    np.testing.assert_allclose(after.std(1), before.std(1), rtol=0.12)
    if reads == 2:
        inner = [((a := g - g.mean(1, keepdims=True))[0] * a[1]).mean(0) for g in (before, after)]
        np.testing.assert_allclose(inner[1], inner[0], atol=0.15 * float((before.std(1)[0] * before.std(1)[1]).max()))
    cosine = torch.nn.functional.cosine_similarity(own[0][0], turned[0][0])
    assert cosine.abs().mean() < 0.5


def test_mixed_takes_anothers_gate(gated: fm.Model) -> None:
    neurons = np.arange(gated.d_mlp)
    background = background_of(np.random.default_rng(0).standard_normal((600, gated.d_model)).astype(np.float32))
    (keys, _), (gates, _) = make_directions("mixed", gated, 1, neurons, background, 0)
    ffn = gated.ffn[1]
    assert torch.equal(keys, ffn.keys)
    where = [int((ffn.gates == row).all(-1).nonzero()) for row in gates]
    assert sorted(where) == neurons.tolist()
    assert all(at != neuron for at, neuron in zip(where, neurons, strict=True))


def test_gated_both_signs_and_saved(gated: fm.Model, gated_store: Store, tmp_path: Path) -> None:
    one = chance_verdicts(gated_store, gated, per_layer=6, draws=20, layers=1, sign="negative", kinds="mixed")
    assert one.kinds == ["own", "mixed"]
    assert set(one.table["layer"]) == {1}
    again = ChanceVerdicts.load(one.save(tmp_path / "one.safetensors"))
    pd.testing.assert_frame_equal(again.table, one.table)
    assert again.summary() == one.summary()
    assert "against" in one.sentence("polysemantic")
    same = chance_verdicts(gated_store, gated, per_layer=6, draws=20, layers=1, sign="negative", kinds="mixed")
    pd.testing.assert_frame_equal(same.table, one.table)


def test_a_budget_reads_less(meanings: Planted, store: Store) -> None:
    less = chance_verdicts(store, meanings.model, per_layer=4, draws=20, layers=0, budget=1000)
    assert less.provenance["chance_verdicts"]["positions"] < store.n_tokens
    assert less.provenance["chance_verdicts"]["budget"] == 1000


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"kinds": "mixed"}, ("mixed", "gates")),
        ({"kinds": ["turned"]}, ("turned", "matched")),
        ({"per_layer": 0}, ("per_layer", "0")),
        ({"sign": "both"}, ("sign", "both")),
    ],
)
def test_mistakes(meanings: Planted, store: Store, wrong: dict[str, Any], named: tuple[str, ...]) -> None:
    with refuses(InputError, ValueError, *named):
        chance_verdicts(store, meanings.model, **wrong)


def test_the_highest_are_those_of_all_sequences_together() -> None:
    """Kept as the text is read, in the memory of a few: if it failed, examples would depend on how it was cut."""
    rng = np.random.default_rng(0)
    sequences, sampled = np.arange(3, 93), np.array([4, 20, 21, 88])
    values = rng.integers(-9, 9, (90, 5, 6)).astype(np.float32)  # with ties
    values[:, :, 0] = -np.abs(values[:, :, 0]) - 1  # never above 0
    values[7] = -np.inf  # a sequence of which no position counts
    values[10:, :, 1] = -np.inf  # fewer than are kept
    kept = Highest(len(sampled), 6)
    for some in np.array_split(rng.permutation(90), 7):
        kept.add(values[some], sequences[some], sampled)
    found = kept.firing(2, np.arange(6))
    sizes, where = values.max(1), place_of(sequences[:, None], values.argmax(1))
    for neuron in range(6):
        own, there = sizes[:, neuron].astype(float), where[:, neuron]
        top, among = np.argsort(-own, kind="stable")[:TOP], np.isin(sequences, sampled)
        assert found.extreme[neuron] == max(own.max(), 0)
        assert kept.fired[neuron] == (values[:, :, neuron] > 0).sum()
        if own.max() <= 0:
            assert (found.places[neuron] == -1).all()
            continue
        expected, strengths = choose_examples(own[top], there[top], own[among], there[among])
        assert found.places[neuron].tolist() == [*expected, *[-1] * (MOST - len(expected))]
        assert found.strengths[neuron, : len(expected)].tolist() == strengths.tolist()


def test_progress_is_told_to_the_end(meanings: Planted, store: Store) -> None:
    told: list[tuple[str, int, int]] = []
    chance_verdicts(
        store, meanings.model, per_layer=4, draws=20, kinds="matched", progress=lambda *said: told.append(said)
    )
    last = {phase: (done, total) for phase, done, total in told}
    assert set(last) >= {"directions", "read", "verdicts"}
    assert all(done == total for done, total in last.values())
    assert last["verdicts"][1] == 2 * 4 * store.n_layers
