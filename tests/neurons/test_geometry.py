"""The geometry of a whole model: what is folded into its memories, overlap, and the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

import ffnmem as fm
from ffnmem.models.layout import inner
from ffnmem.neurons import Geometry
from ffnmem.neurons.layer_geometry import derangements
from ffnmem.neurons.overlap import (
    BINS,
    COSINES,
    NO_OVERLAP,
    QUANTILES,
    centred_values,
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
from .gated import GATED, made


def test_folded_keys_are_what_the_neuron_reads(architecture: fm.Model) -> None:
    """k·Norm(x) less its constant is the folded key along x over its scale, and a LayerNorm takes out what is added."""
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
    # Memory rows have one dimension fewer under LayerNorm, all of them under RMSNorm; products stay.
    assert memory_sides(architecture) == ("key", "value", *["gate"] * architecture.gated)
    for side in memory_sides(architecture):
        rows, found = side_rows(architecture, 0, side), memory_rows(architecture, 0, side)
        assert found.shape == (architecture.d_mlp, architecture.d_model - architecture.centred)
        assert allclose(found @ found.T, rows @ rows.T)


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
def test_overlap_equals_the_naive_formulas(n: int, d: int, block: int, seed: int) -> None:
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


# -- the table ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(tiny: fm.Model) -> Geometry:
    return fm.neurons.geometry(tiny)


def naive_side(rows: np.ndarray) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """The columns of one side, as the papers define them, and those of each neuron: all pairs, singular values."""
    products, lengths = rows @ rows.T, np.linalg.norm(rows, axis=1)
    cosine = products / np.outer(lengths, lengths)
    pairs = cosine[np.triu_indices(len(rows), 1)]
    singular = np.linalg.svd(rows, compute_uv=False)
    shares = singular / singular.sum()
    units = rows / lengths[:, None]
    capacity = lengths**2 / ((units @ rows.T) ** 2).sum(1)  # Elhage's; Scherlis' is the same number
    assert np.allclose(capacity, products.diagonal() ** 2 / (products**2).sum(1))
    count = (lengths**2).sum() ** 2 / (lengths**4).sum()
    numbers = {
        "zero": 0,
        "cosine_mean": pairs.mean(),
        "cosine_rms": np.sqrt((pairs**2).mean()),
        "cosine_max": pairs[np.abs(pairs).argmax()],
        "entropy_rank": np.exp(stats.entropy(shares)),
        "participation_rank": (singular**2).sum() ** 2 / (singular**4).sum(),
        "stable_rank": (singular**2).sum() / singular[0] ** 2,
        "capacity_sum": capacity.sum(),
        "capacity_mean": capacity.mean(),
        **{f"capacity_q{q}": np.quantile(capacity, q / 100) for q in (5, 25, 50, 75, 95)},
        "features": count,
        "features_per_neuron": count / len(rows),
        "features_per_dimension": count / rows.shape[1],
        "isotropic_rms": rows.shape[1] ** -0.5,
        "isotropic_max": isotropic_overlap(rows.shape[1], len(pairs))["max"],  # the formula itself is tried above
    }
    disturbed = np.sqrt(((cosine**2).sum(1) - 1) / (len(rows) - 1))
    return numbers, {"norm": lengths, "capacity": capacity, "interference": disturbed}


def test_columns_agree_with_naive_formulas(architecture: fm.Model) -> None:
    """Columns of one side under the other's name, or of another layer."""
    dimensions = 15 if architecture.centred else 16
    found = fm.neurons.geometry(architecture)
    assert found.dimensions == dimensions  # d_model 16, less the direction that LayerNorms remove
    assert found.sides == memory_sides(architecture)
    assert found.alignments == (("io", "gate_io", "gate_key") if architecture.gated else ("io",))
    assert found.layers.notna().all().all()
    assert found.provenance.fingerprint == architecture.fingerprint
    for layer in range(2):
        row, neurons = found.layers.iloc[layer], found.neurons[found.neurons["layer"] == layer]
        assert (row["layer"], row["neurons"], len(neurons)) == (layer, 64, 64)
        assert neurons["neuron"].tolist() == list(range(64))
        for name in found.alignments:
            pair = (side_rows(architecture, layer, side) for side in COSINES[name])
            cosine = neurons[f"{name}_cosine"]
            assert allclose(cosine, torch.cosine_similarity(*pair), 1e-5)
            quantiles = np.quantile(cosine, [0.05, 0.25, 0.5, 0.75, 0.95])
            assert allclose(row[[f"{name}_q{q}" for q in (5, 25, 50, 75, 95)]].astype(float), quantiles, 1e-6)
            low, high = row[f"{name}_null_low"], row[f"{name}_null_high"]
            assert low < 0 < high
            assert row[f"{name}_beyond"] == ((cosine < low) | (cosine > high)).mean()
        for side in found.sides:
            rows = memory_rows(architecture, layer, side).double().numpy()
            assert rows.shape == (64, dimensions)
            numbers, by_neuron = naive_side(rows)
            for name, number in numbers.items():
                assert allclose(row[f"{side}_{name}"], number, 1e-5), name
            for name, values in by_neuron.items():
                assert allclose(neurons[f"{side}_{name}"], values, 1e-5), name
            pair = [rows[int(row[f"{side}_max_{which}"])] for which in ("neuron", "other")]
            assert allclose(row[f"{side}_cosine_max"], pair[0] @ pair[1] / np.prod(np.linalg.norm(pair, axis=1)), 1e-5)


@pytest.mark.parametrize("kind", ["gpt2", *GATED])
def test_random_weights_are_within_the_nulls(kind: str, tokenizer: Any) -> None:
    """Weights drawn at random have no geometry; a null off by a factor would give them one."""
    found = fm.neurons.geometry(made(kind, tokenizer))
    for row in found.layers.to_dict("records"):
        for name in found.alignments:
            assert row[f"{name}_beyond"] == pytest.approx(0.05, abs=0.08)
        for side in found.sides:
            assert row[f"{side}_matched_rms"] == pytest.approx(row[f"{side}_cosine_rms"], rel=0.05)
            assert row[f"{side}_matched_q99"] == pytest.approx(row[f"{side}_cosine_q99"], rel=0.15)
        # Of 64 rows, drawn once each: seeds differ by 5%.
        assert row["value_isotropic_capacity_q50"] == pytest.approx(row["value_capacity_q50"], rel=0.15)
        assert row["value_isotropic_entropy_rank"] == pytest.approx(row["value_entropy_rank"], rel=0.03)


def test_planted_neurons(make_tiny: Callable[..., fm.Model]) -> None:
    """A dead neuron, and one that writes against what it reads."""
    model = make_tiny()
    with torch.no_grad():
        model.ffn[0].keys[9].zero_()
        model.ffn[0].values[7].copy_(-folded_keys(model, 0)[7])
    found = fm.neurons.geometry(model)
    assert found.layers["key_zero"].tolist() == [1, 0]
    dead = found.neurons.loc[9]
    assert (dead["key_norm"], dead["key_capacity"]) == (0.0, 0.0)
    assert np.isnan(dead["key_interference"])
    assert np.isnan(dead["io_cosine"])
    assert np.isfinite(dead["value_interference"])
    assert found.neurons.loc[7, "io_cosine"] == pytest.approx(-1.0, abs=1e-6)
    with torch.no_grad():  # of one living key there is no pair, so there is no overlap to tell
        model.ffn[1].keys[1:] = 0
    found = fm.neurons.geometry(model)
    row = found.layers.loc[1]
    assert row[["key_zero", "key_max_neuron", "key_max_other"]].tolist() == [63, -1, -1]
    assert row[["key_cosine_rms", "key_matched_rms", "key_isotropic_max"]].isna().all()
    assert row[["key_capacity_sum", "key_capacity_q5", "key_features"]].tolist() == pytest.approx([1, 1, 1])
    assert np.isnan(found.overlap.query("layer == 1 and side == 'keys'")["max_neuron"].item())


def test_turning_key_and_value_round_changes_no_geometry(gated: fm.Model, turned: fm.Model) -> None:
    """Which is the same neuron; only the sign of its gate's cosines is another."""
    one, other = (fm.neurons.geometry(model) for model in (gated, turned))
    flips = np.where(np.arange(128) % 2 == 0, -1.0, 1.0)
    for name in one.neurons:
        expected = one.neurons[name] * (flips if name in ("gate_io_cosine", "gate_key_cosine") else 1.0)
        assert allclose(other.neurons[name], expected, 1e-5)


def test_options_and_progress(tiny: fm.Model, found: Geometry) -> None:
    """A null that depends on which other layers were asked for could not be repeated."""
    alone = fm.neurons.geometry(tiny, layers=-1)
    pd.testing.assert_frame_equal(alone.layers, found.layers.iloc[[1]].reset_index(drop=True))
    steps: list[tuple[str, int, int]] = []
    other = fm.neurons.geometry(tiny, seed=4, progress=lambda *step: steps.append(step))
    assert other.provenance.to_dict()["seed"] == 4
    assert steps == [("geometry", 1, 2), ("geometry", 2, 2)]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_tables_are_of_the_layers(name: str, tokenizer: Any) -> None:
    """Numbers of another side, layer or null."""
    found = fm.neurons.geometry(made(name, tokenizer))
    layers = found.layers.to_dict("records")
    rows = found.overlap.to_dict("records")
    assert [(row["layer"], row["side"]) for row in rows] == [(n, f"{side}s") for n in (0, 1) for side in found.sides]
    for row in rows:
        own = {
            name: layers[row["layer"]][f"{row['side'][:-1]}_{name}"] for name in row if name not in ("layer", "side")
        }
        assert row | own | {"matched_max": abs(own["matched_max"])} == row
    for alignment, frame in zip(found.alignments, found.cosines.values(), strict=True):
        assert frame["q50"].tolist() == [row[f"{alignment}_q50"] for row in layers]
        assert frame["beyond"].tolist() == [row[f"{alignment}_beyond"] for row in layers]
    assert f"{found.layers['io_beyond'].min():.0%}" in found.verdict


@given(n=st.integers(1, 40), count=st.integers(0, 12), seed=st.integers(0, 99))
def test_derangements(n: int, count: int, seed: int) -> None:
    """A neuron paired with itself would bring the truth into its null."""
    found = derangements(n, count, [seed])
    assert found.shape == (min(count, n - 1), n)
    assert all(sorted(permutation) == list(range(n)) for permutation in found)
    assert all(len({*column, neuron}) == len(found) + 1 for neuron, column in enumerate(found.T))
