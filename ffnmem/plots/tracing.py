"""matplotlib pictures of causal traces, silencing and knockout: heat maps of one fact, means by where a token stands.

One panel a kind; each function takes ``axes=None``, draws on them or on a new figure, and returns the list of Axes.
As in :mod:`ffnmem.plots.attribution`, blue helps the answer and orange takes from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..core.errors import InputError, check_choice, counted
from ..core.token_text import printable, visible
from ..core.types import checked
from ..tracing.knockouts import OF_PAPER, Knockout, Knockouts
from ..tracing.silences import TOGETHER, Silencing, Silencings
from ..tracing.traces import GROUPS, Trace, Traces, kind_in_words
from .attribution import MOST_TICKS, SIGNS, ink

GROUP_COLOURS = dict(zip(GROUPS, ("#56B4E9", "#009E73", "#0072B2", "#CC79A7", "#8A9099", "#E07B00"), strict=True))
PLACE_COLOURS = {
    **GROUP_COLOURS,
    "BOS": "#D55E00",
    "before subject": "#B8A000",
    "whole subject": "#003D66",
    "whole prompt": "#444444",
    "non-subject": "#7A5195",
}
PLACE_MARKS = dict(zip(PLACE_COLOURS, "vs^DPo*XhH<", strict=True))
"""Colour is not the only mark: ten lines have more colours than every reader can tell apart."""
LABEL = 14  # characters of a token


@checked
def trace(trace: Trace, kind: str | None = None, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """The indirect effects of a fact as heat maps: layers across, tokens down, the subject's marked with a star.

    Args:
        trace: from :func:`ffnmem.trace_fact`.
        kind: one of its kinds; default all of them.
        axes: as many as kinds; default a new figure. Colour bars take their room from them.

    Returns:
        The Axes, one a kind. Colours have a scale for each, centred at the corrupted run's probability.

    Raises:
        InputError: a kind that was not traced, or another number of axes.
    """
    labels = labels_of(trace)
    return heat_maps(trace, trace.indirect, labels, "indirect effect", kind, axes)


@checked
def silencing(silencing: Silencing, kind: str | None = None, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """The losses of a fact as heat maps: layers across, places down, the subject's tokens marked with a star.

    Args:
        silencing: from :func:`ffnmem.tracing.silence_fact`.
        kind, axes: as :func:`trace` takes them.

    Returns: The Axes, one a kind. Colours have a scale for each, centred at the clean run's probability.

    Raises: InputError: a kind that was not silenced, or another number of axes.
    """
    return heat_maps(silencing, silencing.loss, place_labels(silencing), "loss", kind, axes)


@checked
def knockout(knockout: Knockout, kind: str | None = None, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """The shares of a fact's answer that are lost as a heat map: layers across, places down, the subject's starred.

    Args:
        knockout: from :func:`ffnmem.knockout`.
        kind, axes: as :func:`trace` takes them.

    Returns: The Axes, one. Its colours are centred at the clean run's probability.

    Raises: InputError: another kind than "edges", or another number of axes.
    """
    return heat_maps(knockout, knockout.share, place_labels(knockout), "share lost", kind, axes)


def place_labels(found: Silencing | Knockout) -> list[str]:
    """A prompt's tokens, the subject's with a star, and groups by their names."""
    tokens = iter(labels_of(found))
    return [next(tokens) if found.is_token(place) else place.name for place in found.places]


def labels_of(found: Trace | Silencing | Knockout) -> list[str]:
    """A prompt's tokens, the subject's with a star."""
    return [visible(token, LABEL) + "*" * (i in found.subject) for i, token in enumerate(found.tokens)]


def heat_maps(
    found: Trace | Silencing | Knockout,
    effects: Callable[[str], np.ndarray],
    labels: list[str],
    said: str,
    kind: str | None,
    axes: Sequence[Axes] | None,
) -> list[Axes]:
    """A result's kinds, or one of them, on given panels or on a new figure with a title."""
    kinds = kinds_to_draw(found.kinds, kind)
    size = min(1.9 + 0.16 * found.n_layers, 6), min(1.9 + 0.27 * len(labels), 14)
    panels = panels_for(axes, len(kinds), size, room=1.2)
    draw_maps(panels, {one: effects(one) for one in kinds}, found.window, labels, said, axes)
    if axes is None:
        wide = len(panels) > 1 and isinstance(found, Trace)
        overall(panels[0], title_of(found, ": " if wide else ":\n"))  # a single panel is narrow
    return panels


def draw_maps(
    panels: Sequence[Axes],
    effects: dict[str, np.ndarray],
    window: int,
    labels: list[str],
    said: str,
    axes: Sequence[Axes] | None,
) -> None:
    """Each kind's ``[n_layers, places]`` on a panel, each with its own scale around 0."""
    for ax, (kind, found) in zip(panels, effects.items(), strict=True):
        limit = float(abs(found).max()) or 1.0
        image = ax.imshow(
            found.T, cmap=SIGNS, vmin=-limit, vmax=limit, aspect="auto", origin="upper", interpolation="nearest"
        )
        ax.set_xticks(range(0, len(found), 1 + len(found) // MOST_TICKS * 2))
        ax.set_yticks(range(len(labels)), labels if ax is panels[0] or axes is not None else [], parse_math=False)
        ax.set_xlabel("layer")
        ax.set_title(kind_in_words(kind, window), loc="left", fontsize="medium")
        assert ax.figure is not None
        ax.figure.colorbar(image, ax=ax, pad=0.02, label=said if ax is panels[-1] else "")


@checked
def traces(traces: Traces, kind: str | None = None, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """Indirect effects averaged over facts, by layer, a line for each group of positions.

    Args:
        traces: from :func:`ffnmem.tracing.trace_facts`.
        kind: one of its kinds; default all of them.
        axes: as many as kinds; default a new figure.

    Returns:
        The Axes, one a kind; bands are 95% intervals over facts.

    Raises:
        InputError: no fact was traced, a kind that was not, or another number of axes.
    """
    if not len(traces):
        raise InputError(f"no fact was traced ({len(traces.skipped)} skipped), so there is nothing to draw")
    return lines(traces, "mean indirect effect", kind, axes)


@checked
def silencings(silencings: Silencings, kind: str | None = None, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """Losses averaged over facts, by layer, a line for each group of positions.

    Args:
        silencings: from :func:`ffnmem.tracing.silence_facts`.
        kind, axes: as :func:`traces` takes them.

    Returns: The Axes, one a kind; bands are 95% intervals over facts.

    Raises: InputError: no fact was asked, a kind that was not silenced, or another number of axes.
    """
    if not len(silencings):
        raise InputError(f"no fact was asked ({len(silencings.skipped)} skipped), so there is nothing to draw")
    return lines(silencings, "mean loss of probability", kind, axes)


@checked
def knockouts(knockouts: Knockouts, kind: str | None = None, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """Shares of answers that are lost, averaged over facts, by layer: a line for the whole subject, for all but the
    subject and the last token, for the last token, and for the beginning-of-sequence token.

    Args:
        knockouts: from :func:`ffnmem.tracing.knockout_facts`.
        kind, axes: as :func:`traces` takes them.

    Returns: The Axes, one; bands are 95% intervals over facts.

    Raises: InputError: no fact was asked, another kind than "edges", or another number of axes.

    Source: Geva et al. 2023 (2304.14767), figure 2, which shows the relative change: minus the share.
    """
    if not len(knockouts):
        raise InputError(f"no fact was asked ({len(knockouts.skipped)} skipped), so there is nothing to draw")
    return lines(knockouts, "mean share lost", kind, axes, OF_PAPER)


def lines(
    found: Traces | Silencings | Knockouts,
    said: str,
    kind: str | None,
    axes: Sequence[Axes] | None,
    only: Sequence[str] | None = None,
) -> list[Axes]:
    """A result's kinds, or one of them, on given panels or on a new figure with a title; ``only`` some groups."""
    first = found.of_facts[0]
    kinds = kinds_to_draw(first.kinds, kind)
    groups = found.groups if only is None else found.groups[found.groups["group"].isin(only)]
    panels = panels_for(axes, len(kinds), (3.4, 3.6), room=1.9, share=True)
    draw_lines(panels, kinds, groups, found.MEAN, first.window)
    panels[0].set_ylabel(said)
    if axes is None:
        overall(panels[0], title_of(found))
    return panels


def draw_lines(panels: Sequence[Axes], kinds: Sequence[str], groups: pd.DataFrame, column: str, window: int) -> None:
    """Each kind's means by layer on a panel, a line and a band a group; the legend beside the last."""
    for ax, one in zip(panels, kinds, strict=True):
        of_kind = groups[groups["kind"] == one]
        for group, rows in of_kind.groupby("group", sort=False):
            colour, dashed = PLACE_COLOURS[str(group)], "--" if group in TOGETHER else "-"
            mark, every = PLACE_MARKS[str(group)], 1 + len(rows) // MOST_TICKS
            drawn = ax.plot(rows["layer"], rows[column], dashed, color=colour, label=str(group))[0]
            drawn.set(marker=mark, markersize=4, markevery=every)
            ax.fill_between(rows["layer"], rows["low"], rows["high"], color=colour, alpha=0.15, linewidth=0)
        ax.axhline(0, color=ink(), linewidth=0.8)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_xlabel("layer")
        ax.set_title(kind_in_words(one, window), loc="left", fontsize="medium")
        ax.spines[["top", "right"]].set_visible(False)
    panels[-1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small")


Drawn = Trace | Traces | Silencing | Silencings | Knockout | Knockouts


def figure_of(found: Drawn) -> Figure:
    """All kinds of a result on a figure of its size with a title; raises InputError where none is."""
    single = isinstance(found, Trace | Silencing | Knockout)
    if isinstance(found, Trace | Silencing | Knockout):
        kinds, rows = found.kinds, len(found.tokens)
    else:
        kinds, rows = found.of_facts[0].kinds if len(found) else (), 8
    figure = Figure(figsize=(2.2 + 3.2 * max(1, len(kinds)), min(1.9 + 0.27 * rows, 14)), layout="constrained")
    panels = list(figure.subplots(1, max(1, len(kinds)), squeeze=False, sharey=not single)[0])
    found.plot(axes=panels)
    overall(panels[0], title_of(found))
    return figure


def title_of(found: Drawn, separator: str = ": ") -> str:
    """What a figure shows; ``separator`` before the numbers of a single prompt."""
    match found:
        case Trace():
            said = f"{found.clean:.1%} clean, {found.corrupted:.1%} with noise on *"
            return f"What brings back {found.answer!r}{separator}{said}"
        case Silencing():
            return f"What {found.answer!r} loses without it{separator}{found.clean:.1%} clean"
        case Knockout():
            return f"What {found.answer!r} loses without looking there{separator}{found.clean:.1%} clean"
        case Knockouts():
            verb = "loses" if len(found) == 1 else "lose"
            return f"What {counted(len(found), 'fact')} {verb} without looking there in {found.provenance.model}"
        case Traces():
            verb = "is" if len(found) == 1 else "are"
            return f"Where {counted(len(found), 'fact')} {verb} recalled in {found.provenance.model}"
        case Silencings():
            verb = "loses" if len(found) == 1 else "lose"
            return f"What {counted(len(found), 'fact')} {verb} without it in {found.provenance.model}"


def kinds_to_draw(kinds: tuple[str, ...], kind: str | None) -> tuple[str, ...]:
    """All kinds, or the one that is asked for."""
    return kinds if kind is None else (check_choice("kind", kind, kinds),)


def panels_for(
    axes: Sequence[Axes] | None, count: int, size: tuple[float, float], room: float, share: bool = False
) -> list[Axes]:
    """The given Axes, or those of a new figure of so many panels of this size in inches, and ``room`` beside them."""
    if axes is not None:
        if len(axes) != count:
            raise InputError(f"axes: {count} are needed, one a kind, not {len(axes)}")
        return list(axes)
    import matplotlib.pyplot as plt  # only here: whoever brings Axes may run without pyplot's global figures

    width, height = size
    made = plt.subplots(
        1, count, figsize=(room + count * width, height), layout="constrained", sharey=share, squeeze=False
    )
    return list(made[1][0])


def overall(ax: Axes, title: str) -> None:
    """A title over all panels."""
    assert ax.figure is not None
    # A token may hold a dollar sign, which would begin mathematics.
    ax.figure.suptitle(printable(title, keep="\n"), x=0.01, ha="left", fontsize="large", parse_math=False)
