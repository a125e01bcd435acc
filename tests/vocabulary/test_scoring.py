"""The ranking is that of the canonical scores, whatever finds the candidates, and its bounds hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from ffnmem.core.errors import InputError
from ffnmem.vocabulary import kernels, scoring, uncompiled
from ffnmem.vocabulary.scoring import (
    BLOCK,
    MANY,
    UNIT_BFLOAT16,
    UNIT_FLOAT32,
    UNIT_LOOSE,
    Arithmetic,
    Largest,
    Product,
    Scorer,
    bfloat16,
    choose,
    keeps_its_bound,
    largest_norm,
    native,
    product_error,
    slack,
)
from ffnmem.vocabulary.uncompiled import LANES

from ..helpers import refuses

KINDS = ("random", "nearly equal", "twins", "copies", "scales", "cancelling", "outlier", "whole numbers", "zeros")


def made(kind: str, seed: int, rows: int = 5, vocab: int = 300, width: int = 24) -> tuple[Tensor, Tensor]:
    """Vectors ``[rows, width]`` and tokens ``[vocab, width]`` that are hard to rank."""
    generator = torch.Generator().manual_seed(seed)
    vectors, tokens = (torch.randn(count, width, generator=generator) for count in (rows, vocab))
    if kind == "nearly equal":  # closer than bfloat16, and often than float32, can tell
        tokens = torch.randn(1, width, generator=generator) + 1e-6 * tokens
    elif kind == "twins":
        tokens = tokens[torch.randint(0, vocab // 10, (vocab,), generator=generator)]
    elif kind == "copies":  # more than there is room for among the candidates
        tokens[50:280] = tokens[int((vectors[0] @ tokens.T).argmax())]
    elif kind == "scales":
        tokens *= 10.0 ** torch.randint(-4, 4, (vocab, 1), generator=generator)
        vectors *= 10.0 ** torch.randint(-4, 4, (1, width), generator=generator)
    elif kind == "cancelling":  # large products that leave a small sum
        half = width // 2
        vectors[:, half : 2 * half], tokens[:, half : 2 * half] = -vectors[:, :half], tokens[:, :half] * (1 + 1e-5)
    elif kind == "outlier":
        vectors[:, 0], tokens[:, 0] = 1e3, 1e3 * (1 + 1e-4 * tokens[:, 1])
    elif kind == "whole numbers":  # exact ties everywhere
        vectors, tokens = vectors.round(), tokens.round()
    elif kind == "zeros":
        vectors[1], tokens[seed % 7 :] = 0, 0
    return vectors, tokens


@pytest.fixture(scope="module", params=[kernels, uncompiled], ids=["compiled", "NumPy"])
def loops(request: Any) -> Iterator[ModuleType]:
    """Everything is done as much work is, and as little work is, whose candidates are found as on an accelerator."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "loops_for", lambda numbers: request.param)
        yield request.param


# -- the ranking -----------------------------------------------------------------------------------------------------


def brute(vectors: Tensor, tokens: Tensor, k: int) -> list[list[Any]]:
    """Ids and scores ``[rows, 2, k]``: every token scored canonically, and sorted."""
    scores = np.empty((len(vectors), len(tokens)), vectors.numpy().dtype)
    kernels.score_rows(vectors.numpy(), tokens.numpy(), 0, len(vectors), scores)
    order = np.stack([np.argsort(-scores, axis=1, kind="stable"), np.argsort(scores, axis=1, kind="stable")], axis=1)
    return [order[:, :, :k].tolist(), np.take_along_axis(scores[:, None], order[:, :, :k], axis=2).tolist()]


def extremes(scorer: Scorer, vectors: Tensor) -> list[list[Any]]:
    return [part.tolist() for part in scorer.extremes(vectors)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("path", ["float32", "bfloat16"])
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**32),
    k=st.sampled_from([1, 3, 9, 101, 150, 10_000]),
    scale=st.integers(-20, 25),
)
@example(
    kind="scales", seed=0, k=3, scale=16
)  # a sample that overflows says nothing about how a machine rounds its sums
def test_equals_brute_force(
    loops: ModuleType, path: str, dtype: torch.dtype, kind: str, seed: int, k: int, scale: int
) -> None:
    """A missed token or neighbours in the wrong order, beyond half of the vocabulary and beyond float32's range too."""
    vectors, tokens = (part.to(dtype) * 10.0**scale for part in made(kind, seed))
    assert extremes(Scorer(tokens, k, path, len(vectors)), vectors) == brute(vectors, tokens, k)


def test_only_the_undecided_rows_are_done_again(loops: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """By threads and in blocks: rows put back in the wrong places would carry another neuron's tokens."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    _, tokens = made("random", 1, vocab=1000)
    tokens[:, 0], tokens[:, 1] = 0, 1 + 1e-5 * tokens[:, 1]
    vectors = made("random", 2, rows=BLOCK + 40)[0]
    vectors[::3] = 0
    vectors[::3, 1] = 1.0  # sees only the column in which all tokens are nearly equal
    vectors[7] = 0
    scorer, undecided = Scorer(tokens, 3, "bfloat16"), len(vectors[::3])
    assert extremes(scorer, vectors) == brute(vectors, tokens, 3)
    assert scorer.taken["bfloat16"] == len(vectors) - undecided - 1
    assert sum(scorer.taken.values()) == len(vectors) - 1
    assert max(len(buffer) for buffer in scorer.buffers.values()) <= BLOCK
    with pytest.raises(ZeroDivisionError):
        scoring.in_threads(lambda first, last: exec("1 / 0"), 100)


# -- the inner loops, compiled and in NumPy ----------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 63, 64, 65, 256])
def test_the_canonical_product(loops: ModuleType, width: int) -> None:
    """Exact of float32 factors; in float64 one fixed order shows: 64 lanes, each in order, then halved."""
    rng = np.random.default_rng(width)

    def product(vector: np.ndarray, row: np.ndarray) -> Any:
        score = np.empty((1, 1), vector.dtype)
        loops.score_rows(vector[None], row[None], 0, 1, score)
        return score[0, 0]

    vector, row = rng.standard_normal((2, width)).astype(np.float32)
    assert product(vector, row) == np.float32(math.fsum(float(a) * float(b) for a, b in zip(vector, row, strict=True)))
    vector, row = rng.standard_normal((2, width)) * 10.0 ** rng.integers(-8, 8, (2, width))
    lanes = np.zeros(LANES)
    for part in np.split(np.pad(vector * row, (0, -width % LANES)), -(-width // LANES)):
        lanes += part
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    assert product(vector, row) == lanes[0]
    lengths = np.zeros(2)
    loops.norms(np.stack([row, vector]), 1, 2, lengths)
    assert lengths.tolist() == [0.0, pytest.approx(np.linalg.norm(vector), rel=1e-12)], "a row outside was written"


# -- the bounds ------------------------------------------------------------------------------------------------------


def scored(path: str, vectors: Tensor, tokens: Tensor) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """Stored scores, their bound, and the slack of each row, by a product on this machine."""
    product = bfloat16(tokens, native(tokens).largest.exact) if path == "bfloat16" else native(tokens)
    stored, error = product.scores(vectors, torch.empty(len(vectors), len(tokens), dtype=product.matrix.dtype))
    if path == "shortened":  # as a machine that rounds float32 factors unasked
        length = largest_norm(tokens)
        product = Product(tokens, Arithmetic(UNIT_LOOSE, hidden=UNIT_BFLOAT16), Largest(length, length, 0.0))
        error = product.scores(vectors, stored)[1]
        stored = vectors.bfloat16().float() @ tokens.bfloat16().float().T
    stored = stored.double()
    return stored, error, slack(product.arithmetic, error, stored.abs().amax(dim=1).numpy())


@pytest.mark.parametrize("path", ["float32", "bfloat16", "float64", "shortened"])
@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32), scale=st.integers(-30, 16))
def test_scores_are_within_their_bound(path: str, kind: str, seed: int, scale: int) -> None:
    """Where the bound is too small, a token can be missed without anyone knowing."""
    vectors, tokens = (part * 10.0**scale for part in made(kind, seed, width=70))
    if path == "float64":
        vectors, tokens = vectors.double(), tokens.double()
    stored, error, width = scored(path, vectors, tokens)
    canonical = np.empty(stored.shape, vectors.numpy().dtype)
    kernels.score_rows(vectors.numpy(), tokens.numpy(), 0, len(vectors), canonical)
    off = np.abs(stored.numpy() - canonical.astype(np.float64))
    usable = np.isfinite(error) & np.isfinite(off).all(axis=1)
    assert (off[usable] <= width[usable, None] / 2).all()
    if -15 <= scale <= 15:
        assert usable.all()


def test_the_bound_is_of_use_and_counts_what_was_rounded() -> None:
    """A bound that is always true because it is huge proves nothing: bfloat16 must cost few candidates."""
    for path, share in (("float32", 5e-3), ("bfloat16", 0.3)):
        stored, _, width = scored(path, *made("random", 0, rows=8, vocab=5000, width=768))
        assert (width < share * stored.std(dim=1).numpy()).all()

    def error(residual: float = 0.0, lost: float = 0.0, hidden: float = 0.0) -> float:
        one, arithmetic = np.ones(1), Arithmetic(UNIT_FLOAT32, hidden=hidden)
        return float(product_error(arithmetic, 4, one, one, residual * one, Largest(2.0, 2.0, lost))[0])

    plain = 4 * UNIT_FLOAT32 / (1 - 4 * UNIT_FLOAT32) * 2 + 2 * UNIT_FLOAT32 * 2  # sums, and the canonical score's own
    assert error() == pytest.approx(plain, rel=1e-5)
    assert error(residual=0.1) == pytest.approx(plain + 0.2, rel=1e-5)
    assert error(lost=0.3) == pytest.approx(plain + 0.3, rel=1e-5)
    assert error(hidden=0.01) == pytest.approx(plain + (0.02 + 0.0001) * 2.0, rel=1e-3)


# -- which product -----------------------------------------------------------------------------------------------------


def test_which_product_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that rounds its sums to bfloat16 has no bound here; a few rows are done before a probe would be."""
    _, tokens = made("random", 0, width=64)
    assert scoring.bfloat16_is_faster(tokens[:40]) in (True, False)

    def names(path: str, rows: int) -> list[str]:
        return [product.name for product in choose(tokens, path, rows)]

    for faster, auto in ((False, ["float32"]), (True, ["bfloat16", "float32"])):
        monkeypatch.setattr(scoring, "bfloat16_is_faster", lambda tokens, faster=faster: faster)
        assert names("auto", MANY) == auto
        assert names("auto", MANY - 1) == names("float32", MANY) == ["float32"]
        assert names("bfloat16", 1) == ["bfloat16", "float32"]
    assert native(tokens).arithmetic.hidden == 0
    with monkeypatch.context() as patch:  # torch was told that a float32 product may have bfloat16 factors
        patch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
        assert native(tokens).arithmetic.hidden == UNIT_BFLOAT16

    def sloppy(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
        total = torch.zeros_like(out)
        for i in range(a.shape[1]):
            total = (total + a[:, i : i + 1] * b[i]).to(torch.bfloat16)
        return out.copy_(total)

    monkeypatch.setattr(torch, "mm", sloppy)
    assert not keeps_its_bound(bfloat16(tokens, largest_norm(tokens)), tokens)
    with refuses(InputError, ValueError, "bfloat16", "float32"):
        choose(tokens, "bfloat16", 1)
    assert names("auto", MANY) == ["float32"]
