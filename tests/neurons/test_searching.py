"""Neurons by text: in what they write and read, and by what fires them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.neurons import searching
from ffnmem.scanning import Store

from ..helpers import printed, refuses
from .gated import made, scanned


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return scanned(made("llama"), tmp_path_factory.mktemp("searched") / "store")


def test_a_search_in_examples_is_a_plain_filter(tiny_store: Store) -> None:
    """Neurons that fire there would be missing, or counted wrong."""
    every = pd.concat(
        tiny_store.examples(layer, neuron, kind=("top", "bottom"), context=0)
        for layer in range(tiny_store.n_layers)
        for neuron in range(tiny_store.d_mlp(layer))
    )
    stats = tiny_store.stats().set_index(["layer", "neuron"])
    for word in ("paris", "O", "no such token"):
        rows = every[every["token"].str.contains(word, case=False, regex=False)]
        expected = {
            place: (len(some), some.iloc[0]["rank"], some.iloc[0]["coefficient"], some.iloc[0]["token"])
            for place, some in rows.groupby(["layer", "neuron", "kind"])
        }
        found = fm.neurons.search(tiny_store, word, where="examples", k=10_000).neurons
        assert {
            (row.layer, row.neuron, row.kind): (row.hits, row.rank, row.coefficient, row.token)
            for row in found.itertuples()
        } == expected
        own = [stats.loc[row.layer, row.neuron] for row in found.itertuples()]
        far = [(c - one["mean"]) / one["std"] for c, one in zip(found["coefficient"], own, strict=True)]
        assert found["deviations"].tolist() == pytest.approx(far)
        assert far == sorted(far, reverse=True)
        assert fm.neurons.search(tiny_store, word, where="examples", k=20).neurons.equals(found.head(20))


def test_a_neuron_that_always_fires_is_not_first(tiny_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """By size it was, though its coefficient there is its usual one."""
    text, stats = "The city of Rome", tiny_store.stats().assign(mean=0.0, std=1.0)
    monkeypatch.setattr(type(tiny_store), "stats", lambda _store, *layer: stats[stats["layer"].isin(layer or (0, 1))])
    first = fm.neurons.search(tiny_store, text, where="text").neurons.iloc[0]
    always = (stats["layer"] == first["layer"]) & (stats["neuron"] == first["neuron"])
    stats.loc[always, "mean"] = first["coefficient"] - 0.01
    found = fm.neurons.search(tiny_store, text, where="text", k=1000).neurons
    assert found["coefficient"].abs().idxmax() != 0
    (row,) = found[(found["layer"] == first["layer"]) & (found["neuron"] == first["neuron"])].to_dict("records")
    assert row["coefficient"] == first["coefficient"]
    assert row["deviations"] == pytest.approx(0.01)
    assert found["deviations"].is_monotonic_decreasing


def test_a_text_fires_as_the_model_does(gated: Store) -> None:
    """The token that is furthest from the mean, above or below it."""
    text = "The city of Paris is"
    captured = fm.capture(gated.read_model(), text)
    found = fm.neurons.search(gated, text, where="text", k=10_000).neurons.set_index(["layer", "neuron"])
    for place in ((0, 3), (1, 5)):
        row, stats = found.loc[place], gated.stats(*place).iloc[0]
        own = captured.coefficients[place[0]][0, :, place[1]].tolist()
        far = {at: (own[at] - stats["mean"]) / stats["std"] for at in captured.content[0].nonzero()[:, 0].tolist()}
        furthest = max(far, key=lambda at: abs(far[at]))
        assert row["position"] == furthest
        assert row["token"] == captured.token_strings()[furthest]
        assert row["deviations"] == pytest.approx(far[furthest], rel=1e-5)
    assert found["deviations"].abs().is_monotonic_decreasing
    assert found["deviations"].min() < 0


@pytest.mark.parametrize("where", ["weights", "examples"])
def test_what_a_search_shows(where: Any, tiny_store: Store) -> None:
    found = fm.neurons.search(tiny_store, "RoMe", where=where)
    assert found.neurons["token"].str.contains("rome", case=False).all()
    lines = "\n".join(printed(found.sheet(None)))
    assert all(f"{row.layer}.{row.neuron} " in lines for row in found.neurons.itertuples())
    head = next(line for line in printed(found.sheet(None)) if line.startswith("neuron"))
    assert head.index("fires at") < head.index("promotes"), "what fires it is said first"
    nothing = fm.neurons.search(tiny_store, "no such token", where=where)
    assert len(nothing.neurons) == 0
    assert {"layer", "neuron", "rank", "token"} <= set(nothing.neurons)
    other = {"weights": "examples", "examples": "weights"}[where]
    assert f"(looked in {where}; try --where {other})" in nothing.verdict
    bare = [line for line in printed(replace(found, store=None).sheet()) if line.startswith("neuron")]
    assert "fires at" not in bare[0]


def test_keys_and_gates_of_gated_neurons(gated: Store) -> None:
    """A neuron that a word's gate opens was not found by that word."""
    for side, sign, why in (("gate", "promoted", "gate raised by"), ("key", "suppressed", "key inhibited by")):
        values = gated.values(1, 5)
        token = values[(values["side"] == side) & (values["sign"] == sign)].iloc[0]["token"]
        found = fm.neurons.search(gated, token, k=10_000).neurons
        mine = found.query("layer == 1 and neuron == 5 and side == @side and sign == @sign")
        assert set(mine["why"]) == {why}


def test_what_a_gated_neuron_does_on_its_stronger_side(gated: Store) -> None:
    stats = gated.stats()
    row = stats[-stats["min"] > 1.1 * stats["max"]].iloc[0]
    one = gated.neuron(int(row["layer"]), int(row["neuron"]))
    found = fm.neurons.search(gated, one.tokens("suppressed")[0], k=10_000).neurons
    mine = found[(found["layer"] == one.layer) & (found["neuron"] == one.neuron) & (found["side"] == "value")]
    assert ("suppressed", "promotes, negative") in set(zip(mine["sign"], mine["effect"], strict=True))


def test_neurons_that_never_vary_come_last(tiny_store: Store) -> None:
    rows = pd.DataFrame({"layer": 0, "neuron": [3, 5], "coefficient": [9.0, 0.0]})
    stats = tiny_store.stats().assign(std=0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(tiny_store), "stats", lambda _store: stats)
        found = searching.by_deviation(rows, tiny_store, [])
    assert np.all(found["deviations"] == 0)


@pytest.mark.parametrize(
    ("text", "options", "named"),
    [
        ("Paris", {"where": "keys"}, ["where 'keys'", "'weights'", "'examples'", "'text'"]),
        ("  ", {"where": "weights"}, ["empty", "'Paris'"]),
        ("  ", {"where": "examples"}, ["empty", "'Paris'"]),
        ("<|endoftext|>", {"where": "text"}, ["special"]),
        ("Paris", {"k": 0}, ["k must be at least 1"]),
    ],
)
def test_searches_that_cannot_be(tiny_store: Store, text: str, options: dict[str, Any], named: list[str]) -> None:
    with refuses(InputError, ValueError, *named):
        fm.neurons.search(tiny_store, text, **options)
