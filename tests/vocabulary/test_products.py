"""Which product finds the candidates, and that it is what its bound assumes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ffnmem.core.errors import InputError
from ffnmem.vocabulary import scoring
from ffnmem.vocabulary.scoring import (
    MANY,
    UNIT_BFLOAT16,
    UNIT_FLOAT32,
    UNIT_FLOAT64,
    Product,
    choose,
    keeps_its_bound,
    largest_norm,
    native,
    residual,
)

from ..helpers import refuses
from .making import made


def names(found: list[Product]) -> list[str]:
    return [product.name for product in found]


def test_the_faster_one_is_taken_and_float32_stands_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 alone could not decide every row; a probe for a few rows would take longer than they do."""
    _, tokens = made("random", 0)
    for faster in (True, False):
        monkeypatch.setattr(scoring, "bfloat16_is_faster", lambda tokens, faster=faster: faster)
        assert names(choose(tokens, "auto", MANY)) == (["bfloat16", "float32"] if faster else ["float32"])
        assert names(choose(tokens, "auto", MANY - 1)) == ["float32"]
        assert names(choose(tokens, "bfloat16", 1)) == ["bfloat16", "float32"]
        assert names(choose(tokens, "float32", MANY)) == ["float32"]


def test_the_probe_answers() -> None:
    """Whatever this machine has, a vocabulary smaller than the probe must do."""
    _, tokens = made("random", 0, vocab=40)
    assert scoring.bfloat16_is_faster(tokens) in (True, False)


def test_a_model_in_float64_is_scored_in_float64() -> None:
    (own,) = choose(made("random", 0)[1].double(), "float32", 1)
    assert own.matrix.dtype == torch.float64
    assert own.arithmetic.unit == own.arithmetic.result == UNIT_FLOAT64


def test_float32_that_torch_may_shorten_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """After set_float32_matmul_precision("medium"), a float32 product has bfloat16 factors."""
    _, tokens = made("random", 0)
    assert native(tokens).arithmetic.unit == UNIT_FLOAT32
    assert native(tokens).arithmetic.hidden == 0
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    assert native(tokens).arithmetic.hidden == UNIT_BFLOAT16


def test_a_product_that_rounds_its_sums_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some machines add up in bfloat16; the bound does not hold there, and nothing else would show it."""
    _, tokens = made("random", 0, width=64)
    narrow = scoring.bfloat16(tokens, largest_norm(tokens))
    assert keeps_its_bound(narrow, tokens)

    def sloppy(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(out)
        for i in range(a.shape[1]):
            total = (total + a[:, i : i + 1] * b[i]).to(torch.bfloat16)
        return out.copy_(total)

    monkeypatch.setattr(torch, "mm", sloppy)
    assert not keeps_its_bound(narrow, tokens)
    with refuses(InputError, ValueError, "bfloat16", "float32"):
        choose(tokens, "bfloat16", 1)
    monkeypatch.setattr(scoring, "bfloat16_is_faster", lambda tokens: True)
    assert names(choose(tokens, "auto", MANY)) == ["float32"]


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1.0, 1e10, 1e30])
def test_the_largest_norm_is_never_too_small(scale: float) -> None:
    """Squares in float32 overflow or vanish; the bound would be infinite or nothing."""
    tokens = made("random", 0, width=200)[1] * scale
    exact = float(np.linalg.norm(tokens.double().numpy(), axis=1).max())
    assert exact * (1 - 1e-14) <= largest_norm(tokens) <= exact * (1 + 1e-4)


@pytest.mark.parametrize("scale", [1e-37, 1.0, 1e37])
def test_what_rounding_took_away(scale: float) -> None:
    """The bound is only as good as this difference, which must itself not be rounded."""
    vectors = made("random", 0)[0] * scale
    rounded = vectors.bfloat16()
    assert torch.equal(residual(vectors, rounded).double(), vectors.double() - rounded.double())
    assert residual(vectors, rounded).any(dim=1).all()
