"""Verdicts by chance: neurons among directions as they are alone, and directions that fire as they are said to."""

from __future__ import annotations

import math
import shutil
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import ffnmem as fm
from ffnmem.core.types import VERDICTS
from ffnmem.neurons import ChanceVerdicts, Rule, by_chance, chance_verdicts
from ffnmem.neurons.by_chance import Highest, kept_chance, make_directions, rotate_whitened
from ffnmem.neurons.inputs import MOST, TOP, background_of, choose_examples
from ffnmem.neurons.verdicts import RULE
from ffnmem.planted import Planted
from ffnmem.scanning import Store, open_store
from ffnmem.scanning.state import place_of

from ..helpers import allclose


@pytest.fixture(scope="module")
def store(meanings_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A copy: what is measured is kept in it."""
    return open_store(shutil.copytree(meanings_store.folder, tmp_path_factory.mktemp("stores") / "chance"))


@pytest.fixture(scope="module")
def told() -> list[tuple[str, int, int]]:
    return []


@pytest.fixture(scope="module")
def found(meanings: Planted, store: Store, told: list[tuple[str, int, int]]) -> ChanceVerdicts:
    return chance_verdicts(store, meanings.model, per_layer=48, draws=20, progress=lambda *said: told.append(said))


def test_neurons_are_as_polysemanticity_has_them(
    found: ChanceVerdicts, told: list[tuple[str, int, int]], meanings: Planted, store: Store
) -> None:
    """The same examples, found again by another way, so the same numbers and verdicts."""
    own = found.table[found.table["kind"] == "own"].reset_index(drop=True)
    table = fm.polysemanticity(store, meanings.model, draws=20)
    same = (own["examples"] == table["examples"]).to_numpy()
    assert own["neuron"].tolist() == table["neuron"].tolist()
    assert same.mean() > 0.97
    assert (own["verdict"] == table["verdict"]).mean() > 0.97
    np.testing.assert_allclose(own["ms"][same], table["ms"][same], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(own["firing_rate"], store.stats()["firing_rate"].to_numpy(), atol=2e-3)
    last = {phase: (done, total) for phase, done, total in told}
    assert set(last) == {"read", "directions", "verdicts"}
    assert all(done == total for done, total in last.values())
    assert last["verdicts"][1] == len(found.table) == 3 * 96


def test_planted_neurons_are_told_from_directions(found: ChanceVerdicts) -> None:
    """Shares are counted, their intervals Wilson's; the chance that a neuron has fewer meanings, or a larger MS."""
    shares = found.shares().set_index("kind")
    own = found.table[found.table["kind"] == "own"]
    for kind, row in shares.iterrows():
        part = found.table[found.table["kind"] == kind]
        assert row["directions"] == len(part) == 96
        for verdict in VERDICTS:
            count = int((part["verdict"] == verdict).sum())
            ends = stats.binomtest(count, 96).proportion_ci(method="wilson")
            assert allclose([row[verdict], row[f"{verdict}_low"], row[f"{verdict}_high"]], [count / 96, *ends])
        for name, sign in (("meanings", -1), ("ms", 1)):
            a, b = (sign * table[name].dropna().to_numpy() for table in (own, part))
            fewer = (np.sign(a[:, None] - b) + 1).mean() / 2
            assert row[f"{name}_told"] == pytest.approx(fewer)
            assert math.isnan(by_chance.chance_larger(own[name], part[name][:0]))
    assert shares.loc["own", "monosemantic_low"] > 2 * shares.drop("own")["monosemantic_high"].max()
    assert shares.loc["matched", "ms_told"] > 0.6
    layers = found.layers
    assert layers["layer"].tolist() == [0] * 3 + [1] * 3
    assert layers.groupby("kind")["monosemantic"].mean().to_dict() == pytest.approx(shares["monosemantic"].to_dict())


def test_turned_alike_keeps_what_it_says() -> None:
    """Mean, variance and the covariance of gate and key over inputs that vary unevenly; nothing of the direction."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((20_000, 12)) * np.linspace(0.2, 3, 12) + rng.standard_normal(12)).astype(np.float32)
    gates, keys = (torch.from_numpy(rng.standard_normal((40, 12))).float() for _ in range(2))
    own = [(gates, None), (keys, torch.full((40,), 0.3))]
    turned = rotate_whitened(own, background_of(x), rng)
    before, after = (
        np.stack([(torch.from_numpy(x) @ k.T + (0 if b is None else b)).numpy() for k, b in pairs])
        for pairs in (own, turned)
    )
    np.testing.assert_allclose(after.mean(1), before.mean(1), atol=0.05)
    np.testing.assert_allclose(after.std(1), before.std(1), rtol=0.12)
    inner = [((a := g - g.mean(1, keepdims=True))[0] * a[1]).mean(0) for g in (before, after)]
    np.testing.assert_allclose(inner[1], inner[0], atol=0.15 * float(before.std(1).prod(0).max()))
    assert torch.nn.functional.cosine_similarity(gates, turned[0][0]).abs().mean() < 0.5


def test_mixed_takes_anothers_gate(gated: fm.Model) -> None:
    neurons = np.arange(gated.d_mlp)
    background = background_of(np.random.default_rng(0).standard_normal((600, gated.d_model)).astype(np.float32))
    (keys, _), (gates, _) = make_directions("mixed", gated, 1, neurons, background, 0)
    assert torch.equal(keys, gated.ffn[1].keys)
    where = [int((gated.ffn[1].gates == row).all(-1).nonzero()) for row in gates]
    assert sorted(where) == neurons.tolist()
    assert all(at != neuron for at, neuron in zip(where, neurons, strict=True))


def test_gated_negative_and_again(gated: fm.Model, gated_store: Store) -> None:
    options: dict[str, Any] = {"per_layer": 6, "draws": 20, "layers": 1, "sign": "negative", "kinds": "mixed"}
    one, same = (chance_verdicts(gated_store, gated, **options) for _ in range(2))
    assert one.kinds == ["own", "mixed"]
    assert set(one.table["layer"]) == {1}
    pd.testing.assert_frame_equal(same.table, one.table)
    assert "against" in one.sentence("polysemantic")


def test_a_budget_reads_less(meanings: Planted, store: Store) -> None:
    less = chance_verdicts(store, meanings.model, per_layer=4, draws=20, layers=0, budget=1000)
    settings = less.provenance["chance_verdicts"]
    assert settings["positions"] < store.n_tokens
    assert settings["budget"] == 1000


def test_what_is_kept(found: ChanceVerdicts, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the verdicts of the rule that is asked for; not of another store, and a damaged one is warned of."""
    kept = kept_chance(store, "positive", RULE)
    assert kept is not None
    pd.testing.assert_frame_equal(kept.table, found.table)
    other = kept_chance(store, "positive", Rule(above=50.0))
    assert other is not None
    assert not (other.table["verdict"] == "polysemantic").any()
    assert other.provenance["chance_verdicts"]["rule"]["above"] == 50.0
    assert kept_chance(store, "negative", RULE) is None
    monkeypatch.setitem(store.manifest, "tokens", 7)
    assert kept_chance(store, "positive", RULE) is None
    monkeypatch.undo()
    monkeypatch.setattr(by_chance, "file_of", lambda *_: store.folder / "manifest.json")
    with pytest.warns(fm.FfnmemWarning, match="left out"):
        assert kept_chance(store, "positive", RULE) is None


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
