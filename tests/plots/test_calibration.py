"""Pictures of a calibration draw the numbers of its tables."""

from __future__ import annotations

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.core.types import VERDICTS
from ffnmem.plots.neuron_kinds import VERDICT_COLOURS
from ffnmem.plots.planted import CHANCE, COLOURS, DRAWS, NEEDS, OTHER, STACK

from ..helpers import draw_whole, legend_of, refuses
from ..planted.made import LEVELS, made


def names(ax: Axes) -> list[str]:
    """From the top down."""
    places = np.argsort(-np.array(ax.get_yticks()), kind="stable")
    return [ax.get_yticklabels()[place].get_text() for place in places]


def dots(ax: Axes) -> tuple[list[float], list[tuple[float, float]]]:
    """The dots from the top down, and the ends of their bars."""
    (bars,) = ax.containers
    line, _, (ends,) = bars.lines  # type: ignore[attr-defined]
    segments = sorted((tuple(map(tuple, segment)) for segment in ends.get_segments()), key=lambda s: -s[0][1])
    order = np.argsort(-line.get_ydata())
    return line.get_xdata()[order].tolist(), [(left[0], right[0]) for left, right in segments]


@pytest.mark.parametrize("what", DRAWS)
def test_every_picture(what: str) -> None:
    ax = fm.plots.calibration(made(), what)
    assert ax.get_title(loc="left")
    assert ax.get_xlabel()
    draw_whole(ax)
    mine = plt.figure().add_subplot()
    assert fm.plots.calibration(made(), what, mine) is mine


@pytest.mark.parametrize("score", CHANCE)
def test_curves(score: str) -> None:
    curves = made().curves
    assert curves is not None
    ax = fm.plots.calibration(made(), score)
    *lines, chance = ax.lines
    by_measure = dict(list(curves.groupby("measure", sort=False)))
    assert len(lines) == len(by_measure)
    for line, (name, rows) in zip(lines, by_measure.items(), strict=True):
        assert line.get_color() == COLOURS.get(name, OTHER)
        assert list(line.get_xdata()) == list(LEVELS)
        assert list(line.get_ydata()) == rows[score].tolist()
    assert list(chance.get_ydata()) == [CHANCE[score]] * 2
    assert legend_of(ax) == [*(name for name in by_measure if name in COLOURS), "the others"]
    coloured = [rows for name, rows in by_measure.items() if name in COLOURS]
    assert len(ax.collections) == len(coloured)
    for band, rows in zip(ax.collections, coloured, strict=True):
        heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
        assert heights.min() == pytest.approx(rows[f"{score}_low"].min())
        assert heights.max() == pytest.approx(rows[f"{score}_high"].max())


def test_one_superposition_is_dots() -> None:
    """Lines of one point would stand in one column, without their intervals."""
    curves = made().curves
    assert curves is not None
    rows = curves[curves["superposition"] == 1.0]
    ax = fm.plots.calibration(replace(made(), curves=rows))
    assert names(ax) == rows["measure"].tolist()
    values, ends = dots(ax)
    assert values == rows["auroc"].tolist()
    assert ends == [pytest.approx(pair) for pair in zip(rows["auroc_low"], rows["auroc_high"], strict=True)]
    assert "superposition 1" in ax.get_xlabel()


def test_nulls() -> None:
    rows = made().nulls
    assert rows is not None
    ax = fm.plots.calibration(made(), "nulls")
    assert names(ax) == rows["measure"].tolist()
    values, ends = dots(ax)
    assert values == rows["rate"].tolist()
    assert ends == [pytest.approx(pair) for pair in zip(rows["low"], rows["high"], strict=True)]
    assert list(ax.lines[-1].get_xdata()) == [0.05, 0.05]
    assert ax.get_xlim()[1] >= rows["high"].max()


def test_facts() -> None:
    rows = made().facts
    assert rows is not None
    ax = fm.plots.calibration(made(), "facts")
    assert names(ax) == [f"{m}, {s}" for m, s in zip(rows["measure"], rows["site"], strict=True)]
    assert dots(ax)[0] == rows["first"].tolist()
    rings = ax.lines[-1]
    assert list(rings.get_xdata()) == rows["second"].tolist()
    assert list(rings.get_ydata()) == sorted(rings.get_ydata(), reverse=True)


def test_roles() -> None:
    rows = made().roles
    assert rows is not None
    ax = fm.plots.calibration(made(), "roles")
    assert names(ax) == rows["role"].tolist()
    precision, recall = ax.containers
    for bars, name in ((precision, "precision"), (recall, "recall")):
        assert bars.get_label() == name
        assert [bar.get_width() for bar in bars] == pytest.approx(rows[name].tolist(), nan_ok=True)


def test_verdicts() -> None:
    """Shares of each planted number: every column is full, what is unclear lies between what is clear; a verdict has
    one colour in all figures."""
    rows = made().verdicts
    assert rows is not None
    assert set(STACK) == set(VERDICTS) == set(VERDICT_COLOURS)
    ax = fm.plots.calibration(made(), "verdicts")
    assert [label.get_text() for label in ax.get_xticklabels()] == ["dead", "1", "2", "8"]
    total = rows[list(VERDICTS)].sum(axis=1)
    below = np.zeros(len(rows))
    for bars, name in zip(ax.containers, STACK, strict=True):
        patches = [bar for bar in bars if isinstance(bar, Rectangle)]
        assert bars.get_label() == name
        assert {to_hex(bar.get_facecolor()).upper() for bar in patches} == {VERDICT_COLOURS[name]}
        assert [bar.get_y() for bar in patches] == pytest.approx(below.tolist())
        assert [bar.get_height() for bar in patches] == pytest.approx((rows[name] / total).tolist())
        below += [bar.get_height() for bar in patches]
    assert below.tolist() == pytest.approx([1] * len(rows))
    assert legend_of(ax) == list(STACK)[::-1]


def test_refusals() -> None:
    with refuses(InputError, ValueError, "what", "'size'", "'auroc'"):
        fm.plots.calibration(made(), "size")
    some = fm.planted.Calibration(roles=made().roles)
    with refuses(InputError, ValueError, "curves", "roles"):
        fm.plots.calibration(some)
    assert set(NEEDS) == set(DRAWS)
