"""Neurons by text."""

from __future__ import annotations

import pandas as pd
import pytest

from ffnmem.core.errors import InputError
from ffnmem.scanning import Store
from ffnmem.scanning.searching import matching_ids, weight_table

from ..helpers import refuses


def brute_force(store: Store, word: str) -> pd.DataFrame:
    rows = pd.concat(
        store.examples(layer, neuron, kind=("top", "bottom"), context=0)
        for layer in range(store.n_layers)
        for neuron in range(0, store.d_mlp(layer), 16)
    )
    rows = rows[rows["token"].str.contains(word, case=False, regex=False)]
    return rows.groupby(["layer", "neuron", "kind"]).agg(hits=("rank", "size"), rank=("rank", "min")).reset_index()


@pytest.mark.parametrize("word", ["paris", "o"])
def test_examples_at_a_token(tiny_store: Store, word: str) -> None:
    """Neurons that fire there would be missing, or counted wrong."""
    found = tiny_store.search(word, where="examples", limit=10_000)
    assert found["token"].str.contains(word, case=False, regex=False).all()
    ours = found[found["neuron"] % 16 == 0].astype({"kind": str, "layer": int, "neuron": int, "rank": int})
    expected = brute_force(tiny_store, word)
    keys = ["layer", "neuron", "kind", "hits", "rank"]
    ours, expected = (frame[keys].sort_values(keys).reset_index(drop=True) for frame in (ours, expected))
    pd.testing.assert_frame_equal(ours, expected, check_dtype=False)
    assert len(expected) > 0


def test_best_first_and_limited(tiny_store: Store) -> None:
    found = tiny_store.search("e", where="examples", limit=20)
    assert len(found) == 20
    assert found["hits"].is_monotonic_decreasing
    best = found[found["hits"] == found["hits"].max()]
    assert best["rank"].is_monotonic_increasing
    assert found["token_id"].dtype.kind == "i"


def test_values(tiny_store: Store) -> None:
    found = tiny_store.search("PARIS")
    assert len(found) > 0
    assert found["token"].str.contains("paris", case=False).all()
    row = found.iloc[0]
    values = tiny_store.values(int(row["layer"]), int(row["neuron"]))
    assert row["token_id"] in values["token_id"].tolist()


def test_keys_and_gates_of_gated_neurons(gated_store: Store) -> None:
    """A neuron that a word's gate opens was not found by that word."""
    for side, sign, why in (("gate", "promoted", "gate raised by"), ("key", "suppressed", "key inhibited by")):
        values = gated_store.values(1, 5)
        token = values[(values["side"] == side) & (values["sign"] == sign)].iloc[0]["token"]
        found = gated_store.search(token, limit=10_000)
        assert len(found.query("layer == 1 and neuron == 5 and side == @side and sign == @sign"))
        shown = weight_table(found)
        assert any(row[:2] == ((1, 5), why) for row in shown.rows)


def test_nothing_found_is_an_empty_table(tiny_store: Store) -> None:
    for where in ("weights", "examples"):
        found = tiny_store.search("no such token", where=where)
        assert len(found) == 0
        assert {"layer", "neuron", "rank", "token"} <= set(found.columns)


def test_case_does_not_matter(tiny_store: Store) -> None:
    upper, lower = (matching_ids(tiny_store.contexts, tiny_store.corpus.vocab, word) for word in ("ToWeR", "tower"))
    assert upper.tolist() == lower.tolist()
    assert len(lower) >= 1


def test_refuses(tiny_store: Store) -> None:
    with refuses(InputError, ValueError, "where 'keys'", "'weights' or 'examples'"):
        tiny_store.search("Paris", where="keys")
    for where in ("weights", "examples"):
        with refuses(InputError, ValueError, "empty", "'Paris'"):
            tiny_store.search("  ", where=where)
    with refuses(InputError, ValueError, "limit must be at least 1"):
        tiny_store.search("Paris", limit=0)
