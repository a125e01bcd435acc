"""Roles by layer: the tables are those of ``roles``, and the figures draw them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure as Canvas

import ffnmem as fm
from ffnmem.neurons.role_assignment import ROLES
from ffnmem.scanning import Store
from ffnmem.studies import Study, gurnee2024

from ..helpers import allclose
from .made import SMALL

LOOSE = SMALL["gurnee2024"]


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
    signs = found.table("signs")
    upper, below = (f"{n / signs['peaked'].sum():.1%}" for n in (signs["peaked"][1], signs["suppression"].sum()))
    last = f"{signs['suppression_share'][1]:.1%}"
    assert found.found["by layer"] == f"{upper} in the upper half; suppress: {below} of all, {last} in the last layer"


def test_statistics_are_quantiles(found: Study, frame: pd.DataFrame) -> None:
    rows = found.table("statistics").set_index(["layer", "statistic"])
    for layer in range(2):
        part = frame[frame["layer"] == layer]["null_share"]
        assert rows.loc[(layer, "null_share"), "mean"] == pytest.approx(part.mean())
        found_quantiles = rows.loc[(layer, "null_share"), [f"q{100 * q:g}" for q in gurnee2024.QUANTILES]]
        assert allclose(found_quantiles.to_numpy(float), part.quantile(list(gurnee2024.QUANTILES)).to_numpy(), 1e-9)


def test_strongest_are_the_clearest_with_their_tokens(found: Study, frame: pd.DataFrame, tiny: fm.Model) -> None:
    strongest = found.table("strongest")
    assert strongest.groupby("role").size().max() <= gurnee2024.EXAMPLES
    part = strongest[strongest["role"] == "prediction"]
    clearest = frame[frame["is_prediction"]]["cosine_kurtosis"].abs().sort_values(ascending=False)
    assert allclose(part["value"].abs().to_numpy(), clearest.head(gurnee2024.EXAMPLES).to_numpy(), 1e-9)
    row = part.iloc[0]
    expected = fm.project(tiny, int(row["layer"]), int(row["neuron"]), k=8, side="value")
    for sign in ("promoted", "suppressed"):
        assert row[sign] == gurnee2024.spelled(expected[expected["sign"] == sign]["token"])


def test_figures_of_variances(found: Study) -> None:
    """The line is the threshold that decides; entropy neurons of the last layer are marked."""
    ax = found.plot("variance", Canvas().add_subplot())
    assert ax.lines[-1].get_ydata()[0] == max(0.005, found.settings["partition_null"])  # type: ignore[index]
    frame = found.table("neurons")
    last, marked = frame["layer"] == 1, (frame["layer"] == 1) & (frame["neuron"] == 7)
    made = replace(found, frames={**found.frames, "neurons": frame.assign(is_entropy=marked)})
    drawn = made.plot("norm_variance", Canvas().add_subplot()).collections
    for collection, rows in zip(drawn, (last & ~marked, marked), strict=True):
        expected = frame.loc[rows, ["value_norm", "cosine_variance"]].to_numpy().tolist()
        assert np.asarray(collection.get_offsets()).tolist() == expected


def test_ends_and_spelling(tiny: fm.Model) -> None:
    rows = pd.DataFrame({"layer": [0, 0], "neuron": [3, 3]})
    found = gurnee2024.ends(tiny, rows, 2)
    assert set(found) == {(0, 3, "promoted"), (0, 3, "suppressed")}
    assert all(len(tokens) == 2 for tokens in found.values())
    assert gurnee2024.spelled([" Paris", "\n"]) == "·Paris  ↵"


def test_no_peaked_neuron_is_no_error(tiny: fm.Model) -> None:
    signs = gurnee2024.sign_table(fm.roles(tiny), 10.0)
    assert signs["peaked"].tolist() == [0, 0]
    assert signs["suppression_share"].isna().all()


def test_gated_models(gated: fm.Model, gated_store: Store, turned: fm.Model, turned_store: Store) -> None:
    """The gate's cosines among the statistics; prediction and suppression whichever way a neuron is written."""
    one, other = (gurnee2024.study(*pair, **LOOSE) for pair in ((gated, gated_store), (turned, turned_store)))
    assert set(one.table("statistics")["statistic"]) == {*gurnee2024.STATISTICS, *gurnee2024.GATE_STATISTICS}
    for name in ("summary", "signs"):
        pd.testing.assert_frame_equal(one.table(name), other.table(name))
    assert one.table("summary")[["prediction", "suppression"]].sum().min() > 0
    for figure in one.figures:
        assert one.plot(figure.name, Canvas().add_subplot()).get_ylabel()
