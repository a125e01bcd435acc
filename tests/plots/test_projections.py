"""Tokens and memories as bars: every bar is a row of the table, hostile text is drawn as text."""

from __future__ import annotations

import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError

from ..helpers import refuses


def test_tokens_are_the_first_of_either_sign(tiny: fm.Model) -> None:
    frame = fm.project(tiny, 1, 3, k=5)
    ax = fm.plots.tokens(frame, top=3)
    values = frame[(frame["side"] == "value") & (frame["rank"] <= 3)].sort_values("score", ascending=False)
    assert [bar.get_width() for bar in ax.patches] == pytest.approx(values["score"].tolist())
    assert len(ax.get_yticklabels()) == 6


def test_tokens_are_of_one_neuron(tiny: fm.Model) -> None:
    """Of several they would be mixed."""
    frame = fm.project(tiny, 1, 3, k=5)
    for wrong, named in ((frame[frame["side"] != "value"], "none"), (fm.project(tiny, 1, [3, 4], k=5), "2")):
        with refuses(InputError, ValueError, "one neuron's value", named):
            fm.plots.tokens(wrong)


def test_memories_are_drawn_by_their_names(tiny: fm.Model) -> None:
    found = fm.vocabulary.promoters(tiny, " the", k=4)
    ax = fm.plots.memories(found, "score", label="writes", title="$\\frac$")
    assert [label.get_text() for label in ax.get_yticklabels()] == [f"{r.layer}.{r.neuron}" for r in found.itertuples()]
    assert ax.get_xlabel() == "writes"
    ax.figure.canvas.draw()
