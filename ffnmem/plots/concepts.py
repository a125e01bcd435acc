"""Concepts: where the neurons are that tell two sets of texts apart, how far, and what holding them does."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from ..concepts.finding import Concept
from ..concepts.steering import NEURONS, PLAIN, Steering
from . import shapes
from .figures import draws

FIRST = 6  # neurons whose values are drawn


@draws(Concept)
def concept(concept: Concept, ax: Axes | None = None) -> Axes:
    """How well the best neuron of each layer tells the texts apart that it was not chosen by, beside the residual
    stream above the layer and the best of all neurons under shuffled labels.

    Args:
        concept: from :func:`ffnmem.concept`.
    """
    ax, layers = shapes.axes_for(ax), concept.layers
    shapes.layer_axis(ax, layers["layer"])
    for name, words in (("held_out", "its best neuron"), ("residual_held_out", "residual stream")):
        shapes.curve(ax, range(len(layers)), (layers[name] - 0.5).abs() + 0.5, words, marker="o")
    shapes.line_at(ax, concept.by_chance, "best neuron by chance")
    return shapes.finish(ax, "Texts told apart, by layer", "layer", "area", legend="beside")


@draws(Concept)
def concept_values(concept: Concept, ax: Axes | None = None) -> Axes:
    """What the first neurons have in each text of either set that they were not chosen by, in standard deviations.

    Args:
        concept: from :func:`ffnmem.concept`.
    """
    ax, rest = shapes.axes_for(ax), ~concept.chosen
    values = concept.values[:FIRST, rest]
    scaled = (values - values.mean(1, keepdims=True)) / (values.std(1, keepdims=True) + 1e-30)
    for side, colour, words in ((True, shapes.BLUE, "concept"), (False, shapes.ORANGE, "others")):
        mine = scaled[:, concept.labels[rest] == side]
        places = np.arange(len(mine))[:, None] + np.linspace(-0.3, 0.3, mine.shape[1])
        ax.scatter(mine, places, s=9, color=colour, alpha=0.6, label=words)
    names = concept.neurons.head(len(values))
    shapes.name_rows(ax, [f"{row.layer}.{row.neuron}" for row in names.itertuples()])
    return shapes.finish(ax, "The first neurons, a dot a text", "standard deviations", legend="beside")


@draws(Steering, aspects=lambda _: ("reader", "perplexity"))
def steering(steering: Steering, what: str = "reader", ax: Axes | None = None) -> Axes:
    """How like the concept's texts what is written is, by the reader ("reader"), or its "perplexity", by strength.

    Args:
        steering: from :func:`ffnmem.steer`.
        what: which of both.
    """
    ax, plain = shapes.axes_for(ax), float(steering.of(PLAIN)[what].iloc[0])
    for way in dict.fromkeys(steering.curve["what"][1:]):
        some = steering.of(way)
        ends = (some["reader_low"], some["reader_high"]) if what == "reader" else ()
        shapes.curve(ax, some.index, some[what], way, *ends, marker="o", linewidth=2.5 if way == NEURONS else 1.2)
    shapes.line_at(ax, plain, PLAIN)
    if what == "perplexity":
        ax.set_yscale("log")
    title, unit = ("Like the concept's texts", "nats a token") if what == "reader" else ("Fluent", what)
    return shapes.finish(ax, title, "strength", unit, legend="beside")
