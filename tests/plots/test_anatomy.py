"""The picture of where parameters are: its widths are the numbers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import matplotlib.pyplot as plt
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from ffnmem.core.errors import InputError
from ffnmem.models import Anatomy, anatomy
from ffnmem.models.parameters import COMPONENTS
from ffnmem.plots import anatomy as plot_anatomy
from ffnmem.plots.weights import MATRICES, PARTS, over, parameter_count

from ..helpers import allclose, refuses

GEMMA = {
    "model_type": "gemma",
    "hidden_size": 2048,
    "intermediate_size": 16384,
    "num_hidden_layers": 18,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
}
SOURCES: dict[str, Any] = {
    "atlas": "atlas",
    "GPT-2": {"model_type": "gpt2"},
    "Llama 7B": {"model_type": "llama"},
    "Gemma 2B": GEMMA,
    "StarCoder": {"model_type": "gpt_bigcode"},
    "one layer": {"model_type": "opt", "num_hidden_layers": 1},
}


@pytest.fixture(params=SOURCES)
def found(request: pytest.FixtureRequest) -> Anatomy:
    return anatomy(SOURCES[request.param])


def boxes(ax: Axes) -> list[Rectangle]:
    return [patch for patch in ax.patches if isinstance(patch, Rectangle)]


def texts(ax: Axes) -> str:
    return " ".join(text.get_text() for text in ax.texts)


def test_the_bar_is_the_whole(found: Anatomy) -> None:
    """A piece would be wider or narrower than its component, or be missing."""
    ax, _ = plot_anatomy(found)
    expected = [n for n in found.to_frame()["parameters"] if n]
    pieces = boxes(ax)
    assert [piece.get_width() for piece in pieces] == expected
    ends = [piece.get_x() + piece.get_width() for piece in pieces]
    assert [piece.get_x() for piece in pieces] == [0, *ends[:-1]]
    assert ends[-1] == found.parameters == ax.get_xlim()[1]
    assert f"{found.parameters:,}" in ax.get_title(loc="left")
    legend = ax.get_legend()
    assert legend is not None
    assert len(legend.get_texts()) == len(expected)


def test_the_layer_is_to_scale(found: Anatomy) -> None:
    """Areas would not be parameters, matrices lie over each other, or one have another's shape written on it."""
    _, ax = plot_anatomy(found)
    rectangles = boxes(ax)
    assert [(box.get_width(), box.get_height()) for box in rectangles] == [
        (matrix.rows, matrix.d_model) for matrix in found.matrices
    ]
    assert ax.get_aspect() == 1.0
    n = sum(matrix.part == "attention" for matrix in found.matrices)
    assert len({box.get_y() for box in rectangles}) == 1 + len(rectangles) - n
    for before, after in pairwise(rectangles[:n]):
        assert after.get_x() == before.get_x() + before.get_width()
    for above, below in pairwise(rectangles[n - 1 :]):
        assert below.get_y() + below.get_height() < above.get_y()
    assert min(box.get_y() for box in rectangles) == pytest.approx(ax.get_ylim()[0])
    assert ax.get_ylim()[1] == 0
    for matrix in found.matrices:
        assert matrix.name in texts(ax)
        assert f"{matrix.rows:,} × {matrix.d_model:,}" in texts(ax)


def test_labels_stay_inside(found: Anatomy) -> None:
    """A label would be cut off at the frame or run into the next matrix."""
    whole, layer = plot_anatomy(found)
    figure: Any = whole.figure
    figure.draw_without_rendering()
    for ax in (whole, layer):
        for text in ax.texts:
            frame, box = figure.bbox, text.get_window_extent()
            assert frame.x0 <= box.x0
            assert box.x1 <= frame.x1
            if text.get_horizontalalignment() == "center":
                x, y = ax.transData.transform(text.get_position())
                holders = [b for b in boxes(ax) if b.contains_point((float(x), float(y)))]
                assert len(holders) == 1
                assert box.width <= holders[0].get_window_extent().width


def test_narrow_matrices_are_named_beside() -> None:
    """Gemma's one head of keys and values would have its label over its neighbours."""
    _, ax = plot_anatomy(anatomy(GEMMA))
    assert "K, V   256 × 2,048 each" in texts(ax)


def test_colours_stay_apart_in_grey() -> None:
    """Neighbours in the bar could not be told apart on paper."""
    grey = [0.299 * r + 0.587 * g + 0.114 * b for r, g, b in (to_rgb(PARTS[name]) for name in COMPONENTS)]
    assert list(PARTS) == list(COMPONENTS)
    assert min(abs(a - b) for a, b in pairwise(grey)) > 0.14
    assert set(MATRICES) == {"keys", "gates", "values"}
    assert (over("#000000"), over("#ffffff")) == ("white", "black")


def test_numbers() -> None:
    assert [parameter_count(n) for n in (999_999, 1_500_000, 6_738_415_616)] == [
        "999,999",
        "1.5 million",
        "6.738 billion",
    ]
    assert allclose(float(parameter_count(124_439_808).split()[0]), 124.4)


def test_axes() -> None:
    found = anatomy("atlas")
    mine = plt.figure().subplots(2, 1)
    assert plot_anatomy(found, mine) == tuple(mine)
    with refuses(InputError, ValueError, "two", "1"):
        plot_anatomy(found, mine[:1])
