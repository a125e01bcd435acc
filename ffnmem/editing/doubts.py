"""What is doubtful about an edit: a target that the model finds absurd, a layer that changes much."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..errors import InputError, quoted
from ..facts.asking import target_ids
from ..models import Model
from ..models.plain_layers import PlainLayers
from ..models.scoring import Answered, Question, answer
from .requests import Request

CHANGE = 0.35
"""Of ‖ΔW‖/‖W‖. Of 90 edits of atlas's own facts by rome, the 40 with the least likely of 4,000 targets among them, none
changes its layer by more than .34, half of them by less than .15; " paris" in three pieces takes .40."""

CHANCE = 1e-4
"""Of the probability that a blind guess over the vocabulary has, for each token of a target. Of atlas's facts, 2 in 100
have false targets below it, such as Tripoli as a capital in Europe, which take the largest changes of all."""


def target_doubts(layers: PlainLayers, requests: Sequence[Request]) -> tuple[str, ...]:
    """For each request, why its target is likely not what was meant; empty where nothing speaks against it."""
    model = layers.model
    others = [other_spellings(model, request) for request in requests]
    questions = [
        Question(request.prompt, (request.ids, *(ids for _, ids in other)))
        for request, other in zip(requests, others, strict=True)
    ]
    found, _ = answer(layers, questions)
    spellings = [[word for word, _ in other] for other in others]
    return tuple(
        target_doubt(model, request, words, said)
        for request, words, said in zip(requests, spellings, found, strict=True)
    )


def other_spellings(model: Model, request: Request) -> list[tuple[str, tuple[int, ...]]]:
    """The target with other capitals where that is a single token and the target itself is none."""
    if len(request.ids) == 1:
        return []
    word = request.target
    found: list[tuple[str, tuple[int, ...]]] = []
    for other in dict.fromkeys((word.capitalize(), word.title(), word.lower(), word.upper())):
        try:
            ids = target_ids(model, other)
        except InputError:  # no word of this model at all
            continue
        if len(ids) == 1 and other != word:
            found.append((other, ids))
    return found


def target_doubt(model: Model, request: Request, words: Sequence[str], said: Answered) -> str:
    """Another spelling that is likelier, else a probability far below that of a blind guess."""
    logs = [float(log.sum()) for log in said.log_probabilities]
    target, where = quoted(f" {request.target}"), quoted(request.fact.text)
    best = max(range(len(logs)), key=logs.__getitem__)
    if best:
        return (
            f"target {target} is {len(request.ids)} tokens of {model.name} ({model.token_line(request.ids)}) with a "
            f"probability of {math.exp(logs[0]):.1g} after {where}; {quoted(f' {words[best - 1]}')} is one token with "
            f"{math.exp(logs[best]):.3g}: is that meant?"
        )
    each = math.exp(said.mean_log(0))
    if each < CHANCE / model.d_vocab:
        tokens = "" if len(request.ids) == 1 else " a token"
        return (
            f"target {target} is absurd to {model.name} after {where}: its probability is {each:.1g}{tokens}, below "
            f"{CHANCE:g} of a blind guess"
        )
    return ""


def change_doubt(layer: int, ratio: float) -> str:
    """Of an edit that changes a layer much."""
    if not ratio > CHANGE:
        return ""
    return (
        f"the edit changes layer {layer} by {ratio:.0%} of its norm, where edits to targets that the model finds "
        f"plausible need less than {CHANGE:.0%}: look at what else moved"
    )
