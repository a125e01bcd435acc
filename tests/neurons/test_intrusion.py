"""Intruders: found among planted meanings that are apart, by chance among halves of one, and drawn as is said."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.core.types import JUDGES, ODD_ONES
from ffnmem.neurons import Intruders, intruders
from ffnmem.neurons.intrusion import Embeddings, home_of, judge_layer, layer_trials, pick
from ffnmem.neurons.measuring import opened
from ffnmem.planted import Planted
from ffnmem.scanning import Store, open_store
from ffnmem.scanning.state import place_of, position_of, sequence_of

from ..helpers import allclose, refuses


@pytest.fixture(scope="module")
def store(meanings: Planted, meanings_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store of its own with what was measured."""
    own = open_store(shutil.copytree(meanings_store.folder, tmp_path_factory.mktemp("stores") / "intruders"))
    fm.polysemanticity(own, meanings.model, draws=20)
    return own


@pytest.fixture(scope="module")
def found(store: Store, meanings: Planted) -> Intruders:
    return intruders(store, meanings.model)


def test_pick() -> None:
    """The last is found where it alone is unlike; shared where others are as unlike; not found where another is."""
    odd, tied, other = (np.full((5, 5), 0.9) for _ in range(3))
    odd[4, :] = odd[:, 4] = 0.1
    other[0, :] = other[:, 0] = 0.1
    assert pick(np.stack([odd, tied, other])).tolist() == [1.0, 0.2, 0.0]


def test_planted_meanings_are_apart_and_halves_are_not(found: Intruders) -> None:
    """In layer 0 a meaning is a set of words: judged by what layer 1 reads, and by embeddings of the words."""
    rows = found.accuracy("layer").set_index(["odd", "layer", "judge"])
    for judge in ("state", "token"):
        assert rows.loc[("meaning", 0, judge), "accuracy_low"] > 0.5
        assert rows.loc[("neuron", 0, judge), "accuracy_low"] > 0.5
    halves = found.accuracy().set_index(["odd", "judge"]).loc["half"]
    assert (halves["accuracy_low"] <= 0.2).all()
    assert (halves["accuracy_high"] >= 0.2).all()
    around = rows.loc[("meaning", 0, "around")]  # neighbours are drawn at random there
    assert around["accuracy_low"] <= 0.2 <= around["accuracy_high"]


def test_trials_are_what_they_say(store: Store, found: Intruders) -> None:
    """Four of one meaning and one of another, of five documents; the null of the same; the same four for all kinds."""
    kept = opened(store, "positive", {})
    assert kept is not None
    rows = kept[0].table(0).to_pylist()
    documents = {s: store.sequences.locate(s)[0] for s in range(store.sequences.n_sequences)}
    trials = layer_trials(store, rows, 0, ODD_ONES, documents, 0)
    assert len(trials.places) == (found.table["layer"] == 0).sum()
    fours: dict[int, list[int]] = {}
    for places, (_, neuron, _, _, odd, label, other) in zip(trials.places.tolist(), trials.rows, strict=True):
        own = dict(zip(rows[neuron]["places"], rows[neuron]["meaning"], strict=True))
        assert [own[place] for place in places[:4]] == [label] * 4
        assert len({documents[int(sequence_of(place))] for place in places}) == 5
        assert fours.setdefault(neuron, places[:4]) == places[:4]
        if odd == "neuron":
            assert places[4] in rows[other]["places"]
            assert other != neuron
        else:
            assert own[places[4]] == other
            assert (other == label) == (odd == "half")
    assert set(found.table["odd"]) == set(ODD_ONES)


def test_too_few_documents_give_no_trial() -> None:
    places = place_of(np.arange(6), np.zeros(6, np.int64) + 2)
    row = {"places": places.tolist(), "meaning": [0] * 6}
    rng = np.random.default_rng(0)
    assert home_of(row, dict.fromkeys(range(6), 0), rng) is None
    assert home_of(row, {s: min(s, 3) for s in range(6)}, rng) is None
    label, four, fifth = home_of(row, {s: s for s in range(6)}, rng)  # type: ignore[misc]
    assert label == 0
    assert len({*four, fifth}) == 5
    assert home_of({"places": [], "meaning": []}, {}, rng) is None


def test_around_leaves_the_token_out(store: Store, meanings: Planted) -> None:
    embeddings = Embeddings(store, meanings.model)
    place = place_of(np.array([3]), np.array([5]))
    tokens = store.sequences.sequence_tokens(3)
    near = [token for at, token in enumerate(tokens) if store.sequences.lead <= at <= 13 and at != 5]
    expected = sum(embeddings.weights[token] * embeddings.rows[token] for token in near)
    assert allclose(embeddings.around(place)[0], expected / np.linalg.norm(expected))
    assert embeddings.tokens(place).tolist() == [tokens[int(position_of(place)[0])]]


def test_judged_half_the_model_away() -> None:
    assert [judge_layer(layer, 6) for layer in range(6)] == [3, 4, 5, 0, 1, 2]
    assert all(judge_layer(layer, 7) != layer for layer in range(7))


def test_again_saved_and_shown(store: Store, meanings: Planted, found: Intruders, tmp_path: Path) -> None:
    pd.testing.assert_frame_equal(intruders(store, meanings.model).table, found.table)
    again = Intruders.load(found.save(tmp_path / "found.safetensors"))
    pd.testing.assert_frame_equal(again.table, found.table)
    assert again.to_dict() == found.to_dict()
    assert "chance 20.0%" in found.summary()
    some = intruders(store, meanings.model, layers=1, per_layer=9, odd="half", judges=["trigger", "token"], seed=4)
    assert some.judges == ["token", "trigger"]
    assert set(some.table["odd"]) == {"half"}
    assert some.table["neuron"].nunique() <= 9


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"odd": "word"}, ("odd", "word")),
        ({"judges": ["reader"]}, ("judge", "reader")),
        ({"judges": []}, ("judge", *JUDGES)),
        ({"sign": "negative"}, ("negative", "polysemanticity")),
        ({"per_layer": 0}, ("per_layer", "0")),
    ],
)
def test_mistakes(store: Store, meanings: Planted, wrong: dict[str, Any], named: tuple[str, ...]) -> None:
    with refuses(InputError, ValueError, *named):
        intruders(store, meanings.model, **wrong)
