"""Causal traces, silencing and knockout: heat maps of one fact, means of many by where a token stands."""

from __future__ import annotations

from matplotlib.axes import Axes

from ..core.errors import InputError, check_choice, counted
from ..core.number_text import format_probability
from ..core.token_text import visible
from ..tracing.maps import Knockout, Knockouts, Silencing, Silencings, Trace, Traces, kind_in_words
from ..tracing.places import GROUPS, OF_PAPER, TOGETHER
from . import shapes
from .figures import draws

NAMES = (*GROUPS, "BOS", "before subject", "whole subject", "whole prompt", "non-subject")
COLOURS = (shapes.SKY, shapes.GREEN, shapes.BLUE, shapes.PINK, shapes.DARK_GREY, shapes.ORANGE, shapes.RED)
MORE_COLOURS = ("#B8A000", "#003D66", "#444444", "#7A5195")
STYLES = {name: style for name, *style in zip(NAMES, COLOURS + MORE_COLOURS, "vs^DPo*XhH<", strict=True)}
"""Colour and mark of each group: more lines than every reader can tell apart by colour alone."""


def kinds_of(result: Traces | Silencings | Knockouts) -> tuple[str, ...]:
    """What was restored, silenced or blocked; raises InputError where no fact was asked."""
    if not len(result):
        raise InputError(f"no fact was asked ({len(result.skipped)} skipped), so there is nothing to draw")
    return result.of_facts[0].kinds


@draws(Trace, Silencing, Knockout, aspects=lambda result: result.kinds)
def fact_map(result: Trace | Silencing | Knockout, kind: str | None = None, ax: Axes | None = None) -> Axes:
    """What a fact's answer gains or loses by what is done at each layer (across) and place (down), as a heat map.

    Args:
        result: from :func:`ffnmem.trace_fact` (indirect effects, or losses of probability by silencing) or
            :func:`ffnmem.knockout` (shares lost). Tokens of the subject have a star.
        kind: one of its kinds; default the first.
    """
    kind = check_choice("kind", kind or result.kinds[0], result.kinds)
    names = [visible(token, shapes.LABEL) + "*" * (at in result.subject) for at, token in enumerate(result.tokens)]
    if isinstance(result, Trace):
        effects, label, what = result.indirect(kind), "indirect effect", f"What brings back {result.answer!r}"
        clean = f"{format_probability(result.clean)} clean, {format_probability(result.corrupted)} with noise on *"
    else:
        tokens, clean = iter(names), f"{format_probability(result.clean)} clean"
        names = [next(tokens) if result.is_token(place) else place.name for place in result.places]
        loss = isinstance(result, Silencing)
        effects, label = (result.loss(kind), "loss") if loss else (result.share(kind), "share lost")
        what = f"What {result.answer!r} loses without {'it' if loss else 'looking there'}"
    ax = shapes.axes_for(ax, (min(3.2 + 0.16 * result.n_layers, 6), min(2.3 + shapes.PER_ROW * len(names), 14)))
    shapes.heat(ax, effects.T, label)
    shapes.name_rows(ax, names)
    shapes.layer_axis(ax, range(result.n_layers))
    return shapes.titled(ax, f"{what}\n{clean}\n{kind_in_words(kind, result.window)}")


@draws(Traces, Silencings, Knockouts, aspects=kinds_of)
def fact_curves(result: Traces | Silencings | Knockouts, kind: str | None = None, ax: Axes | None = None) -> Axes:
    """Effects averaged over facts, by layer: a line for each group of positions, with its 95% interval.

    Args:
        result: from :func:`ffnmem.tracing.trace_facts` or :func:`ffnmem.tracing.knockout_facts`; of knockouts the
            groups of Geva et al. 2023 (2304.14767, figure 2, which shows minus the share) and the first token.
        kind: one of its kinds; default the first.
    """
    kinds = kinds_of(result)
    kind = check_choice("kind", kind or kinds[0], kinds)
    rows = result.groups[result.groups["kind"] == kind]
    match result:
        case Traces():
            label, what = "mean indirect effect", "What brings back the answers of"
        case Silencings():
            label, what = "mean loss of probability", "What is lost without it by"
        case Knockouts():
            label, what = "mean share lost", "What is lost without looking there by"
            rows = rows[rows["group"].isin(OF_PAPER)]
    ax = shapes.axes_for(ax, (5, 3.8))
    for group, some in rows.groupby("group", sort=False):
        colour, marker = STYLES[str(group)]
        style = {"color": colour, "marker": marker, "markevery": 1 + len(some) // shapes.MOST_TICKS}
        style["linestyle"] = "--" if group in TOGETHER else "-"
        shapes.curve(ax, some["layer"], some[result.mean], str(group), some["low"], some["high"], **style)
    shapes.line_at(ax, 0)
    facts = f"{what} {counted(len(result), 'fact')} of {result.provenance.model}"
    title = f"{facts}\n{kind_in_words(kind, result.of_facts[0].window)}"
    return shapes.finish(ax, title, "layer", label, whole="x", legend="beside")
