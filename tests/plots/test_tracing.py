"""Pictures of causal traces."""

from __future__ import annotations

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.plots import knockout, knockouts, silencing, silencings, trace, traces
from ffnmem.plots.tracing import GROUP_COLOURS, PLACE_COLOURS, PLACE_MARKS, figure_of
from ffnmem.tracing import Silencing, Trace, Traces, knockout_facts, silence_fact, silence_facts, trace_fact

from ..helpers import BOS, PROMPT, allclose, refuses


@pytest.fixture(scope="module")
def found(tiny: fm.Model) -> Trace:
    return trace_fact(tiny, PROMPT, "Eiffel Tower", samples=2, noise=1.0, severed=("ffn",))


@pytest.fixture(scope="module")
def many(found: Trace) -> Traces:
    other = replace(found, scores={kind: scores * 0.5 for kind, scores in found.scores.items()})
    return Traces((found, other), pd.DataFrame(columns=["fact", "subject", "reason"]), found.provenance)


def drawn(figure: object) -> None:
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()


def test_a_panel_a_kind(found: Trace) -> None:
    """Layers across, tokens down, zero in the middle of the colours, the subject marked."""
    panels = trace(found)
    assert [ax.get_title(loc="left") for ax in panels] == [
        "state",
        "FFN of one layer",
        "attention of one layer",
        "state, FFN severed",
    ]
    for ax, kind in zip(panels, found.kinds, strict=True):
        image = ax.images[0]
        assert allclose(image.get_array(), found.indirect(kind).T, 1e-12)
        low, high = image.get_clim()
        assert low == -high
    labels = [label.get_text() for label in panels[0].get_yticklabels()]
    assert labels[0] == BOS
    assert [i for i, label in enumerate(labels) if label.endswith("*")] == list(found.subject)
    drawn(panels[0].figure)


def test_one_kind_and_given_axes(found: Trace) -> None:
    """On given axes no figure is made and no title put over the caller's."""
    assert len(trace(found, "ffn")) == 1
    figure, ax = plt.subplots()
    before = plt.get_fignums()
    assert trace(found, "ffn", [ax]) == [ax]
    assert plt.get_fignums() == before
    assert figure.get_suptitle() == ""
    with refuses(InputError, ValueError, "axes", "4"):
        trace(found, None, [ax])
    with refuses(InputError, ValueError, "mlp"):
        trace(found, "mlp")


def test_any_token(found: Trace) -> None:
    """A dollar sign begins no mathematics."""
    nasty = replace(found, answer=" $x_", tokens=("$a_", *found.tokens[1:-1], "\n$"))
    drawn(trace(nasty, "state")[0].figure)


def test_lines_are_the_groups(many: Traces) -> None:
    panels = traces(many)
    assert len(panels) == 4
    for ax, kind in zip(panels, many.traces[0].kinds, strict=True):
        rows = many.groups[many.groups["kind"] == kind]
        lines = {line.get_label(): line for line in ax.lines}
        for group, expected in rows.groupby("group"):
            assert allclose(lines[group].get_ydata(), expected["mean"], 1e-12)
            assert lines[group].get_color() == GROUP_COLOURS[str(group)]
        assert len(ax.collections) == rows["group"].nunique(), "one band a group"
    legend = panels[-1].get_legend()
    assert legend is not None
    assert {text.get_text() for text in legend.get_texts()} == set(many.groups["group"])
    drawn(panels[0].figure)


def test_one_kind_of_many_facts(many: Traces) -> None:
    _, ax = plt.subplots()
    assert traces(many, "state", [ax]) == [ax]
    none = Traces((), many.skipped, many.provenance)
    with refuses(InputError, ValueError, "no fact"):
        traces(none)


def test_colours_are_all_different() -> None:
    assert len(set(GROUP_COLOURS.values())) == 6
    assert np.all([colour.startswith("#") for colour in GROUP_COLOURS.values()])


@pytest.fixture(scope="module")
def silenced(tiny: fm.Model) -> Silencing:
    return silence_fact(tiny, PROMPT, "Eiffel Tower", kinds=("ffn", "attention"), window=1)


def test_what_is_silenced_at_each_place(silenced: Silencing) -> None:
    """Tokens, and below them what is silenced together."""
    panels = silencing(silenced)
    assert [ax.get_title(loc="left") for ax in panels] == ["FFN of one layer", "attention of one layer"]
    for ax, kind in zip(panels, silenced.kinds, strict=True):
        assert allclose(ax.images[0].get_array(), silenced.loss(kind).T, 1e-12)
    labels = [label.get_text() for label in panels[0].get_yticklabels()]
    assert labels[0] == BOS
    assert labels[-2:] == ["whole subject", "whole prompt"]
    assert [i for i, label in enumerate(labels) if label.endswith("*")] == list(silenced.subject)
    drawn(panels[0].figure)
    drawn(silenced.plot("ffn")[0].figure)
    drawn(figure_of(silenced))
    plt.close("all")


def test_a_line_a_group_of_what_is_lost(tiny: fm.Model) -> None:
    many = silence_facts(tiny, [fm.Fact("Eiffel Tower", "r", "The {} is in", target_new="x")] * 2, window=1)
    (panel,) = silencings(many)
    lines = {line.get_label(): line for line in panel.lines}
    rows = many.groups
    for group in rows["group"].unique():
        assert allclose(lines[group].get_ydata(), rows[rows["group"] == group]["loss"], 1e-12)
    assert lines["whole subject"].get_linestyle() == "--"
    drawn(panel.figure)
    drawn(figure_of(many))
    plt.close("all")
    with refuses(InputError, ValueError, "no fact was asked"):
        silencings(replace(many, silencings=()))
    with refuses(InputError, ValueError, "kind", "'state'"):
        silencings(many, "state")


def test_where_the_last_token_cannot_look(tiny: fm.Model) -> None:
    found = fm.knockout(tiny, PROMPT, "Eiffel Tower", window=1, positions=[1])
    (panel,) = knockout(found)
    assert allclose(panel.images[0].get_array(), found.share().T, 1e-12)
    labels = [label.get_text() for label in panel.get_yticklabels()]
    assert (labels[0], labels[-3:]) == (BOS, ["whole subject", "non-subject", "chosen"])
    drawn(panel.figure)
    drawn(figure_of(found))
    plt.close("all")


def test_the_papers_lines_of_what_is_lost(tiny: fm.Model) -> None:
    """Four, of nine groups: more cannot be told apart."""
    many = knockout_facts(tiny, [fm.Fact("Eiffel Tower", "r", "The {} is in", target_new="x")] * 2, window=1)
    (panel,) = knockouts(many)
    lines = {line.get_label(): line for line in panel.lines if not str(line.get_label()).startswith("_")}
    assert list(lines) == ["BOS", "whole subject", "non-subject", "last token"]
    for group, line in lines.items():
        assert allclose(line.get_ydata(), many.groups[many.groups["group"] == group]["share"], 1e-12)
    drawn(panel.figure)
    drawn(figure_of(many))
    plt.close("all")
    with refuses(InputError, ValueError, "no fact was asked"):
        knockouts(replace(many, knockouts=()))


def test_colour_is_not_the_only_mark() -> None:
    """Ten lines have more colours than a colour-blind reader can tell apart."""
    assert PLACE_MARKS.keys() == PLACE_COLOURS.keys()
    assert len(set(PLACE_MARKS.values())) == len(PLACE_MARKS)
