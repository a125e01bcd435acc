"""Roles by layer: the tables are those of ``roles``, and the figures draw them."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure as Canvas

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.neurons.role_assignment import ROLES
from ffnmem.scanning import Store
from ffnmem.studies import Study, gurnee2024
from ffnmem.studies.gurnee2024 import (
    EXAMPLES,
    GATE_STATISTICS,
    QUANTILES,
    STATISTICS,
    draw_norm_variance,
    draw_signs,
    ends,
    sign_table,
    spelled,
)

from ..helpers import allclose, refuses

LOOSE: dict[str, Any] = {"kurtosis": 2.7, "io": 0.3, "n_sequences": None}
"""Thresholds that neurons of a random model pass."""


@pytest.fixture(scope="module")
def found(tiny: fm.Model, tiny_store: Store) -> Study:
    return gurnee2024.study(tiny, tiny_store, **LOOSE)


@pytest.fixture(scope="module")
def frame(tiny: fm.Model, tiny_store: Store) -> pd.DataFrame:
    return fm.roles(tiny, tiny_store, **LOOSE)


def test_summary_counts_every_role_that_applies(found: Study, frame: pd.DataFrame) -> None:
    summary = found.table("summary").set_index("layer")
    assert summary["neurons"].tolist() == [64, 64]
    for role in ROLES:
        assert summary[role.name].tolist() == frame.groupby("layer")[role.column].sum().tolist()
    assert summary["prediction"].sum() > 0
    assert summary["weakening"].sum() > 0


def test_signs_are_of_the_peaked_neurons(found: Study, frame: pd.DataFrame) -> None:
    for row in found.table("signs").to_dict("records"):
        part = frame[frame["layer"] == row["layer"]]
        high = part[part["cosine_kurtosis"] > LOOSE["kurtosis"]]
        assert row["peaked"] == len(high) == row["prediction"] + row["suppression"]
        assert row["suppression_share"] == pytest.approx((high["cosine_skew"] < 0).mean())
        assert row["share_low"] < row["suppression_share"] < row["share_high"]


def test_statistics_are_quantiles(found: Study, frame: pd.DataFrame) -> None:
    rows = found.table("statistics").set_index(["layer", "statistic"])
    for layer in range(2):
        part = frame[frame["layer"] == layer]["null_share"]
        assert rows.loc[(layer, "null_share"), "mean"] == pytest.approx(part.mean())
        found_quantiles = rows.loc[(layer, "null_share"), [f"q{100 * q:g}" for q in QUANTILES]]
        assert allclose(found_quantiles.to_numpy(float), part.quantile(list(QUANTILES)).to_numpy(), 1e-9)


def test_strongest_are_the_clearest_with_their_tokens(found: Study, frame: pd.DataFrame, tiny: fm.Model) -> None:
    strongest = found.table("strongest")
    assert strongest.groupby("role").size().max() <= EXAMPLES
    part = strongest[strongest["role"] == "prediction"]
    clearest = frame[frame["is_prediction"]]["cosine_kurtosis"].abs().sort_values(ascending=False)
    assert allclose(part["value"].abs().to_numpy(), clearest.head(EXAMPLES).to_numpy(), 1e-9)
    row = part.iloc[0]
    expected = fm.project(tiny, int(row["layer"]), int(row["neuron"]), k=8, side="value")
    for sign in ("promoted", "suppressed"):
        assert row[sign] == spelled(expected[expected["sign"] == sign]["token"])


def test_neurons_are_all_and_hold_no_lists(found: Study, frame: pd.DataFrame) -> None:
    """A cell of a CSV is one text."""
    neurons = found.table("neurons")
    assert neurons["role"].tolist() == frame["role"].tolist()
    for table in found.tables:
        assert not table.frame.map(lambda cell: isinstance(cell, list)).any(axis=None)


def test_figures_are_drawn_and_settings_are_complete(found: Study, tiny: fm.Model, tiny_store: Store) -> None:
    names = [figure.name for figure in found.figures]
    assert names == ["roles", "kurtosis", "skew", "variance", "signs", "norm_variance"]
    for figure in found.figures:
        ax = Canvas().add_subplot()
        assert figure.draw(ax) is ax
        assert ax.get_title(loc="left")
    for name, value in {**LOOSE, "seed": 0, "partition": 0.005, "basis": "folded", "coverage": 0.95}.items():
        assert found.settings[name] == value
    assert found.settings["tokens_read"] == tiny_store.n_tokens
    assert {"partition_null", "frequency_null"} <= set(found.settings)
    assert found.provenance["fingerprint"] == tiny.fingerprint
    assert {"prediction and suppression", "partition"} <= set(found.published)


def test_the_variances_line_is_the_threshold_that_decides(found: Study) -> None:
    ax = found.plot("variance", Canvas().add_subplot())
    assert ax.lines[-1].get_ydata()[0] == max(0.005, found.settings["partition_null"])  # type: ignore[index]


def test_signs_go_up_and_down() -> None:
    signs = pd.DataFrame({"layer": [0, 1], "peaked": [3, 5], "prediction": [3, 1], "suppression": [0, 4]})
    ax = draw_signs(signs, Canvas().add_subplot())
    assert [[bar.get_height() for bar in c] for c in ax.containers] == [[3, 1], [0, -4]]
    assert "8 neurons" in ax.get_title(loc="left")
    empty = draw_signs(signs.assign(peaked=0, prediction=0, suppression=0), Canvas().add_subplot())
    assert "no neuron" in empty.texts[0].get_text()


def test_entropy_neurons_are_marked() -> None:
    frame = pd.DataFrame(
        {
            "layer": [0, 1, 1, 1],
            "value_norm": [9.0, 1.0, 2.0, 3.0],
            "cosine_variance": [0.9, 0.1, 0.2, 0.01],
            "is_entropy": [False, False, False, True],
        }
    )
    ax = draw_norm_variance(frame, 1, Canvas().add_subplot())
    plain, marked = (collection.get_offsets() for collection in ax.collections)
    assert plain.tolist() == [[1.0, 0.1], [2.0, 0.2]]  # type: ignore[union-attr]
    assert marked.tolist() == [[3.0, 0.01]]  # type: ignore[union-attr]
    assert "1 of 3" in ax.get_title(loc="left")


def test_ends_and_spelling(tiny: fm.Model) -> None:
    rows = pd.DataFrame({"layer": [0, 0], "neuron": [3, 3]})
    found = ends(tiny, rows, 2)
    assert set(found) == {(0, 3, "promoted"), (0, 3, "suppressed")}
    assert all(len(tokens) == 2 for tokens in found.values())
    assert spelled([" Paris", "\n"]) == "·Paris  ↵"


def test_no_peaked_neuron_is_no_error(tiny: fm.Model) -> None:
    signs = sign_table(fm.roles(tiny), 10.0)
    assert signs["peaked"].tolist() == [0, 0]
    assert signs["suppression_share"].isna().all()


def test_refusals(tiny_store: Store, atlas: fm.Model, tiny: fm.Model) -> None:
    with refuses(InputError, ValueError, atlas.fingerprint):
        gurnee2024.study(atlas, tiny_store)
    with refuses(InputError, ValueError, "basis", "'flat'"):
        gurnee2024.study(tiny, tiny_store, basis="flat")


def test_gated_models(gated: fm.Model, gated_store: Store, turned: fm.Model, turned_store: Store) -> None:
    """The gate's cosines among the statistics; prediction and suppression whichever way a neuron is written."""
    one, other = (gurnee2024.study(*pair, **LOOSE) for pair in ((gated, gated_store), (turned, turned_store)))
    assert set(one.table("statistics")["statistic"]) == {*STATISTICS, *GATE_STATISTICS}
    for name in ("summary", "signs"):
        pd.testing.assert_frame_equal(one.table(name), other.table(name))
    assert one.table("summary")[["prediction", "suppression"]].sum().min() > 0
    for figure in one.figures:
        assert figure.draw(Canvas().add_subplot()).get_title(loc="left")
