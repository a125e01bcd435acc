"""The answer in one sentence: what the templates need to say it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..attribution import Attribution
from ..paths import PathAttribution


@dataclass(frozen=True)
class Answer:
    """A target's logit (against a foil), and how much of it memories wrote.

    ``in_percent`` is False where a share of the logit would mislead: a logit at or below zero, or one that is small
    beside what was written towards it.
    """

    target: str
    foil: str | None
    logit: float
    ffn: float
    top: float
    n_top: int
    n_neurons: int
    in_percent: bool
    probability: float | None = None
    foil_probability: float | None = None


def answer(
    attribution: Attribution, top: int, probability: float | None = None, foil_probability: float | None = None
) -> Answer:
    """The sentence's numbers for an attribution of one position; probabilities of target and foil if known."""
    attribution.single()
    logit = attribution.logit
    parts = attribution.components
    ffn = float(parts.loc[parts["component"] == "ffn", "logit"].sum())
    largest = attribution.top(top)["logit"]
    written = float(largest.sum())
    return Answer(
        target=attribution.target,
        foil=attribution.foil,
        logit=logit,
        ffn=ffn,
        top=written,
        n_top=len(largest),
        n_neurons=math.prod(attribution.neuron_logits.shape[1:]),
        in_percent=logit > 0 and max(abs(ffn), abs(written)) <= 2 * logit,
        probability=probability,
        foil_probability=foil_probability,
    )


@dataclass(frozen=True)
class Carried:
    """What memories of all positions add to a logit, and the earlier position whose memories add most."""

    memories: float
    rest: float
    logit: float
    error: float
    place: int | None
    there: float
    in_percent: bool


def carried(paths: PathAttribution) -> Carried:
    """The numbers of the sentence on memories at all positions."""
    by_position = paths.map.sum(0).tolist()
    memories, earlier = sum(by_position), by_position[:-1]
    place = max(range(len(earlier)), key=earlier.__getitem__, default=None)
    there = 0.0 if place is None else earlier[place]
    return Carried(
        memories=memories,
        rest=float(paths.components["logit"].sum()) - memories,
        logit=paths.logit,
        error=paths.error,
        place=place,
        there=there,
        in_percent=paths.logit > 0 and max(abs(memories), abs(there)) <= 2 * paths.logit,
    )
