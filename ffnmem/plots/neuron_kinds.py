"""What neurons stand for: meanings, verdicts and roles."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from ..core.errors import InputError, counted
from ..core.token_text import visible
from ..neurons.concepts import Meanings
from ..neurons.role_assignment import NONE, Roles
from ..neurons.survey import Polysemanticity
from . import shapes
from .figures import draws

VERDICT_COLOURS = {
    "monosemantic": shapes.BLUE,
    "unclear": shapes.GREY,
    "polysemantic": shapes.ORANGE,
    "inactive": shapes.BLACK,
}
"""From below: what is unclear stands between what is clear."""
LEAST = 0.045  # of the height: labels nearer than that would overlap
LABEL = 34  # characters of trigger tokens


@draws(Meanings)
def meanings(meanings: Meanings, ax: Axes | None = None) -> Axes:
    """How alike the examples of one neuron are: a heat map of the cosines of their whitened inputs.

    They are ordered by meaning and then by strength, with lines between meanings; at each its share of the activation
    and its trigger tokens, as far as there is room.

    Args:
        meanings: from :func:`ffnmem.meanings`; the model reads the examples again.
    """
    if not len(meanings.table):
        raise InputError(f"neuron {meanings.name} has no examples to draw: it is {meanings.label}")
    ax = shapes.axes_for(ax, (8, 4.6))
    cosines = meanings.similarity.copy()
    np.fill_diagonal(cosines, np.nan)  # each is 1, which says nothing
    shapes.heat(ax, cosines, "cosine of whitened inputs")
    sizes = meanings.table["examples"].to_numpy()
    ends = np.cumsum(sizes)
    for edge in ends[:-1] - 0.5:
        for across in (True, False):
            shapes.line_at(ax, edge, across=across, color=shapes.BLACK, linestyle="-")  # on light colours in any style
    ticks: dict[float, str] = {}
    for row, middle in zip(meanings.table.itertuples(), ends - (sizes + 1) / 2, strict=True):
        if not ticks or middle - max(ticks) >= LEAST * len(cosines):
            ticks[float(middle)] = f"{row.share:.0%}  {join_tokens(meanings.triggers[row.meaning])}"
    ax.set_yticks(list(ticks), list(ticks.values()), parse_math=False, fontsize="small")
    ax.set_xticks([])
    value, low, high = meanings.number
    number = f", {value:.1f} meanings ({low:.1f} to {high:.1f})" if np.isfinite(value) else ""
    title = f"Neuron {meanings.name} of {meanings.provenance['model']}\n{meanings.label}{number}"
    return shapes.finish(ax, title, f"{counted(len(cosines), 'example')}, by meaning, strongest first")


def join_tokens(tokens: tuple[str, ...]) -> str:
    """The first trigger tokens, as many as a label has room for."""
    words = [visible(token, LABEL) for token in tokens[:4]]
    return next(line for n in range(len(words), 0, -1) if len(line := " ".join(words[:n])) <= LABEL)


@draws(Polysemanticity)
def verdicts(found: Polysemanticity, ax: Axes | None = None) -> Axes:
    """How many neurons of each layer are monosemantic, polysemantic, unclear and inactive, as stacked shares.

    Args:
        found: of :func:`ffnmem.polysemanticity`; with both signs, a layer has a bar for each.
    """
    counts = found.counts
    layers, signs = list(counts["layer"].unique()), list(counts["sign"].unique())
    step = 0.8 / len(signs)
    places = counts["layer"].map(layers.index) + step * (counts["sign"].map(signs.index) - (len(signs) - 1) / 2)
    ax = shapes.axes_for(ax, (8, 4))
    shares = {name: counts[name] / counts["neurons"] for name in VERDICT_COLOURS}
    shapes.stacks(ax, layers, shares, VERDICT_COLOURS, places, 0.92 * step)
    both = "layer; left positive coefficients, right negative ones" if len(signs) > 1 else "layer"
    title = f"Verdicts on {len(found.neurons) // len(signs):,} neurons of {found.provenance['model']}"
    return shapes.finish(ax, title, both, "share of the layer's neurons", percent="y", legend="stacked")


ROLE_COLOURS = {
    "dead": shapes.BLACK,
    "position": shapes.PINK,
    "entropy": shapes.RED,
    "prediction": shapes.BLUE,
    "suppression": shapes.GOLD,
    "partition": shapes.GREEN,
    "token-detector": shapes.SKY,
}


@draws(Roles)
def roles(roles: Roles, ax: Axes | None = None) -> Axes:
    """What part the neurons of each layer play: the shares of their primary roles, stacked in the order of precedence.

    What is left of a layer has none of the roles; the axis reaches as far as the fullest layer.

    Args:
        roles: of :func:`ffnmem.roles`.
    """
    counts = roles.first_roles.set_index("role").drop(columns="all").T
    shares = counts.div(counts.sum(axis=1), axis=0).drop(columns=NONE)
    ax = shapes.axes_for(ax, (8, 4))
    shapes.stacks(ax, counts.index.astype(int), {name: one for name, one in shares.items() if one.any()}, ROLE_COLOURS)
    ax.set_ylim(0, min(1.0, max(1.08 * shares.sum(axis=1).max(), 0.01)))
    if not shares.any(axis=None):
        shapes.say(ax, "no neuron has any of these roles")
    having = int((roles.neurons["role"] != NONE).sum())
    title = f"{having:,} of {len(roles.neurons):,} neurons of {roles.provenance.model} have a role"
    label = "share of the layer's neurons, by first role"
    return shapes.finish(ax, title, "", label, percent="y", legend="stacked")
