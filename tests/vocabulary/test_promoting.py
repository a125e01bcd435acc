"""The neurons behind a token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FfnmemError
from ffnmem.vocabulary.vectors import everything, side_tokens, side_vectors

from ..helpers import Pair, allclose, refuses

COLUMNS = ["layer", "neuron", "side", "sign", "basis", "lens", "rank", "score"]


def all_scores(model: fm.Model, ids: list[int], side: str, basis: str) -> torch.Tensor:
    """[layer, neuron], written out."""
    direction = side_tokens(model, side)[ids].double().mean(dim=0)
    vectors = [side_vectors(model, index, everything(model, index), side, basis) for index in range(model.n_layers)]
    return torch.stack([part.double() @ direction for part in vectors])


@pytest.mark.parametrize("basis", ["folded", "raw"])
@pytest.mark.parametrize("side", ["value", "key"])
def test_equals_brute_force(pair: Pair, side: str, basis: str) -> None:
    """The wrong end, the wrong matrix or the wrong layer."""
    model = pair.model
    for tokens in ([" Paris"], [" Paris", " Rome", 7]):
        ids = [model.token_id(token) for token in tokens]
        scores = all_scores(model, ids, side, basis)
        table = fm.vocabulary.promoters(model, tokens, k=4, side=side, basis=basis)
        for sign, order in (("promoted", (-scores).flatten().argsort()), ("suppressed", scores.flatten().argsort())):
            rows = table[table["sign"] == sign]
            assert rows["rank"].tolist() == [1, 2, 3, 4]
            assert (rows["layer"] * model.d_mlp + rows["neuron"]).tolist() == order[:4].tolist()
            assert allclose(rows["score"], scores.flatten()[order[:4]], 1e-6)


def test_agrees_with_project(tiny: fm.Model) -> None:
    """Bit for bit: the same score, found from the other end."""
    row = fm.vocabulary.promoters(tiny, " Paris", k=1).iloc[0]
    table = fm.project(tiny, int(row["layer"]), int(row["neuron"]), k=tiny.d_vocab, side="value")
    assert table[table["token"] == " Paris"]["score"].iloc[0] == row["score"]


def test_columns(tiny: fm.Model) -> None:
    one = fm.vocabulary.promoters(tiny, " Paris", k=2, side=("value", "key"))
    assert list(one.columns) == [*COLUMNS, "token", "token_id"]
    assert set(one["token"]) == {" Paris"}
    assert one["side"].tolist() == ["value"] * 4 + ["key"] * 4
    several = fm.vocabulary.promoters(tiny, [" Paris", " Rome", " Paris"], k=2)
    assert list(several.columns) == [*COLUMNS, "tokens"]
    assert several["tokens"].tolist() == [[" Paris", " Rome"]] * 4
    assert several.attrs["provenance"]["basis"] == "folded"


def test_one_layer_and_no_more_neurons_than_there_are(tiny: fm.Model) -> None:
    table = fm.vocabulary.promoters(tiny, 5, layer=-1, k=1000)
    assert set(table["layer"]) == {1}
    assert len(table) == 2 * 64
    assert np.array_equal(np.sort(table["neuron"][:64]), np.arange(64))


@pytest.mark.parametrize(
    ("tokens", "options", "named"),
    [
        (" Colosseum", {}, ["' Colosseum'", "tokens", "--first-token"]),  # a word of several tokens has no one score
        ([], {}, ["no token"]),
        (5, {"side": "both"}, ["side"]),
        (10**6, {}, ["token id"]),
        (5, {"layer": 2}, ["layer 2"]),
    ],
)
def test_what_is_no_token(tiny: fm.Model, tokens: Any, options: dict[str, Any], named: list[str]) -> None:
    with refuses(FfnmemError, IndexError if isinstance(tokens, int) and "side" not in options else ValueError, *named):
        fm.vocabulary.promoters(tiny, tokens, **options)


def test_the_first_token_of_a_word(tiny: fm.Model) -> None:
    found = fm.vocabulary.promoters(tiny, " Colosseum", first_token=True)["token_id"].iloc[0]
    assert found == tiny.token_id(" C", first=True)
