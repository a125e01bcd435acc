"""matplotlib pictures of causal traces: heat maps of one fact, and effects averaged by where a token stands.

One panel a kind; each function takes ``axes=None``, draws on them or on a new figure, and returns the list of Axes.
As in :mod:`ffnmem.plots.attribution`, blue brings the answer back and orange takes from it.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..core.arguments import public
from ..core.errors import InputError, check_choice, counted
from ..core.token_text import printable, visible
from ..tracing.traces import GROUPS, Trace, Traces, kind_in_words
from .attribution import MOST_TICKS, SIGNS, ink

GROUP_COLOURS = dict(zip(GROUPS, ("#56B4E9", "#009E73", "#0072B2", "#CC79A7", "#8A9099", "#E07B00"), strict=True))
LABEL = 14  # characters of a token


@public
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
    kinds = kinds_to_draw(trace.kinds, kind)
    labels = [visible(token, LABEL) + "*" * (i in trace.subject) for i, token in enumerate(trace.tokens)]
    if trace.provenance.prepend_bos:
        labels[0] = "BOS"
    height = min(1.9 + 0.27 * len(labels), 14)
    panels = panels_for(axes, len(kinds), (min(1.9 + 0.16 * trace.n_layers, 6), height), room=1.2)
    for ax, one in zip(panels, kinds, strict=True):
        effects = trace.indirect(one)
        limit = float(abs(effects).max()) or 1.0
        image = ax.imshow(
            effects.T, cmap=SIGNS, vmin=-limit, vmax=limit, aspect="auto", origin="upper", interpolation="nearest"
        )
        ax.set_xticks(range(0, trace.n_layers, 1 + trace.n_layers // MOST_TICKS * 2))
        ax.set_yticks(range(len(labels)), labels if ax is panels[0] or axes is not None else [], parse_math=False)
        ax.set_xlabel("layer")
        ax.set_title(kind_in_words(one, trace.window), loc="left", fontsize="medium")
        assert ax.figure is not None
        ax.figure.colorbar(image, ax=ax, pad=0.02, label="indirect effect" if ax is panels[-1] else "")
    if axes is None:
        separator = ": " if len(panels) > 1 else ":\n"  # a single panel is narrow
        found = f"{trace.clean:.1%} clean, {trace.corrupted:.1%} with noise on *"
        overall(panels[0], f"What brings back {trace.answer!r}{separator}{found}")
    return panels


@public
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
    first = traces.traces[0]
    kinds = kinds_to_draw(first.kinds, kind)
    panels = panels_for(axes, len(kinds), (3.4, 3.6), room=1.9, share=True)
    for ax, one in zip(panels, kinds, strict=True):
        of_kind = traces.groups[traces.groups["kind"] == one]
        for group, rows in of_kind.groupby("group", sort=False):
            colour = GROUP_COLOURS[str(group)]
            marker = "o" if len(rows) <= MOST_TICKS else None
            ax.plot(rows["layer"], rows["mean"], color=colour, label=str(group), marker=marker, markersize=3.5)
            ax.fill_between(rows["layer"], rows["low"], rows["high"], color=colour, alpha=0.15, linewidth=0)
        ax.axhline(0, color=ink(), linewidth=0.8)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_xlabel("layer")
        ax.set_title(kind_in_words(one, first.window), loc="left", fontsize="medium")
        ax.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("mean indirect effect")
    panels[-1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small")
    if axes is None:
        overall(panels[0], where_recalled(traces))
    return panels


def figure_of(found: Trace | Traces) -> Figure:
    """All kinds of a trace, or of many, on a figure of their size with a title; raises InputError where none is."""
    single = isinstance(found, Trace)
    kinds = found.kinds if isinstance(found, Trace) else found.traces[0].kinds if len(found) else ()
    rows = len(found.tokens) if isinstance(found, Trace) else 8
    figure = Figure(figsize=(2.2 + 3.2 * max(1, len(kinds)), min(1.9 + 0.27 * rows, 14)), layout="constrained")
    panels = list(figure.subplots(1, max(1, len(kinds)), squeeze=False, sharey=not single)[0])
    if isinstance(found, Trace):
        trace(found, axes=panels)
        said = f"{found.clean:.1%} clean, {found.corrupted:.1%} with noise on *"
        overall(panels[0], f"What brings back {found.answer!r}: {said}")
    else:
        traces(found, axes=panels)
        overall(panels[0], where_recalled(found))
    return figure


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


def where_recalled(found: Traces) -> str:
    verb = "is" if len(found) == 1 else "are"
    return f"Where {counted(len(found), 'fact')} {verb} recalled in {found.provenance.model}"


def overall(ax: Axes, title: str) -> None:
    """A title over all panels."""
    assert ax.figure is not None
    # A token may hold a dollar sign, which would begin mathematics.
    ax.figure.suptitle(printable(title, keep="\n"), x=0.01, ha="left", fontsize="large", parse_math=False)
