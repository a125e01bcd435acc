"""What random vectors score."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FfnmemError
from ffnmem.vocabulary.nulls import gaussian, shuffled

from ..helpers import allclose, refuses

KEYS = ["layer", "neuron", "side", "sign"]
STATISTICS = ["score", "null_mean", "null_std", "z", "p"]


@pytest.mark.parametrize("basis", ["folded", "raw"])
@pytest.mark.parametrize("kind", ["random", "shuffled"])
def test_random_neurons_are_not_special(kind: str, basis: str, tiny: fm.Model) -> None:
    """``tiny``'s neurons are Gaussian vectors: their p must be uniform, else the null finds something in nothing."""
    table = fm.vocabulary.projection_null(tiny, 0, kind=kind, draws=99, basis=basis, seed=1, k=5)
    for column in ("p", "topk_p"):
        p = table[column].to_numpy()
        assert len(p) == 64 * 4
        assert abs(p.mean() - 0.5) < 0.08
        assert (p <= 0.1).mean() < 0.2  # 0.1 expected; neurons are tested against the same draws, so not independent
        assert (p >= 0.9).mean() < 0.2
        assert p.min() >= 0.01
    assert abs(table["z"].mean()) < 0.3


def test_a_neuron_that_writes_one_token_stands_out(make_tiny: Callable[..., fm.Model]) -> None:
    """What the null is for."""
    model = make_tiny()
    with torch.no_grad():
        model.unembedding[40] *= 5
        model.ffn[0].values[3].copy_(model.unembedding[40])
    table = fm.vocabulary.projection_null(model, 0, [3, 4], basis="raw", side="value", draws=99).set_index(
        ["neuron", "sign"]
    )
    assert table.loc[(3, "promoted"), "p"] == 0.01
    assert table.loc[(3, "promoted"), "z"] > 2
    assert table.loc[(3, "promoted"), "z"] > table.loc[(4, "promoted"), "z"]


@pytest.mark.parametrize("kind", ["random", "shuffled"])
def test_the_table(kind: str, tiny: fm.Model) -> None:
    table = fm.vocabulary.projection_null(tiny, 1, [9, 2], kind=kind, draws=20, k=3)
    assert list(table.columns) == [
        *KEYS,
        *STATISTICS,
        *(f"topk_{name}" for name in STATISTICS),
        "basis",
        "lens",
        "kind",
    ]
    signs = [("value", "promoted"), ("value", "suppressed"), ("key", "promoted"), ("key", "suppressed")]
    assert list(zip(table["neuron"], table["side"], table["sign"], strict=True)) == [
        (neuron, *sign) for neuron in (9, 2) for sign in signs
    ]
    best = fm.project(tiny, 1, [9, 2], k=3)
    assert allclose(table["score"], best[best["rank"] == 1]["score"])
    assert allclose(table["topk_score"], best.groupby(KEYS, sort=False)["score"].mean())
    assert (table[table["sign"] == "suppressed"]["null_mean"] < 0).all()
    record = table.attrs["provenance"]
    assert (record["kind"], record["draws"], record["seed"], record["k"]) == (kind, 20, 0, 3)


@pytest.mark.parametrize("kind", ["random", "shuffled"])
def test_a_seed_gives_the_same_whoever_else_is_asked(kind: str, tiny: fm.Model) -> None:
    def asked(neurons: list[int], seed: int) -> pd.DataFrame:
        table = fm.vocabulary.projection_null(tiny, 0, neurons, kind=kind, draws=20, seed=seed)
        return table[table["neuron"] == 7].reset_index(drop=True)

    pd.testing.assert_frame_equal(asked([7], 3), asked([1, 7, 2], 3))
    assert not asked([7], 3)["null_mean"].equals(asked([7], 4)["null_mean"])


def test_null_by_hand(tiny: fm.Model) -> None:
    """Raw basis: random directions of the neuron's norm against W_U, written out, at both ends."""
    value = tiny.ffn[0].values[5].detach()
    drawn = gaussian(value[None], 30, 0).double()
    drawn *= value.double().norm() / drawn.norm(dim=1, keepdim=True)
    scores = drawn @ tiny.unembedding.detach().double().T
    own = tiny.unembedding.detach().double() @ value.double()
    table = fm.vocabulary.projection_null(tiny, 0, 5, draws=30, basis="raw", side="value", k=4)
    for row, direction in zip(table.to_dict("records"), (1, -1), strict=True):
        for prefix, k in (("", 1), ("topk_", 4)):
            best, score = ((part * direction).topk(k, dim=-1).values.mean(-1) for part in (scores, own))
            assert allclose(row[f"{prefix}score"], direction * score)
            assert allclose(row[f"{prefix}null_mean"], direction * best.mean())
            assert allclose(row[f"{prefix}null_std"], best.std())
            assert row[f"{prefix}p"] == pytest.approx((1 + int((best >= score).sum())) / 31)
            assert row[f"{prefix}z"] == pytest.approx(float((score - best.mean()) / best.std()), rel=1e-4)


def test_what_does_not_vary(make_tiny: Callable[..., fm.Model]) -> None:
    """Equal coordinates are the same in every order, and zero is zero: no z, and p = 1."""
    model = make_tiny()
    with torch.no_grad():
        model.ffn[0].values[3].fill_(0.7)
        model.ffn[0].values[4].zero_()
    table = fm.vocabulary.projection_null(model, 0, [3, 4], kind="shuffled", draws=20, basis="raw", side="value")
    assert table["z"].isna().all()
    assert (table["p"] == 1).all()


def test_shuffled_coordinates_are_the_same_ones() -> None:
    row = torch.randn(30, generator=torch.Generator().manual_seed(0))
    drawn = shuffled(row, 10, (0, 1, 2))
    assert torch.equal(drawn.sort(dim=1).values, row.sort().values.expand(10, -1))
    assert len({tuple(order.tolist()) for order in drawn}) == 10


@pytest.mark.parametrize(
    ("neuron", "options", "named"),
    [
        (None, {"kind": "gauss"}, ["kind", "'gauss'", "'random'"]),
        (None, {"draws": 1}, ["draws", "at least 2"]),
        (None, {"seed": -1}, ["seed"]),
        (None, {"basis": "fold"}, ["basis"]),
        (64, {}, ["neuron 64"]),
    ],
)
def test_what_cannot_be_compared(tiny: fm.Model, neuron: int | None, options: Any, named: list[str]) -> None:
    with refuses(FfnmemError, ValueError if neuron is None else IndexError, *named):
        fm.vocabulary.projection_null(tiny, 0, neuron, **options)
