"""Effective ranks, capacities and feature counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ffnmem.neurons.overlap import capacities, features, gram, isotropic_rows, ranks

from ..helpers import allclose


def drawn(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shares(rows: Tensor) -> Tensor:
    return capacities(rows, gram(rows))


@given(n=st.integers(1, 30), d=st.integers(1, 20), seed=st.integers(0, 99))
def test_capacity_equals_both_papers_formulas(n: int, d: int, seed: int) -> None:
    """Scherlis' Cᵢ and Elhage's Dᵢ are one number, and n of them need no more than the rank."""
    rows = drawn(n, d, seed)
    products = rows @ rows.T
    scherlis = products.diag() ** 2 / (products**2).sum(dim=1)
    units = rows / rows.norm(dim=1, keepdim=True)
    elhage = rows.norm(dim=1) ** 2 / ((units @ rows.T) ** 2).sum(dim=1)
    found = shares(rows)
    assert allclose(found, scherlis, 1e-12)
    assert allclose(found, elhage, 1e-12)
    assert float(found.sum()) <= min(n, d) + 1e-9


@given(n=st.integers(2, 30), d=st.integers(2, 20), scale=st.sampled_from([1e-6, 0.5, 1e6]), seed=st.integers(0, 99))
def test_scale_and_rotation_change_nothing(n: int, d: int, scale: float, seed: int) -> None:
    rows = drawn(n, d, seed)
    other = scale * rows @ torch.linalg.qr(drawn(d, d, seed + 1))[0]
    assert allclose(shares(other), shares(rows), 1e-9)
    one, two = ranks(gram(rows)), ranks(gram(other))
    assert allclose([*two.values()], [*one.values()], 1e-6)
    assert features(other)["features"] == pytest.approx(features(rows)["features"])


def test_orthonormal_rows_have_a_dimension_each() -> None:
    rows = torch.linalg.qr(drawn(12, 12))[0][:7]
    assert allclose(shares(rows), torch.ones(7), 1e-12)
    found = ranks(gram(rows))
    assert allclose([*found.values()], [7.0, 7.0, 7.0], 1e-5)
    counted = features(rows)
    assert allclose([*counted.values()], [7.0, 1.0, 7 / 12])


def test_equal_rows_share_one() -> None:
    rows = torch.eye(5, dtype=torch.float64)[[0, 1, 2, 2]]
    assert allclose(shares(rows), [1.0, 1.0, 0.5, 0.5])
    assert allclose(shares(torch.ones(4, 3, dtype=torch.float64)), [0.25] * 4)


def test_a_zero_row_has_no_capacity_and_is_no_feature() -> None:
    rows = torch.eye(5, dtype=torch.float64)[:3]
    rows[2] = 0.0
    assert allclose(shares(rows), [1.0, 1.0, 0.0])
    assert features(rows)["features"] == 2.0
    assert features(torch.zeros(3, 4))["features"] == 0.0
    assert np.isnan(ranks(gram(torch.zeros(3, 4)))["entropy_rank"])


def test_short_rows_count_little() -> None:
    """Nine of a tenth the length are far from nine features."""
    rows = torch.eye(10, dtype=torch.float64)
    rows[1:] *= 0.1
    assert features(rows)["features"] == pytest.approx((1 + 0.09) ** 2 / (1 + 9e-4))


@given(n=st.integers(1, 20), d=st.integers(1, 20), seed=st.integers(0, 99))
def test_ranks_equal_the_definitions(n: int, d: int, seed: int) -> None:
    rows = drawn(n, d, seed)
    singular = np.linalg.svd(rows.numpy(), compute_uv=False)
    p = singular / singular.sum()
    found = ranks(gram(rows))
    assert found["entropy_rank"] == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-5)
    assert found["participation_rank"] == pytest.approx((singular**2).sum() ** 2 / (singular**4).sum())
    assert found["stable_rank"] == pytest.approx((singular**2).sum() / singular[0] ** 2)


def test_isotropic_rows_have_the_lengths_asked_for() -> None:
    lengths = np.array([0.5, 2.0, 0.0, 3.0])
    rows = isotropic_rows(lengths, 6, [1])
    assert allclose(np.linalg.norm(rows, axis=1), lengths, 1e-12)
    assert np.array_equal(rows, isotropic_rows(lengths, 6, [1]))
    many = isotropic_rows(np.ones(4000), 5, [2])
    assert allclose(many.T @ many / 4000, np.eye(5) / 5, 0.02)
