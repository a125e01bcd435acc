"""The geometry of a whole model: what is folded into its memories, overlap, near-duplicates, classes, and the table."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

import ffnmem as fm
from ffnmem.models.layout import inner
from ffnmem.neurons import Geometry, read_write
from ffnmem.neurons import duplicates as module
from ffnmem.neurons.duplicates import Screen, find_duplicates, kinds
from ffnmem.neurons.layer_geometry import ALIGNED
from ffnmem.neurons.overlap import (
    BINS,
    COSINES,
    NO_OVERLAP,
    QUANTILES,
    SIDES,
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

from ..helpers import PROMPT, allclose, printed
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
    return fm.neurons.geometry(tiny, threshold=0.6)


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
    found = fm.neurons.geometry(architecture, threshold=None)
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
            shares = ((cosine < low) | (cosine > high), cosine > 0.5, cosine < -0.5)
            names = [f"{name}_{share}" for share in ("beyond", "strengthening", "weakening")]
            assert row[names].tolist() == [share.mean() for share in shares]
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
    found = fm.neurons.geometry(made(kind, tokenizer), threshold=None)
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
    """Two neurons of two layers made alike, a dead one, one that weakens what it reads."""
    model = make_tiny()
    with torch.no_grad():
        gains = [block.norm.weight for block in model.layout.blocks]
        model.ffn[1].keys[3].copy_(model.ffn[0].keys[5] * gains[0] / gains[1])
        model.ffn[1].values[3].copy_(model.ffn[0].values[5])
        model.ffn[0].keys[9].zero_()
        model.ffn[0].values[7].copy_(-folded_keys(model, 0)[7])
    found = fm.neurons.geometry(model)
    assert found.duplicates is not None
    pairs = found.duplicates[["by", "layer", "neuron", "other_layer", "other_neuron"]].to_numpy().tolist()
    assert pairs == [[by, 0, 5, 1, 3] for by in ("key", "value", "both")]
    assert [found.duplicate_total(by) for by in ("key", "value", "both")] == [1, 1, 1]
    assert found.layers["key_zero"].tolist() == [1, 0]
    dead = found.neurons.loc[9]
    assert (dead["key_norm"], dead["key_capacity"]) == (0.0, 0.0)
    assert np.isnan(dead["key_interference"])
    assert np.isnan(dead["io_cosine"])
    assert np.isfinite(dead["value_interference"])
    assert found.neurons.loc[7, "io_cosine"] == pytest.approx(-1.0, abs=1e-6)
    assert found.layers.loc[0, "io_weakening"] >= 1 / 63
    assert "1 duplicate pairs" in repr(found)
    with torch.no_grad():  # of one living key there is no pair, so there is no overlap to tell
        model.ffn[1].keys[1:] = 0
    found = fm.neurons.geometry(model, threshold=None)
    row = found.layers.loc[1]
    assert row[["key_zero", "key_max_neuron", "key_max_other"]].tolist() == [63, -1, -1]
    assert row[["key_cosine_rms", "key_matched_rms", "key_isotropic_max"]].isna().all()
    assert row[["key_capacity_sum", "key_capacity_q5", "key_features"]].tolist() == pytest.approx([1, 1, 1])
    assert found.sheet().blocks[0].rows[2][-1] == ""


def test_turning_key_and_value_round_changes_no_geometry(gated: fm.Model, turned: fm.Model) -> None:
    """Which is the same neuron; only the sign of its gate's cosines is another."""
    one, other = (fm.neurons.geometry(model, threshold=0.5) for model in (gated, turned))
    flips = np.where(np.arange(128) % 2 == 0, -1.0, 1.0)
    assert one.neurons["read_write"].equals(other.neurons["read_write"])
    for name in one.neurons.drop(columns="read_write"):
        expected = one.neurons[name] * (flips if name in ("gate_io_cosine", "gate_key_cosine") else 1.0)
        assert allclose(other.neurons[name], expected, 1e-5)
    assert one.duplicate_total("gate") == other.duplicate_total("gate") > 0
    assert one.duplicate_total("both") == other.duplicate_total("both")


def test_options_and_progress(tiny: fm.Model, found: Geometry) -> None:
    """A null that depends on which other layers were asked for could not be repeated."""
    alone = fm.neurons.geometry(tiny, layers=-1, threshold=None)
    pd.testing.assert_frame_equal(alone.layers, found.layers.iloc[[1]].reset_index(drop=True))
    assert (alone.duplicates, alone.duplicate_counts, alone.duplicate_total("key")) == (None, None, 0)
    steps: list[tuple[str, int, int]] = []
    other = fm.neurons.geometry(tiny, seed=4, threshold=0.8, limit=7, progress=lambda *step: steps.append(step))
    settings = other.provenance.to_dict()
    assert (settings["seed"], settings["threshold"], settings["limit"]) == (4, 0.8, 7)
    assert steps == [("geometry", 1, 2), ("geometry", 2, 2), *[("duplicates", done, 3) for done in (1, 2, 3)]]


# -- read–write classes, and what is shown ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_classes_are_those_of_roles(kind: str, tokenizer: Any) -> None:
    """Counts by layer of the neurons' own classes; the gains of norms folded in, in both."""
    model = made(kind, tokenizer)
    with torch.no_grad():
        for block in model.layout.blocks:
            block.norm.weight.mul_(torch.linspace(0.2, 3.0, 16))
    found = fm.neurons.geometry(model, threshold=None, strengthening=0.3, weakening=-0.3)
    assert found.neurons["read_write"].tolist() == fm.roles(model, io=0.3)["read_write"].tolist()
    counts = found.neurons.groupby("layer")["read_write"].value_counts()
    for row in found.classes.itertuples():
        assert (row.neurons, row.share) == (counts.get((row.layer, row.read_write), 0), row.neurons / 64)
    [table] = [block for block in found.sheet().blocks if getattr(block, "title", "").startswith("read–write")]
    wide = found.classes.pivot(index="layer", columns="read_write", values="neurons")
    names = ["strengthening", read_write.ORTHOGONAL, "weakening"]
    if model.gated:
        names[1:1] = ["conditional strengthening", "proportional change"]
        names[4:4] = ["conditional weakening"]
        wide["rare"], rare = wide.filter(like="atypical").sum(axis=1), wide.filter(like="atypical").sum()
        names += ["rare"]
        assert all(f"{n:,} {name.removeprefix('atypical ')}" in table.caption for name, n in rare.items() if n)
    for line, expected in zip(table.rows, [*wide[names].to_numpy(), wide[names].sum()], strict=True):
        assert [number or 0 for number in line[1:]] == list(expected)
    assert [line[0] for line in table.rows] == ["0", "1", "all"]
    assert "of different neurons" in table.caption


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_sheet(name: str, tokenizer: Any) -> None:
    """Numbers of another side, layer or null; a column without its like; near-duplicates beyond those asked for."""
    found = fm.neurons.geometry(made(name, tokenizer), threshold=0.5)
    overlap, space, *cosine, _, duplicates = found.sheet(2).blocks[:-1]
    layers = found.layers.to_dict("records")
    for at, (line, used) in enumerate(zip(overlap.rows, space.rows, strict=True)):
        layer, place = divmod(at, len(found.sides))
        side = found.sides[place]
        row = {key.removeprefix(f"{side}_"): value for key, value in layers[layer].items()}
        assert line[:2] == used[:2] == (None if place else layer, f"{side}s")
        assert line[2:6] == tuple(row[name] for name in ("cosine_rms", "cosine_q999", "matched_q999", "cosine_max"))
        assert line[6:] == (abs(row["matched_max"]), f"{row['max_neuron']}, {row['max_other']}")
        ranks = ("entropy_rank", "isotropic_entropy_rank", "capacity_q50", "isotropic_capacity_q50")
        assert used[2:] == tuple(row[name] for name in (*ranks, "features_per_dimension"))
    for table, alignment in zip(cosine, found.alignments, strict=True):
        row = {key.removeprefix(f"{alignment}_"): value for key, value in layers[1].items()}
        assert table.title.endswith(ALIGNED[alignment])
        assert table.rows[1][:4] == (1, row["q50"], row["q5"], row["q95"])
        assert table.rows[1][5:] == (row["beyond"], row["strengthening"], row["weakening"])
    assert found.duplicates is not None
    assert len(duplicates.rows) == (found.duplicates["rank"] <= 2).sum() < len(found.duplicates)
    assert all(f"{found.duplicate_total(by):,} by {by}" in duplicates.title for by in found.kinds)
    best = found.duplicates.iloc[0]
    ends = (best["layer"], best["neuron"]), (best["other_layer"], best["other_neuron"])
    assert duplicates.rows[0][2:] == (*ends, *(best[f"{side}_cosine"] for side in found.sides))
    json.dumps(found.to_dict(), allow_nan=False)
    alone = replace(found, duplicates=None, duplicate_counts=None, threshold=None)
    assert "near-duplicates" not in "".join(printed(alone.sheet()))
    none = " ".join(printed(replace(found, duplicates=found.duplicates.iloc[:0]).sheet()))
    assert "with a cosine above 0.5" in none  # an empty table would leave open whether they were sought


# -- near-duplicates ---------------------------------------------------------------------------------------------------

Rows = dict[tuple[str, int], Tensor]
PAIR = ["layer", "neuron", "other_layer", "other_neuron"]
THREE = (*SIDES, "gate")


def layers_of(n_layers: int, n: int, d: int, seed: int, clusters: int, sides: tuple[str, ...]) -> Rows:
    """Unit rows around centres that all layers share, so that pairs are of every closeness; gated ones turned round."""
    generator = torch.Generator().manual_seed(seed)
    found: Rows = {}
    of = [torch.randint(0, clusters, (n + layer,), generator=generator) for layer in range(n_layers)]
    for side in sides:
        centres = torch.randn(clusters, d, generator=generator)
        for layer in range(n_layers):
            own = of[layer] if len(sides) > 2 else torch.randint(0, clusters, (n + layer,), generator=generator)
            spread = torch.rand(n + layer, 1, generator=generator)
            found[side, layer] = unit_rows(centres[own] + spread * torch.randn(n + layer, d, generator=generator))
            if len(sides) > 2 and side != "gate":
                found[side, layer][::2] *= -1
            found[side, layer][3] = 0.0  # nothing is like nothing
    return found


def naive_pairs(rows: Rows, n_layers: int, threshold: float, sides: tuple[str, ...]) -> pd.DataFrame:
    """Every pair above the threshold, from whole matrices in float64."""
    owners = [(layer, neuron) for layer in range(n_layers) for neuron in range(len(rows["key", layer]))]
    whole = {side: torch.cat([rows[side, layer] for layer in range(n_layers)]).double() for side in sides}
    cosines = {side: (matrix @ matrix.T).numpy() for side, matrix in whole.items()}
    cosines["both"] = np.minimum(cosines["key"], cosines["value"])
    if "gate" in cosines:
        opposite = -np.maximum(cosines["key"], cosines["value"])
        cosines["both"] = np.minimum(np.maximum(cosines["both"], opposite), cosines["gate"])
    found = []
    for by in kinds(sides):
        for one, other in zip(*np.nonzero(np.triu(cosines[by] > threshold, 1)), strict=True):
            pair = [cosines[side][one, other] for side in sides]
            found.append((by, *owners[one], *owners[other], *pair, cosines[by][one, other]))
    return pd.DataFrame(found, columns=["by", *PAIR, *(f"{side}_cosine" for side in sides), "score"])


@given(
    seed=st.integers(0, 999),
    threshold=st.sampled_from([0.3, 0.6, 0.8, 0.9, 0.95]),
    block=st.integers(1, 40),
    clusters=st.sampled_from([1, 4, 30]),
    d=st.sampled_from([3, 24]),
    sides=st.sampled_from([SIDES, THREE]),
    limit=st.sampled_from([5, 10**4]),
)
@settings(max_examples=15)
def test_duplicates_equal_all_pairs(
    seed: int, threshold: float, block: int, clusters: int, d: int, sides: tuple[str, ...], limit: int
) -> None:
    """None missed, none twice, none with itself, whatever block and screen; the best are kept, and all counted."""
    rows = layers_of(3, 13, d, seed, clusters, sides)
    found = find_duplicates(lambda s, at: rows[s, at], range(3), threshold, limit, block=block, sides=sides)
    expected = naive_pairs(rows, 3, threshold - 1e-5, sides)  # float32 may see those nearest to it on either side
    sure = expected[expected["score"] > threshold + 1e-5]
    joined = found.pairs.merge(expected, on=["by", *PAIR], suffixes=("", "_expected"))
    assert len(joined) == len(found.pairs) == len(found.pairs[["by", *PAIR]].drop_duplicates())
    for side in sides:
        assert np.allclose(joined[f"{side}_cosine"], joined[f"{side}_cosine_expected"], atol=1e-6)
    for by in kinds(sides):
        kept, every = joined[joined["by"] == by], found.counts.loc[found.counts["by"] == by, "pairs"].sum()
        assert (sure["by"] == by).sum() <= every <= (expected["by"] == by).sum()
        assert kept["rank"].tolist() == list(range(1, min(limit, every) + 1))
        best = expected[expected["by"] == by]["score"].nlargest(len(kept))
        assert np.allclose(kept["score"], best, atol=2e-5)
    apart = sure[sure["layer"] != sure["other_layer"]].groupby(["layer", "other_layer"]).size()
    counted = found.counts.groupby(["layer", "other_layer"])["pairs"].sum()
    assert all(counted[at] >= number for at, number in apart.items())


def test_the_screen_bounds_every_cosine_and_spares_unrelated_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else pairs are missed, or the search is slow; where it lets most through, rows would be multiplied twice."""
    generator = torch.Generator().manual_seed(3)
    some = torch.randn(300, 64, generator=generator) / torch.arange(1, 65).sqrt()
    rows = unit_rows(torch.cat([some, some[:9] + 0.1 * some[9:18]]))
    for threshold in (0.9, 0.97):
        few = Screen(lambda layer: rows, [0], threshold).rows(rows)
        assert few.shape[1] < 64
        assert bool((few @ few.T >= rows @ rows.T - 1e-6).all())
    crowded = unit_rows(torch.randn(600, 64, generator=generator) + 1.0)
    assert Screen(lambda layer: crowded, [0], 0.5).basis is None
    assert Screen(lambda layer: crowded, [0], 0.95).basis is not None
    unrelated = {side: unit_rows(torch.randn(600, 512, generator=generator)) for side in SIDES}
    multiplied: list[int] = []
    whole = module.multiply_rows

    def counting(one: Tensor, other: Tensor, chosen: Tensor, same: bool) -> Tensor:
        multiplied.append(len(chosen))
        return whole(one, other, chosen, same)

    monkeypatch.setattr(module, "multiply_rows", counting)
    found = find_duplicates(lambda side, layer: unrelated[side], [0], 0.9, 10)
    assert (len(found.pairs), len(found.counts)) == (0, 0)
    assert list(found.pairs.columns) == ["by", "rank", *PAIR, "key_cosine", "value_cosine"]
    assert sum(multiplied) < 0.02 * 2 * 600


# -- read–write classes: each by hand, their symmetry, their chance ---------------------------------------------------

Triple = tuple[float, float, float]

# cos(k, v), cos(g, v), cos(g, k), as the paper's table has them
BY_HAND = {
    "strengthening": (0.9, 0.8, 0.7),
    "atypical strengthening": (0.6, 0.6, 0.1),
    "conditional strengthening": (0.9, 0.1, 0.2),
    "atypical conditional strengthening": (0.6, 0.2, 0.8),
    "proportional change": (0.1, 0.9, -0.2),
    "atypical proportional change": (0.3, 0.6, 0.8),
    "orthogonal output": (0.1, -0.2, 0.9),
    "weakening": (-0.9, -0.8, 0.7),
    "atypical weakening": (-0.6, 0.6, 0.1),
    "conditional weakening": (-0.9, 0.1, 0.2),
    "atypical conditional weakening": (-0.6, 0.2, -0.8),
}


def classed(*triples: Triple, along: float = 0.5, against: float = -0.5) -> list[str]:
    columns = (np.array(column) for column in zip(*triples, strict=True))
    return list(read_write.read_write_classes(dict(zip(COSINES, columns, strict=True)), along, against))


def vectors(triple: Triple) -> dict[str, torch.Tensor]:
    """A key, a value and a gate with these cosines, and lengths that must not matter."""
    io, gate_io, gate_key = triple
    along = (gate_key - io * gate_io) / np.sqrt(1 - io**2)
    gate = (gate_io, along, np.sqrt(max(1 - gate_io**2 - along**2, 0.0)))
    rows = {"value": (3.0, 0.0, 0.0), "key": (2 * io, 2 * np.sqrt(1 - io**2), 0.0), "gate": tuple(5 * x for x in gate)}
    return {side: torch.tensor([row], dtype=torch.float64) for side, row in rows.items()}


@pytest.mark.parametrize("name", BY_HAND)
def test_each_class_made_by_hand(name: str) -> None:
    """A neuron of which a side points nowhere has none."""
    sides = vectors(BY_HAND[name])
    own = read_write.neuron_cosines(sides)
    assert [float(own[cosine][0]) for cosine in COSINES] == pytest.approx(BY_HAND[name])
    assert list(read_write.read_write_classes(own)) == [name]
    for side in sides:
        nowhere = read_write.neuron_cosines({**sides, side: torch.zeros(1, 3, dtype=torch.float64)})
        assert list(read_write.read_write_classes(nowhere)) == [read_write.UNCLASSED]


def test_eleven_classes_and_no_other() -> None:
    """Every combination of levels is in one of them, and each is reached; the threshold itself is not beyond it."""
    levels = (-0.9, 0.0, 0.9)
    found = classed(*product(levels, levels, levels))
    assert set(found) == set(read_write.KINDS.values()) == set(BY_HAND) == set(read_write.known_classes(gated=True))
    assert classed((0.5, -0.5, 0.9), (-0.5, 0.5, 0.9)) == [read_write.ORTHOGONAL] * 2
    assert classed((0.6, 0.0, 0.0), along=0.7) == [read_write.ORTHOGONAL]
    expected = [
        "strengthening",
        read_write.ORTHOGONAL,
        read_write.ORTHOGONAL,
        read_write.ORTHOGONAL,
        "weakening",
        read_write.UNCLASSED,
    ]
    assert list(read_write.read_write_classes({"io": np.array([0.6, 0.5, 0.0, -0.5, -0.6, np.nan])})) == expected
    assert read_write.known_classes(gated=False) == ["strengthening", read_write.ORTHOGONAL, "weakening"]


@given(n=st.integers(1, 40), count=st.integers(0, 12), seed=st.integers(0, 99))
def test_derangements(n: int, count: int, seed: int) -> None:
    """A neuron paired with itself would bring the truth into its null."""
    found = read_write.derangements(n, count, [seed])
    assert found.shape == (min(count, n - 1), n)
    assert all(sorted(permutation) == list(range(n)) for permutation in found)
    assert all(len({*column, neuron}) == len(found) + 1 for neuron, column in enumerate(found.T))


def test_chance_takes_neurons_apart() -> None:
    """Each along an axis of its own: nothing is left; all along one direction: all of it; of too few, no number."""
    for rows, expected in ((torch.eye(20), 0.0), (torch.ones(20, 4), 1.0), (torch.eye(2), np.nan)):
        sides = {side: rows.double() for side in ("key", "value", "gate")}
        own = read_write.read_write_classes(read_write.neuron_cosines(sides))
        counts = read_write.class_counts(own, sides, 0.5, -0.5, [0])
        assert counts["read_write"].tolist() == list(read_write.KINDS.values())
        np.testing.assert_equal(counts.iloc[0].tolist(), ["strengthening", len(rows), 1.0, expected])
        assert counts["neurons"].sum() == len(rows)
        shown = read_write.class_table(counts.assign(layer=0), 0.5, -0.5).caption
        assert ("of different neurons 100.0%" in shown, "different neurons" in shown) == (expected == 1, expected >= 0)
