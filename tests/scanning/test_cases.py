"""Sign cases: names, and gated stores against looking at every position with ``fm.capture``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.core.types import CASES
from ffnmem.scanning.state import COLUMNS, case_names
from ffnmem.scanning.statistics import GATE_STATS, STATS

from ..helpers import allclose, refuses
from .corpora import SMALL
from .gated import CORPUS, GATED, Everywhere, gated_store, load_gated, look_everywhere

NEURONS = [0, 17, 63]


@pytest.fixture(scope="module", params=GATED)
def model(request: pytest.FixtureRequest) -> fm.Model:
    return load_gated(request.param)


@pytest.fixture(scope="module")
def store(model: fm.Model, tmp_path_factory: pytest.TempPathFactory) -> fm.scanning.Store:
    return fm.scan(model, CORPUS, tmp_path_factory.mktemp("gated") / "store", **SMALL)


@pytest.fixture(scope="module")
def everywhere(model: fm.Model) -> Everywhere:
    return look_everywhere(model, 1)


def test_names_say_the_signs_and_zero_is_not_above() -> None:
    gate, linear = np.array([1.0, 1.0, 0.0, -0.0]), np.array([2.0, 0.0, 1e-30, -3.0])
    assert case_names(gate, linear) == list(CASES)


# -- known answers ---------------------------------------------------------------------------------------------------


def test_counts_and_means_of_each_case(store: fm.scanning.Store, everywhere: Everywhere) -> None:
    """A position in the wrong case; shares that do not sum to 1."""
    stats = store.stats(1)
    assert list(stats.columns) == ["layer", "neuron", *STATS, *GATE_STATS]
    for index, column in enumerate(COLUMNS):
        inside = everywhere.case(index)
        assert allclose(stats[f"share_{column}"], inside.mean(0), 1e-9)
        with np.errstate(invalid="ignore"):
            mean = np.where(inside, everywhere.coefficient, 0.0).astype(np.float64).sum(0) / inside.sum(0)
        known = inside.any(0)
        assert (stats[f"mean_{column}"].isna().to_numpy() == ~known).all()
        assert allclose(stats[f"mean_{column}"].to_numpy()[known], mean[known], 1e-6)
    assert allclose(stats[[f"share_{column}" for column in COLUMNS]].sum(axis=1), np.ones(64), 1e-12)
    counts = store.state.array("1.counts")[2:]
    assert (counts.sum(0) == store.n_tokens).all()
    assert allclose(stats["firing_rate"], counts[:2].sum(0) / store.n_tokens, 1e-12)


def test_moments_of_the_linear_part(store: fm.scanning.Store, everywhere: Everywhere) -> None:
    stats, linear = store.stats(1), everywhere.linear.astype(np.float64)
    centred, std = linear - linear.mean(0), linear.std(0)
    expected = {
        "mean": linear.mean(0),
        "std": std,
        "skewness": (centred**3).mean(0) / std**3,
        "kurtosis": (centred**4).mean(0) / std**4 - 3,
        "min": linear.min(0),
        "max": linear.max(0),
    }
    for name, values in expected.items():
        assert allclose(stats[f"linear_{name}"], values, 1e-4)


def test_every_example_has_its_gate_and_linear_part(store: fm.scanning.Store, everywhere: Everywhere) -> None:
    """Another position's numbers beside a context, of whatever kind of example."""
    places = {place: i for i, place in enumerate(zip(everywhere.sequence, everywhere.position, strict=True))}
    for neuron in NEURONS:
        frame = store.examples(1, neuron)
        assert set(frame["kind"]) == {"top", "bottom", "quantile", "random", *CASES}
        at = [places[place] for place in zip(frame["sequence"], frame["position"], strict=True)]
        assert allclose(frame["coefficient"], everywhere.coefficient[at, neuron], 1e-5)
        assert allclose(frame["gate"], everywhere.gate[at, neuron], 1e-5)
        assert allclose(frame["linear"], everywhere.linear[at, neuron], 1e-5)
        assert frame["case"].tolist() == case_names(frame["gate"].to_numpy(), frame["linear"].to_numpy())


def test_after_a_bfloat16_pass_examples_are_exact(tmp_path: Path) -> None:
    """Gate and linear part of the half-precision pass would be shown as exact, or in another case than theirs."""
    half = gated_store("gemma2", tmp_path / "half", dtype="bfloat16")
    full = gated_store("gemma2", tmp_path / "full")
    agree = total = 0
    for neuron in NEURONS:
        a, b = half.examples(1, neuron), full.examples(1, neuron)
        for kind in CASES:
            mine, theirs = (frame[frame["kind"] == kind].set_index("sequence") for frame in (a, b))
            assert (mine["case"] == kind).all()
            assert (mine["coefficient"].abs().diff().dropna() <= 0).all()
            both = mine.index.intersection(theirs.index)
            agree, total = agree + len(both), total + len(theirs)
            for name in ("coefficient", "gate", "linear", "position"):
                assert allclose(mine.loc[both, name], theirs.loc[both, name], 1e-5)
        mine, theirs = (frame[frame["kind"].isin(["quantile", "random"])] for frame in (a, b))
        for name in ("gate", "linear"):
            assert allclose(mine[name], theirs[name], 1e-5)
    assert agree >= 0.9 * total


def test_a_classic_store_has_nothing_of_it(tiny_store: fm.scanning.Store) -> None:
    assert not tiny_store.gated
    assert list(tiny_store.stats().columns) == ["layer", "neuron", *STATS]
    assert not {"gate", "linear", "case"} & set(tiny_store.examples(0, 0).columns)
    assert set(tiny_store.values(0, 0)["side"]) == {"value"}
    assert tiny_store.neuron(0, 0).cases == ()
    with refuses(InputError, ValueError, CASES[0], "gated"):
        tiny_store.examples(0, 0, kind=CASES[0])


def test_other_kinds_are_refused(store: fm.scanning.Store) -> None:
    with refuses(InputError, ValueError, "kind 'best'", *CASES):
        store.examples(0, 0, kind="best")
