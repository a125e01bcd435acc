"""The figures show the numbers of their tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

import ffnmem as fm
from ffnmem.scanning import Store
from ffnmem.studies import Study, geva2021
from ffnmem.studies import figures as plots

from ..helpers import draw_whole

PLOTS = {
    plots.plot_changes: "changes",
    plots.plot_agreement: "agreement",
    plots.plot_ranks: "agreement",
    plots.plot_active: "composition",
    plots.plot_zero_agreement: "composition",
    plots.plot_match: "refinement",
    plots.plot_probability: "refinement",
    plots.plot_cases: "refinement",
    plots.plot_updates: "updates",
}


@pytest.fixture(scope="module")
def found(tiny: fm.Model, tiny_store: Store) -> Study:
    return geva2021.study(tiny, tiny_store, keys=5, prefixes=3, n_sequences=12, updates=4)


@pytest.mark.parametrize("draw", PLOTS, ids=lambda draw: draw.__name__)
def test_axes(draw: Any, found: Study) -> None:
    """The Axes given are drawn on; each names its layers, its unit and its series."""
    axes = Canvas().add_subplot()
    assert draw(found.table(PLOTS[draw]), axes) is axes
    assert axes.get_title(loc="left")
    assert axes.get_xlabel() == "layer"
    assert axes.get_ylabel()
    assert [int(tick) for tick in axes.get_xticks()] == [0, 1]
    draw_whole(axes)


def blank() -> Axes:
    return Canvas().add_subplot()


def heights(ax: Axes) -> list[float]:
    return [float(bar.get_height()) for bar in ax.patches]


def test_changes_are_the_tables(found: Study) -> None:
    frame = found.table("changes")
    ax = plots.plot_changes(frame, blank())
    drawn = [container.lines[0].get_ydata() for container in ax.containers]
    for values, name in zip(drawn, ("first", "random", "last"), strict=True):
        assert values == pytest.approx(frame.loc[frame["removed"] == name, "change"].to_numpy())


def test_bars_are_the_tables(found: Study) -> None:
    frame = found.table("refinement")
    assert heights(plots.plot_match(frame, blank())) == pytest.approx(frame["match"].tolist())
    composition = found.table("composition")
    both = [*composition["zero_agreement"], *composition["zero_agreement_active"]]
    assert heights(plots.plot_zero_agreement(composition, blank())) == pytest.approx(both)


def test_cases_fill_the_whole(found: Study) -> None:
    ax = plots.plot_cases(found.table("refinement"), blank())
    for layer in range(2):
        mine = [bar for bar in ax.patches if round(bar.get_x() + bar.get_width() / 2) == layer]
        assert sum(bar.get_height() for bar in mine) == pytest.approx(1)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["residual", "agreement", "composition", "ffn"]


def test_updates_have_a_line_for_each_share_and_measure(found: Study) -> None:
    ax = plots.plot_updates(found.table("updates"), blank())
    assert len(ax.lines) == 7  # and one of the random order
    table = found.table("updates")
    random = table[(table["measure"] == "random") & (table["share"] == 0.5)]
    assert ax.lines[-1].get_ydata().tolist() == random["needed_50"].tolist()
    assert ax.get_yscale() == "log"


def test_whiskers() -> None:
    """Unknown ends have none; an interval never points the wrong way."""
    frame = pd.DataFrame({"a": [1.0, 2.0], "low": [0.5, np.nan], "high": [1.25, np.nan]})
    assert plots.whiskers(frame, "a", "low", "high").tolist() == [[0.5, 0.0], [0.25, 0.0]]


def test_many_layers_are_not_all_named() -> None:
    frame = pd.DataFrame({"layer": range(60), "match": 0.5, "match_low": 0.4, "match_high": 0.6})
    assert len(plots.plot_match(frame, blank()).get_xticks()) <= 30


def test_ticks_are_of_layers_not_of_rows() -> None:
    """A table with 18 rows a layer names each of its 12 layers, once."""
    ax = Canvas().add_subplot()
    plots.layer_axis(ax, pd.Series(np.repeat(np.arange(12), 18)))
    assert ax.get_xticks().tolist() == list(range(12))
