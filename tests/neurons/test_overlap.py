"""Keys as neurons read them, values as norms above read them; overlap in pairs and its nulls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import ffnmem as fm
from ffnmem.models.layout import inner
from ffnmem.neurons.overlap import (
    BINS,
    NO_OVERLAP,
    QUANTILES,
    centred_values,
    cosines,
    folded_keys,
    isotropic_overlap,
    matched_units,
    memory_rows,
    memory_sides,
    overlap,
    side_rows,
    unit_moments,
    unit_rows,
)

from ..helpers import PROMPT, allclose


def test_folded_keys_are_what_the_neuron_reads(architecture: fm.Model) -> None:
    """k·Norm(x) less its constant is the folded key along x over its scale, of gates likewise; and adding 1s changes
    nothing where a LayerNorm takes them out, and something where an RMSNorm does not."""
    layout: Any = architecture.layout.blocks[1].norm
    norm: Any = inner(layout)
    x = torch.randn(5, architecture.d_model, generator=torch.Generator().manual_seed(0))
    centred = isinstance(norm, torch.nn.LayerNorm)
    eps = norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps
    scale = ((x.var(dim=-1, unbiased=False) if centred else x.square().mean(dim=-1)) + eps).sqrt().unsqueeze(-1)
    ffn = architecture.ffn[1]
    for side, keys in (("key", ffn.keys), ("gate", ffn.gates)):
        if keys is None:
            continue
        with torch.no_grad():
            read = norm(x) @ keys.T - norm(torch.zeros_like(x)) @ keys.T
        folded = folded_keys(architecture, 1, side)
        assert allclose(x @ folded.T / scale, read, 1e-5)
        assert torch.allclose((x + 3.0) @ folded.T / scale, read, atol=1e-4) == centred


def test_values_are_what_the_stream_gets(architecture: fm.Model) -> None:
    """σ times what a layer adds is the sum of coefficients times these values, but for bias and mean."""
    captured = fm.capture(architecture, PROMPT)
    written = captured.ffn_out[1][0]
    post: Any = architecture.layout.blocks[1].post
    bias = architecture.ffn[1].value_bias
    added = written - (0.0 if bias is None else bias.detach())
    if post is not None:
        with torch.no_grad():
            added = inner(post)(written) * (written.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()
    if architecture.centred:
        added = added - added.mean(dim=-1, keepdim=True)
    assert allclose(captured.coefficients[1][0] @ centred_values(architecture, 1), added, 1e-5)


def test_memory_rows_have_the_dimensions_that_norms_leave(architecture: fm.Model) -> None:
    """One fewer under LayerNorm, all of them under RMSNorm; products stay."""
    assert memory_sides(architecture) == ("key", "value", *["gate"] * architecture.gated)
    for side in memory_sides(architecture):
        rows, found = side_rows(architecture, 0, side), memory_rows(architecture, 0, side)
        assert found.shape == (architecture.d_mlp, architecture.d_model - architecture.centred)
        assert allclose(found @ found.T, rows @ rows.T)


def test_cosines_of_any_scale() -> None:
    """Squares of small or large float32 numbers leave its range."""
    one = torch.tensor([[1e-30, 0.0], [1e30, 1e30], [0.0, 0.0]])
    other = torch.tensor([[1e-30, 1e-30], [-1e30, -1e30], [1.0, 0.0]])
    found = cosines(one, other)
    assert allclose(found[:2], [0.5**0.5, -1.0])
    assert bool(found[2].isnan())


# -- overlap in pairs --------------------------------------------------------------------------------------------------


def drawn(n: int, d: int, seed: int = 0, stretch: Tensor | float = 1.0, shift: float = 0.0) -> Tensor:
    """Unit rows of Gaussian vectors."""
    generator = torch.Generator().manual_seed(seed)
    return unit_rows(torch.randn(n, d, generator=generator, dtype=torch.float64) * stretch + shift)


def far(found: dict[str, float]) -> list[float]:
    return [found[name] for name in QUANTILES]


def matched(units: Tensor) -> dict[str, float]:
    return overlap(matched_units(unit_moments(units), [0]))[0]


@given(n=st.integers(2, 40), d=st.integers(2, 12), block=st.integers(1, 50), seed=st.integers(0, 99))
def test_equals_the_naive_formulas(n: int, d: int, block: int, seed: int) -> None:
    """Whatever the block: no pair is missed, none counts twice, no row meets itself."""
    units = drawn(n, d, seed)
    expected = (units @ units.T).numpy()[np.triu_indices(n, 1)]
    found, (one, other) = overlap(units, block=block)
    assert allclose([found["mean"], found["rms"]], [expected.mean(), np.sqrt((expected**2).mean())], 1e-12)
    assert allclose(found["max"], expected[np.abs(expected).argmax()])
    assert allclose(found["max"], float(units[one] @ units[other]))
    assert one < other
    steps = np.quantile(np.abs(expected), list(QUANTILES.values()), method="inverted_cdf")
    assert allclose(far(found), steps, 1.01 / BINS)


def test_isotropic_null_is_what_random_directions_do() -> None:
    """The Beta law's parameters, and the maximum's; in a plane, where an angle is uniform, and without a pair."""
    n, d = 1200, 30
    found, expected = overlap(drawn(n, d).float())[0], isotropic_overlap(d, n * (n - 1) // 2)
    assert expected["rms"] == d**-0.5
    assert found["rms"] == pytest.approx(expected["rms"], rel=0.01)
    assert far(found) == pytest.approx(far(expected), rel=0.01)
    maxima = [abs(overlap(drawn(60, d, seed))[0]["max"]) for seed in range(60)]
    assert np.mean(np.array(maxima) > isotropic_overlap(d, 1770)["max"]) == pytest.approx(0.5, abs=0.15)
    plane = isotropic_overlap(2, 1)
    assert far(plane) == pytest.approx(np.sin(np.pi / 2 * np.array([*QUANTILES.values()])))
    assert (plane["rms"], plane["max"]) == pytest.approx((0.5**0.5, 0.5**0.5))
    assert isotropic_overlap(4, 0) == isotropic_overlap(1, 3) == NO_OVERLAP


CASES: dict[str, tuple[Tensor | float, float]] = {
    "isotropic": (1.0, 0.0),
    "anisotropic": (torch.arange(1, 41, dtype=torch.float64) ** -1.0, 0.0),
    "common direction": (1.0, 0.7),
    "both": (torch.arange(1, 41, dtype=torch.float64) ** -0.5, 0.2),
}


@pytest.mark.parametrize("case", CASES)
def test_matched_null_fits_gaussian_rows(case: str) -> None:
    """On rows that are nothing but anisotropic, the null must say so: else anisotropy passes for overlap."""
    units = drawn(400, 40, 1, *CASES[case])
    found, null = overlap(units)[0], matched(units)
    assert null["mean"] == pytest.approx(found["mean"], abs=0.005)
    assert null["rms"] == pytest.approx(found["rms"], rel=0.02)
    assert far(null) == pytest.approx(far(found), rel=0.04, abs=0.004)


def test_matched_null_sees_overlap_beyond_anisotropy() -> None:
    """Pairs of equal rows leave the second moment as it is: rms cannot show them, the far quantile does."""
    half = drawn(150, 40, 2, CASES["both"][0])
    units = torch.cat([half, half])
    found, null = overlap(units)[0], matched(units)
    assert found["rms"] == pytest.approx(null["rms"], rel=0.03)
    assert found["q999"] > 1.2 * null["q999"]
    assert matched(drawn(1, 8).expand(6, 8))["rms"] == pytest.approx(1.0, abs=1e-4)  # where all rows are one
