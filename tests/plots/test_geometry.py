"""Pictures of the geometry."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.neurons import Geometry
from ffnmem.neurons.read_write import KINDS, ORTHOGONAL
from ffnmem.plots.attribution import ATTENTION
from ffnmem.plots.weights import CLASS_COLOURS, COLOURS, DRAWS, PAIRS

from ..helpers import draw_whole, refuses
from ..neurons.gated import GATED, made


@pytest.fixture(scope="module", params=["gpt2", *GATED])
def found(request: pytest.FixtureRequest, tokenizer: Any) -> Geometry:
    return fm.neurons.geometry(made(request.param, tokenizer), threshold=None)


def spans(ax: Axes, colour: str, opaque: bool = True) -> list[tuple[float, float]]:
    """Bottom and top of the bars of a colour, from left to right."""
    bars = [p for p in ax.patches if isinstance(p, Rectangle) and to_hex(p.get_facecolor()).upper() == colour.upper()]
    chosen = sorted((bar for bar in bars if (bar.get_alpha() is None) == opaque), key=lambda bar: bar.get_x())
    return [(bar.get_y(), bar.get_y() + bar.get_height()) for bar in chosen]


@pytest.mark.parametrize("what", DRAWS)
def test_every_picture(found: Geometry, what: str) -> None:
    ax = fm.plots.geometry(found, what)
    assert found.provenance.model in ax.get_title(loc="left")
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "1"]
    assert ax.get_ylabel()
    draw_whole(ax)
    mine = plt.figure().add_subplot()
    assert fm.plots.geometry(found, what, mine) is mine


@pytest.mark.parametrize("side", COLOURS)
def test_interference_bars_are_the_quantiles(found: Geometry, side: str) -> None:
    ax = fm.plots.geometry(found)
    if side not in found.sides:
        assert spans(ax, COLOURS[side]) == []
        return
    expected = list(zip(found.layers[f"{side}_cosine_q50"], found.layers[f"{side}_cosine_q999"], strict=True))
    assert spans(ax, COLOURS[side]) == [pytest.approx(pair) for pair in expected]
    dots = [line for line in ax.lines if line.get_color() == COLOURS[side]]
    assert list(dots[0].get_ydata()) == pytest.approx(found.layers[f"{side}_cosine_max"].abs().tolist())
    assert len(spans(ax, ATTENTION)) == 2 * len(found.sides)


@pytest.mark.parametrize("side", COLOURS)
def test_capacity_bars_are_the_quantiles(found: Geometry, side: str) -> None:
    ax = fm.plots.geometry(found, "capacity")
    for opaque, names in ((True, ("q25", "q75")), (False, ("q5", "q95"))):
        expected = list(zip(*(found.layers.get(f"{side}_capacity_{name}", []) for name in names), strict=True))
        assert spans(ax, COLOURS[side], opaque) == [pytest.approx(pair) for pair in expected]


def test_io_band_is_the_null(found: Geometry) -> None:
    ax = fm.plots.geometry(found, "io")
    ends = [
        (row[f"{name}_null_low"], row[f"{name}_null_high"])
        for row in found.layers.to_dict("records")
        for name in found.alignments
    ]
    assert spans(ax, ATTENTION) == [pytest.approx(pair) for pair in ends]
    for name in found.alignments:
        expected = list(zip(found.layers[f"{name}_q25"], found.layers[f"{name}_q75"], strict=True))
        assert spans(ax, PAIRS[name]) == [pytest.approx(pair) for pair in expected]


def test_rank_lines(found: Geometry) -> None:
    ax = fm.plots.geometry(found, "rank")
    drawn = {str(line.get_label()): list(line.get_ydata()) for line in ax.lines}
    assert drawn["values: stable"] == pytest.approx(found.layers["value_stable_rank"].tolist())
    assert drawn["keys: entropy"] == pytest.approx(found.layers["key_entropy_rank"].tolist())
    assert drawn["dimensions"] == [found.dimensions] * 2 == [15 if found.centred else 16] * 2
    assert ("gates: entropy" in drawn) == ("gate" in found.sides)


def test_classes_are_stacked(tokenizer: Any) -> None:
    """Bars of another layer or class; a class without a colour."""
    assert set(CLASS_COLOURS) == set(KINDS.values()) - {ORTHOGONAL}
    loose = fm.neurons.geometry(made("llama", tokenizer), threshold=None, strengthening=0.3, weakening=-0.3)
    ax = fm.plots.geometry(loose, "classes")
    shares = loose.classes.pivot(index="layer", columns="read_write", values="share")
    for name, colour in CLASS_COLOURS.items():
        heights = [high - low for low, high in spans(ax, colour)]
        assert heights == (pytest.approx(shares[name].tolist()) if shares[name].any() else [])
    assert max(high for name in CLASS_COLOURS for _, high in spans(ax, CLASS_COLOURS[name])) == pytest.approx(
        1 - shares[ORTHOGONAL].min()
    )


def test_chosen_layers_keep_their_names(tiny: fm.Model) -> None:
    ax = fm.plots.geometry(fm.neurons.geometry(tiny, layers=1, threshold=None))
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1"]


def test_unknown(found: Geometry) -> None:
    with refuses(InputError, ValueError, "what", "'size'", "'capacity'"):
        fm.plots.geometry(found, "size")
