"""Pictures of two models compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import ffnmem as fm
from ffnmem.comparing import Comparison
from ffnmem.core.errors import InputError
from ffnmem.plots.comparing import drawn_of

from ..comparing.made import TEXTS
from ..editing.edits import made as random_edit
from ..helpers import build_gpt2, draw_whole, legend_of, randomise, refuses


@pytest.fixture(scope="module")
def edited(tiny: fm.Model) -> Comparison:
    return fm.compare(tiny, corpus=TEXTS[:30], edit=random_edit(tiny, (1,)))


def test_verdicts_fill_their_layers(edited: Comparison) -> None:
    ax = edited.plot("verdicts", Figure().add_subplot())
    tops = [patch.get_y() + patch.get_height() for patch in ax.patches]  # type: ignore[attr-defined]
    assert max(tops) == pytest.approx(1)
    assert legend_of(ax) == ["moved", "same"]
    draw_whole(ax)


def test_changes_stand_where_something_changed(edited: Comparison) -> None:
    """One layer of two; the dot is the largest change."""
    ax = edited.plot("changes", Figure().add_subplot())
    (dot,) = ax.lines
    assert float(np.asarray(dot.get_xdata())[0]) == 1
    assert float(np.asarray(dot.get_ydata())[0]) == edited.neurons["value_change"].max()
    draw_whole(ax)


def test_all_neurons_are_counted(edited: Comparison) -> None:
    ax = edited.plot("correlations", Figure().add_subplot())
    assert legend_of(ax) == ["best match", "among random neurons"]
    draw_whole(ax)
    assert ax.get_xlim() == (0, 1)


def test_only_what_there_is_can_be_drawn(tiny: fm.Model, tokenizer: Any) -> None:
    other = fm.load(randomise(build_gpt2(), 5), tokenizer=tokenizer)
    found = fm.compare(tiny, other)
    assert drawn_of(found) == ["verdicts"]
    with refuses(InputError, ValueError, "correlations", "no text"):
        found.plot("correlations")
    with refuses(InputError, ValueError, "changes", "places"):
        found.plot("changes")
    with refuses(InputError, ValueError, "what", "verdicts"):
        found.plot("size")
