"""The bounds hold for vectors made to break them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.vocabulary.kernels import score_rows
from ffnmem.vocabulary.scoring import (
    UNIT_FLOAT32,
    Arithmetic,
    Largest,
    Product,
    bfloat16,
    gamma,
    native,
    product_error,
    slack,
)

from .making import KINDS, made


@pytest.mark.parametrize("path", ["float32", "bfloat16", "float64"])
@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32), scale=st.integers(-30, 16))
def test_scores_are_within_their_bound(path: str, kind: str, seed: int, scale: int) -> None:
    """Where the bound is too small, a token can be missed without anyone knowing."""
    vectors, tokens = (part * 10.0**scale for part in made(kind, seed, width=70))
    if path == "float64":
        vectors, tokens = vectors.double(), tokens.double()
    product = bfloat16(tokens, native(tokens).largest.exact) if path == "bfloat16" else native(tokens)
    stored, error = product.scores(vectors, torch.empty(len(vectors), len(tokens), dtype=product.matrix.dtype))
    canonical = np.empty(stored.shape, vectors.numpy().dtype)
    score_rows(vectors.numpy(), tokens.numpy(), 0, len(vectors), canonical)
    off = np.abs(stored.double().numpy() - canonical.astype(np.float64))
    usable = np.isfinite(error) & np.isfinite(off).all(axis=1)
    allowed = slack(product.arithmetic, error, stored.double().abs().amax(dim=1).numpy()) / 2
    assert (off[usable] <= allowed[usable, None]).all()
    if -15 <= scale <= 15:
        assert usable.all()


def test_the_bound_is_of_use() -> None:
    """A bound that is always true because it is huge proves nothing: bfloat16 must cost few candidates."""
    vectors, tokens = made("random", 0, rows=8, vocab=5000, width=768)
    for make, share in ((native, 5e-3), (lambda t: bfloat16(t, native(t).largest.exact), 0.3)):
        product: Product = make(tokens)
        stored, error = product.scores(vectors, torch.empty(8, 5000, dtype=product.matrix.dtype))
        width = slack(product.arithmetic, error, stored.double().abs().amax(dim=1).numpy())
        assert (width < share * stored.double().std(dim=1).numpy()).all()


def test_gamma() -> None:
    """Higham's γₙ; where nu nears 1 it means nothing, and then nothing is proved."""
    assert gamma(768, UNIT_FLOAT32) == pytest.approx(768 * UNIT_FLOAT32 / (1 - 768 * UNIT_FLOAT32))
    assert gamma(2**24, UNIT_FLOAT32) == math.inf


def test_rounded_factors_count() -> None:
    """Rounding either factor, or a product that rounds its factors unasked, widens the bound by that much."""
    one = np.ones(1)

    def error(arithmetic: Arithmetic, residual: float, largest: Largest) -> float:
        return float(product_error(arithmetic, 4, one, one, residual * one, largest)[0])

    plain = error(Arithmetic(UNIT_FLOAT32), 0.0, Largest(2.0, 2.0, 0.0))
    assert error(Arithmetic(UNIT_FLOAT32), 0.1, Largest(2.0, 2.0, 0.0)) == pytest.approx(plain + 0.2, rel=1e-5)
    assert error(Arithmetic(UNIT_FLOAT32), 0.0, Largest(2.0, 2.0, 0.3)) == pytest.approx(plain + 0.3, rel=1e-5)
    hidden = error(Arithmetic(UNIT_FLOAT32, hidden=0.01), 0.0, Largest(2.0, 2.0, 0.0))
    assert hidden == pytest.approx(plain + (0.02 + 0.0001) * 2.0, rel=1e-3)
