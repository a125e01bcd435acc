"""What random vectors score."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FfnmemError

from ..helpers import allclose, refuses

KINDS = pytest.mark.parametrize("kind", ["random", "shuffled"])
STATISTICS = ["score", "null_mean", "null_std", "z", "p"]


@KINDS
@pytest.mark.parametrize("basis", ["folded", "raw"])
def test_random_neurons_are_not_special(kind: Any, basis: Any, tiny: fm.Model) -> None:
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


@KINDS
def test_null_by_hand(tiny: fm.Model, kind: Any) -> None:
    """Raw basis: random directions of the neuron's norm, or its own numbers in other orders, against W_U, written
    out, at both ends; whoever else is asked for."""
    value, tokens = (part.detach().double().numpy() for part in (tiny.ffn[0].values[5], tiny.unembedding))
    if kind == "random":
        drawn = np.random.default_rng(4).standard_normal((30, 16)).astype(np.float32).astype(float)
        drawn *= np.linalg.norm(value) / np.linalg.norm(drawn, axis=1, keepdims=True)
    else:
        drawn = value[np.random.default_rng([4, 0, 5]).permuted(np.tile(np.arange(16), (30, 1)), axis=1)]
    whole = fm.vocabulary.projection_null(tiny, 0, [7, 5, 2], kind=kind, draws=30, basis="raw", k=4, seed=4)
    columns = ["layer", "neuron", "side", "sign", *STATISTICS, *(f"topk_{name}" for name in STATISTICS)]
    assert list(whole.columns) == [*columns, "basis", "lens", "kind"]
    best = fm.project(tiny, 0, [7, 5, 2], k=1, basis="raw")
    keys = ["layer", "neuron", "side", "sign", "basis", "lens"]
    assert whole[keys].values.tolist() == best[keys].values.tolist()
    record = whole.attrs["provenance"]
    assert (record["kind"], record["draws"], record["seed"], record["k"]) == (kind, 30, 4, 4)
    table = whole[(whole["neuron"] == 5) & (whole["side"] == "value")]
    for row, direction in zip(table.to_dict("records"), (1, -1), strict=True):
        for prefix, k in (("", 1), ("topk_", 4)):
            best, score = (np.sort(direction * part @ tokens.T)[..., -k:].mean(-1) for part in (drawn, value))
            expected = [
                direction * score,
                direction * best.mean(),
                best.std(ddof=1),
                (score - best.mean()) / best.std(ddof=1),
            ]
            assert allclose([row[f"{prefix}{name}"] for name in STATISTICS[:4]], expected, 1e-4)
            assert row[f"{prefix}p"] == pytest.approx((1 + int((best >= score).sum())) / 31)
    alone = fm.vocabulary.projection_null(tiny, 0, 5, kind=kind, draws=30, basis="raw", k=4, seed=4, side="value")
    pd.testing.assert_frame_equal(alone, table.reset_index(drop=True))


def test_what_stands_out_and_what_does_not_vary(make_tiny: Callable[..., fm.Model]) -> None:
    """A neuron that writes one token; equal coordinates are the same in every order, and zero is zero."""
    model = make_tiny()
    with torch.no_grad():
        model.unembedding[40] *= 5
        for neuron, vector in ((3, model.unembedding[40]), (5, torch.full((16,), 0.7)), (6, torch.zeros(16))):
            model.ffn[0].values[neuron].copy_(vector)
    options: dict[str, Any] = {"basis": "raw", "side": "value", "draws": 99}
    far, other = fm.vocabulary.projection_null(model, 0, [3, 4], **options)[::2].to_dict("records")
    assert far["p"] == 0.01
    assert far["z"] > max(2, other["z"])
    table = fm.vocabulary.projection_null(model, 0, [5, 6], kind="shuffled", **options)
    assert table["z"].isna().all()
    assert (table["p"] == 1).all()


@pytest.mark.parametrize(
    ("neuron", "options", "named"),
    [
        (None, {"kind": "gauss"}, ["kind", "'gauss'", "'random'"]),
        (None, {"draws": 1}, ["draws", "at least 2"]),
        (None, {"seed": -1}, ["seed"]),
        (64, {}, ["neuron 64"]),
    ],
)
def test_mistakes(tiny: fm.Model, neuron: int | None, options: Any, named: list[str]) -> None:
    with refuses(FfnmemError, ValueError if neuron is None else IndexError, *named):
        fm.vocabulary.projection_null(tiny, 0, neuron, **options)
