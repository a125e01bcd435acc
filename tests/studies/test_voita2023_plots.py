"""The figures of voita2023 draw the numbers of its tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from ffnmem.studies import figures as plots

SUMMARY = pd.DataFrame(
    {
        "layer": [0, 1, 2],
        "neurons": 100,
        "dead": [40, 10, 0],
        "dead_share": [0.4, 0.1, 0.0],
        "firing_rate": [0.1, 0.2, 0.3],
        "detectors": [10, 4, 0],
        "suppressing": [0.8, 0.5, np.nan],
        "tokens": [20, 6, 0],
        "new_tokens": [20, 2, 0],
        "tokens_so_far": [20, 22, 22],
    }
)
NONE = SUMMARY.assign(dead=0, dead_share=0.0, detectors=0, suppressing=np.nan, tokens=0, new_tokens=0, tokens_so_far=0)
POSITIONAL = pd.DataFrame(
    {"layer": [0, 0, 0, 2], "pattern": ["oscillatory", "other", "other", "both extremes"], "information": 0.1}
)


def axes() -> Axes:
    return Canvas().add_subplot()


def heights(ax: Axes) -> list[list[float]]:
    return [[bar.get_height() for bar in c] for c in ax.containers]


def title(ax: Axes) -> str:
    return str(ax.get_title(loc="left"))


def test_dead() -> None:
    ax = plots.draw_dead(SUMMARY, axes())
    assert heights(ax) == [[0.4, 0.1, 0.0]]
    assert "50 of 300" in title(ax)
    assert plots.draw_dead(NONE, axes()).texts[0].get_text() == "every neuron fired"


def test_rate() -> None:
    ax = plots.draw_rate(SUMMARY, axes())
    assert list(ax.lines[0].get_ydata()) == [0.1, 0.2, 0.3]  # type: ignore[arg-type]
    assert ax.get_ylim()[0] == 0


def test_covering_is_stacked_to_one() -> None:
    names = ["1 to 5", "6 to 20", "21 to 100", "101 to 500", "more than 500", "not by those looked at"]
    shares = np.array([[0.1, 0.2, 0.3, 0.2, 0.1, 0.1], [0.0, 0.0, 0.0, 0.5, 0.5, 0.0]])
    rows = [
        {"layer": layer, "tokens": name, "share": share}
        for layer, line in enumerate(shares)
        for name, share in zip(names, line, strict=True)
    ]
    ax = plots.draw_covering(pd.DataFrame(rows), axes())
    assert np.allclose(heights(ax), shares.T)
    tops = [bar.get_y() + bar.get_height() for bar in ax.containers[-1]]
    assert tops == pytest.approx([1, 1])
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == names[::-1]


def test_detectors() -> None:
    ax = plots.draw_detectors(SUMMARY, axes())
    assert heights(ax) == [[10, 4, 0], [8, 2, 0]]
    assert title(ax) == "14 token detectors, 71% suppress their triggers"
    assert plots.draw_detectors(NONE, axes()).texts[0].get_text() == "no token detectors"


def test_tokens() -> None:
    ax = plots.draw_tokens(SUMMARY, axes())
    drawn = {line.get_label(): list(line.get_ydata()) for line in ax.lines}  # type: ignore[arg-type]
    assert drawn == {"so far": [20, 22, 22], "in the layer": [20, 6, 0], "new in the layer": [20, 2, 0]}
    assert "22 tokens" in title(ax)
    empty = plots.draw_tokens(NONE, axes())
    assert empty.texts[0].get_text() == "no token detectors"
    assert empty.get_legend() is None


def test_positional_neurons_by_pattern() -> None:
    ax = plots.draw_positional(POSITIONAL, SUMMARY, axes())
    drawn = {str(c.get_label()): [bar.get_height() for bar in c] for c in ax.containers}
    assert drawn == {"oscillatory": [1, 0, 0], "both extremes": [0, 0, 1], "other": [2, 0, 0]}
    assert "4 neurons" in title(ax)
    assert plots.draw_positional(POSITIONAL[:0], SUMMARY, axes()).texts[0].get_text() == "no positional neurons"
