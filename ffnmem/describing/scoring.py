"""How well a description fits contexts that were held back, beside the description of another neuron (detection in
Paulo et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import hypot, nan

import numpy as np

from ..neurons.verdicts import share_interval
from . import prompts
from .answers import Answers
from .contexts import DrawnContexts, Place


def pair_others(described: Sequence[Place], seed: int) -> dict[Place, Place]:
    """By neuron, the one whose description is its null: the next in a random circle of all; none of a single one."""
    circle = [described[i] for i in np.random.default_rng([seed, 51]).permutation(len(described)).tolist()]
    return dict(zip(circle, [*circle[1:], *circle[:1]], strict=True)) if len(circle) > 1 else {}


def judge_contexts(
    one: DrawnContexts, asked: str, description: str, answers: Answers, together: int, seed: int
) -> list[float]:
    """Whether a description is said to apply to each context that was held back: 1, 0, or NaN where the answer could
    not be read."""
    said = [nan] * len(one.held)
    order = np.random.default_rng([seed, 52, *one.place]).permutation(len(said)).tolist()
    for start in range(0, len(said), together):
        some = order[start : start + together]
        question = prompts.ask_score(description, [one.held[i] for i in some])
        choices = answers.put(asked, *one.place, question, partial(prompts.read_choices, n=len(some)))
        for i, choice in zip(some, choices or (), strict=False):
            said[i] = float(choice)
    return said


def balanced_accuracy(said: Sequence[float]) -> tuple[float, float, float]:
    """The mean of the shares of right answers on firing contexts (the first half) and on quiet ones, those without an
    answer left out; with its interval, Wilson's of both joined as Newcombe 1998 does. NaN where a half has no answer.
    """
    half = len(said) // 2
    sides = [np.array(said[:half]), 1 - np.array(said[half:])]
    right = [side[~np.isnan(side)] for side in sides]
    if not all(map(len, right)):
        return nan, nan, nan
    shares = [float(side.mean()) for side in right]
    ends = [share_interval(float(side.sum()), len(side)) for side in right]
    below, above = (
        hypot(*(share - end[which] for share, end in zip(shares, ends, strict=True))) / 2 for which in (0, 1)
    )
    middle = sum(shares) / 2
    return middle, middle - below, middle + above
