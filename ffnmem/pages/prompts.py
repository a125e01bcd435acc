"""What views of the explorer say of a prompt in templates of their own."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..core.types import LOGIT, Basis
from ..models.model import Model
from ..prompts.attribution import Attribution
from ..prompts.captures import Capture
from ..prompts.paths import PathAttribution
from ..show.notebook import Axis, bar
from ..vocabulary.lenses import Lens
from ..vocabulary.projections import project_frame

BASIS: Basis = "folded"  # in which values are read as tokens


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
    before_cap: str
    probability: float | None = None
    foil_probability: float | None = None


def answer(
    attribution: Attribution, top: int, probability: float | None = None, foil_probability: float | None = None
) -> Answer:
    """The sentence's numbers for an attribution of one position; probabilities of target and foil if known."""
    attribution = attribution.total
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
        n_neurons=sum(attribution.widths),
        in_percent=logit > 0 and max(abs(ffn), abs(written)) <= 2 * logit,
        before_cap=attribution.provenance.before_cap,
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
    memories, earlier = sum(by_position), by_position[: paths.answer.positions[0]]
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


@dataclass(frozen=True)
class Chip:
    """One token as shown. ``kind``: "special", "promoted", "suppressed" or ""; ``named``: target or foil."""

    token: str
    kind: str = ""
    title: str = ""
    named: bool = False


def with_bars(frame: pd.DataFrame, column: str) -> list[Any]:
    """The rows of a table as a template reads them, each with the bar of one of its columns."""
    axis = Axis.over(frame[column].tolist())
    return list(frame.assign(bar=[bar(axis, value) for value in frame[column]]).itertuples())


def with_tokens(
    model: Model,
    found: pd.DataFrame,
    tokens: int,
    named: Collection[int],
    fired: str = "coefficient",
    lens: Lens = LOGIT,
) -> pd.DataFrame:
    """A table of neurons with the ``tokens`` tokens that each promotes and suppresses most, as it fired; ``named`` ids
    are marked. ``fired``: the column of coefficients; a negative one promotes what the value suppresses."""
    chips: dict[tuple[int, int, str], list[Chip]] = {}
    for layer in sorted(set(found["layer"])):
        neurons = found.loc[found["layer"] == layer, "neuron"].unique().tolist()
        for row in project_frame(model, layer, neurons, k=tokens, side="value", basis=BASIS, lens=lens).itertuples():
            chip = Chip(row.token, row.sign, f"score {row.score:+.3f}", row.token_id in named)
            chips.setdefault((layer, row.neuron, row.sign), []).append(chip)
    places = list(zip(found["layer"], found["neuron"], found[fired] < 0, strict=True))
    signs = ("promoted", "suppressed")
    return found.assign(
        **{
            sign: [chips.get((*at, other if turned else sign), []) for *at, turned in places]
            for sign, other in zip(signs, signs[::-1], strict=True)
        }
    )


def prompt_chips(capture: Capture, prompt: int | None = None, limit: int | None = None) -> list[Chip]:
    """A prompt's tokens, the first ``limit`` at most; special tokens stand back."""
    model, special = capture.model, capture.model.special_token_ids
    ids = [int(i) for i in capture.tokens[capture.row(prompt), : capture.length(prompt)][:limit]]
    chips = []
    for position, (token_id, text) in enumerate(zip(ids, model.token_strings(ids), strict=True)):
        where = f"position {position}, token {token_id}"
        bos = position == 0 and token_id == model.bos_token_id
        chips.append(Chip(text, "special" if token_id in special else "", f"{'beginning of sequence; ' * bos}{where}"))
    return chips
