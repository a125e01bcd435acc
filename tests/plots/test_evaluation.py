"""Pictures of edits' scores."""

from __future__ import annotations

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.evaluation import Decay, Scores, Sweep
from ffnmem.plots import convergence
from ffnmem.plots import decay as plot_decay
from ffnmem.plots import scores as plot_scores
from ffnmem.plots import sweep as plot_sweep
from ffnmem.plots.evaluation import widened

from ..evaluation.test_scores import made_scores
from ..helpers import allclose, draw_whole, legend_of, refuses


@pytest.fixture(scope="module")
def scores(tiny: fm.Model) -> Scores:
    return made_scores(tiny)


@pytest.fixture(scope="module")
def sweep(scores: Scores) -> Sweep:
    one = Scores(scores.of("rome"), scores.settings, scores.provenance, draws=50)
    return Sweep({0: one, 2: one}, scores.provenance)


@pytest.fixture(scope="module")
def decay(sweep: Sweep) -> Decay:
    frame = sweep.frame.rename(columns={"layer": "edits"}).replace({"edits": {0: 1, 2: 10}})
    return Decay(frame, pd.DataFrame(), "rome", {}, sweep.provenance)


@pytest.fixture
def groups() -> pd.DataFrame:
    rows = [(kind, "last subject", layer, 0.1 * layer) for kind in ("state", "ffn") for layer in range(3)]
    frame = pd.DataFrame(rows, columns=["kind", "group", "layer", "mean"])
    return frame.assign(low=frame["mean"] - 0.01, high=frame["mean"] + 0.01, n=5)


def test_scores(scores: Scores) -> None:
    """A dot of another editor, or of another metric than its label."""
    ax = plot_scores(scores)
    assert legend_of(ax) == ["ES", "PS", "NS", "S"]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["rome", "memit"]
    dots = next(line for line in ax.lines if len(line.get_xdata()) == 2)  # type: ignore[arg-type]
    expected = scores.summary.query("metric == 'ES'")["mean"]
    assert allclose(dots.get_xdata(), expected, 1e-12)
    draw_whole(ax)
    draw_whole(scores.plot(plt.subplots()[1]))


def test_sweep(sweep: Sweep, groups: pd.DataFrame) -> None:
    """Scores at the wrong layers; a trace drawn in the scores' units."""
    ax = plot_sweep(sweep)
    assert ax.get_xlabel() == "layer"
    line = ax.lines[0]
    assert list(np.asarray(line.get_xdata())) == [0, 2]
    assert allclose(line.get_ydata(), sweep.frame.query("metric == 'ES'")["mean"], 1e-12)
    draw_whole(ax)
    both = sweep.plot(groups)
    below = next(other for other in both.get_figure().axes if other is not both)  # type: ignore[union-attr]
    assert legend_of(below) == ["trace: state", "trace: FFN"]
    assert allclose(below.lines[0].get_ydata(), [0.0, 0.1, 0.2], 1e-12)
    assert below.get_position().y1 < both.get_position().y0
    assert (both.get_xlabel(), below.get_xlabel()) == ("", "layer")
    draw_whole(both)


def test_decay(decay: Decay) -> None:
    """Numbers of edits are ten times apart: on a plain axis most would be one dot."""
    ax = plot_decay(decay, metrics=["ES", "NKL"])
    assert ax.get_xscale() == "log"
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["1", "10"]
    assert legend_of(ax) == ["ES", "NKL"]
    draw_whole(ax)
    draw_whole(decay.plot())


def test_decay_draws_what_each_edit_left(decay: Decay) -> None:
    """A panel each, below the scores and of the same x; the collapse in all; none for what does not vary."""
    steps = pd.DataFrame({"edits": range(11), "made": [False] + [True] * 10, "norm": [1.0] * 11})
    steps["loss"] = [2.0] * 7 + [3.5] * 4
    ax = plot_decay(replace(decay, steps=steps))
    below = [other for other in ax.figure.axes if other is not ax]
    assert [other.get_ylabel() for other in below] == ["loss, nats\na token"]
    assert allclose(below[0].lines[0].get_xydata(), steps[["edits", "loss"]].to_numpy()[1:], 1e-12)
    assert below[0].get_xscale() == "log"
    assert below[0].get_position().y1 < ax.get_position().y0
    for panel in (ax, *below):
        assert any(list(line.get_xdata()) == [7, 7] for line in panel.lines)
    assert legend_of(ax)[-1] == "collapsed at 7"
    assert not ax.get_xlabel()
    assert below[0].get_xlabel() == "edits made and kept"
    draw_whole(ax)
    alone = plt.figure().add_axes((0.1, 0.1, 0.8, 0.8))  # in no grid: there is no place below
    assert len(plot_decay(replace(decay, steps=steps), alone).figure.axes) == 1


def lines_of(ax: Axes) -> dict[str, Line2D]:
    return {str(line.get_label()): line for line in ax.lines}


def test_lines_that_coincide_are_both_seen(decay: Decay) -> None:
    """The line drawn last hid all that had the same values; dashes of one must stand in the gaps of the other."""
    values = {"ES": (100.0, 99.9), "PS": (100.0, 100.0), "NS": (60.0, 99.9)}
    rows = [(at, name, y, y, y, 5) for name, ys in values.items() for at, y in zip((1, 10), ys, strict=True)]
    frame = pd.DataFrame(rows, columns=["edits", "metric", "mean", "low", "high", "n"])
    ax = plot_decay(replace(decay, frame=frame))
    es, ps, ns = (lines_of(ax)[name] for name in ("ES", "PS", "NS"))
    assert ns.get_linestyle() == "-"
    assert es.get_linestyle() == ps.get_linestyle() == "--"
    assert es.get_markersize() < ps.get_markersize()
    assert ps.get_markerfacecolor() == "none"
    draw_whole(ax)
    only = plot_decay(replace(decay, frame=frame[frame["edits"] == 10]))
    sizes = [lines_of(only)[name].get_markersize() for name in values]
    assert sizes == sorted(set(sizes))


def test_little_does_not_look_like_much(decay: Decay) -> None:
    """The axes zoomed in on the last bits of what did not change; on what did, they still do."""
    steps = pd.DataFrame({"edits": range(11), "made": [False] + [True] * 10})
    small, large = np.linspace(0, 1e-3, 11), np.linspace(0, 1, 11)
    for grown, least in ((small, 0.1), (large, 1.0)):
        told = steps.assign(loss=4.0 * (1 + grown), norm=1 + grown)
        ax = plot_decay(replace(decay, steps=told))
        for panel, size in zip(ax.figure.axes[1:], (4.0, 1.0), strict=True):
            low, high = panel.get_ylim()
            assert least * size * 0.999 < high - low < 1.2 * least * size
            assert low < size < size * (1 + grown[-1]) < high
    near = decay.frame[decay.frame["metric"].isin(["ES"])].assign(mean=99.0, low=98.5, high=99.5)
    low, high = plot_decay(replace(decay, frame=near)).get_ylim()
    assert (round(high - low), round(high)) == (20, 102)
    assert widened(10.0, 90.0, 20.0, -2.0, 102.0) == (10.0, 90.0)
    assert widened(-1.0, 1.0, 20.0, -2.0, 102.0) == (-2.0, 18.0)


def test_refuses(scores: Scores, sweep: Sweep, groups: pd.DataFrame) -> None:
    """An empty picture for a name that was misspelt."""
    with refuses(InputError, ValueError, "'GE'", "'ES'"):
        plot_scores(scores, ["GE"])
    with refuses(InputError, ValueError, "last subject"):
        plot_sweep(sweep, groups.assign(group="further"))
    with refuses(InputError, ValueError, "kind"):
        plot_sweep(sweep, groups.drop(columns="kind"))
    empty = Scores(scores.cases.assign(ES=np.nan, PS=np.nan, NS=np.nan, NKL=np.nan), {}, scores.provenance, draws=5)
    with refuses(InputError, ValueError, "nothing was measured"):
        plot_scores(empty)


def test_convergence_draws_distance_and_quality() -> None:
    """Both curves are those of the table, against the same tokens; without quality there is one axis."""
    frame = pd.DataFrame({"tokens": [10, 100], "distance_mean": [1.2, 0.0], "distance_max": [1.4, 0.0]})
    frame.attrs["provenance"] = {"layer": 3, "model": "tiny"}
    ax = convergence(frame)
    assert ax.get_title(loc="left") == "How much text an edit needs: layer 3 of tiny"
    assert len(ax.figure.axes) == 1
    plt.close("all")
    ax = convergence(frame.assign(quality=[20.0, 90.0]), quality="S")
    distances, below = ax.figure.axes
    assert allclose(distances.lines[0].get_xydata(), [[10, 1.2], [100, 0.0]])
    assert allclose(below.lines[0].get_xydata(), [[10, 20.0], [100, 90.0]])
    assert below.get_ylabel() == "S"
    assert below.get_position().y1 < distances.get_position().y0


def test_what_stands_below_is_not_left_out(sweep: Sweep, groups: pd.DataFrame) -> None:
    """Axes that stand in no grid have no place below them: a trace that was asked for was not drawn."""
    frame = pd.DataFrame({"tokens": [10, 100], "distance_mean": [1.2, 0.0], "distance_max": [1.4, 0.0]})
    for draw in (
        lambda ax: plot_sweep(sweep, groups, ax),
        lambda ax: convergence(frame.assign(quality=[20.0, 90.0]), ax),
    ):
        with refuses(InputError, ValueError, "of a grid"):
            draw(plt.figure().add_axes((0.1, 0.1, 0.8, 0.8)))
