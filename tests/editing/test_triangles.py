"""Sums of outer products: what they add up to, how far float32 may be off, and their packed form."""

from __future__ import annotations

import pytest
import torch

from ffnmem.editing import moments
from ffnmem.editing.moments import BLOCK, CHUNK, TriangleSums, diagonal, full_float32, square

from ..helpers import allclose


def rows(n: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def summed(m: torch.Tensor, exact: bool = False) -> torch.Tensor:
    sums = TriangleSums(m.shape[1], exact=exact)
    sums.add(m)
    return square(sums.packed(), m.shape[1])


@pytest.mark.parametrize("width", [1, 5, BLOCK, BLOCK + 44, 2 * BLOCK + 1])
@pytest.mark.parametrize("n", [0, 1, 37, CHUNK + 3])
def test_sums_are_the_product(width: int, n: int) -> None:
    """Blocks would be in the wrong place, a chunk lost, or the lower half not the mirror of the upper one."""
    m = rows(n, width)
    assert allclose(summed(m), m.T @ m, 1e-12)
    assert torch.equal(summed(m), summed(m).T)


def test_float32_products_stay_within_their_bound() -> None:
    """Statistics of float32 models would be worse than the docstring says."""
    m = rows(5 * CHUNK, 70).float().relu()
    found, exact = summed(m), summed(m, exact=True)
    u = CHUNK * 2.0**-24
    bound = u / (1 - u) * (m.double().abs().T @ m.double().abs())
    assert bool(((found - exact).abs() <= bound).all())
    assert float(((found - exact).abs() / bound).max()) < 0.02  # and far better in practice
    assert not torch.equal(found, exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rows_are_multiplied_in_float32(dtype: torch.dtype) -> None:
    """Products of half precision rows would be rounded to half precision."""
    m = rows(300, 20).to(dtype)
    assert allclose(summed(m), m.double().T @ m.double(), 1e-6)


def test_float64_where_float32_is_not_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """With TF32 switched on, second moments would silently have three digits."""
    assert full_float32(torch.device("cpu"))
    m = rows(200, 30).float()
    monkeypatch.setattr(moments, "full_float32", lambda device: False)
    assert torch.equal(summed(m), summed(m, exact=True))


def test_a_rounded_product_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of float32 would pass on hardware that drops half of the digits."""
    plain = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: plain(a.bfloat16(), b.bfloat16()).float())
    assert not full_float32(torch.device("cpu"))


def test_packed_goes_on_where_it_was() -> None:
    """A resumed pass would not go on from the same bits."""
    m = rows(60, BLOCK + 9)
    whole, resumed = TriangleSums(BLOCK + 9), TriangleSums(BLOCK + 9)
    whole.add(m[:20])
    resumed.load(whole.packed())
    whole.add(m[20:])
    resumed.add(m[20:])
    assert torch.equal(whole.packed(), resumed.packed())


def test_packed_order() -> None:
    """The file's layout, upper triangle row by row, would not be what its documentation says."""
    m = rows(8, BLOCK + 3)
    sums = TriangleSums(BLOCK + 3)
    sums.add(m)
    matrix = square(sums.packed(), BLOCK + 3)
    i, j = torch.triu_indices(BLOCK + 3, BLOCK + 3)
    assert torch.equal(sums.packed(), matrix[i, j])
    assert torch.equal(diagonal(sums.packed(), BLOCK + 3), torch.diagonal(matrix))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_shows(bad: float) -> None:
    """One broken token would spoil a whole second moment unseen."""
    sums = TriangleSums(BLOCK + 5)
    sums.add(rows(3, BLOCK + 5))
    assert sums.is_finite()
    m = rows(3, BLOCK + 5)
    m[1, BLOCK + 2] = bad
    sums.add(m)
    assert not sums.is_finite()
