"""How well descriptions fit contexts that nobody was shown: detection, fuzzing and intruders, as delphi has them.

- **Detection**: does the description apply to a context? Firing contexts of every band against quiet ones.
- **Fuzzing**: are the marked tokens the ones? Each firing context twice, in different questions: with the tokens marked
  at which the neuron fires, and with as many others at which it is quiet (delphi's ``fuzz_type="active"``).
- **Intruder**: four firing contexts and a quiet one with as many random tokens marked: which does not belong? No
  description is needed.

Detection and fuzzing are balanced accuracies, .5 by chance; intruders are found in one of five by chance.

Source: Paulo et al. 2024, "Automatically interpreting millions of features in large language models" (delphi).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import nan, sqrt
from typing import Any

import numpy as np
from jaxtyping import Float64

from ..core.progress import Progress
from ..neurons.verdicts import share_interval
from . import prompts
from .answers import Answers, Asker, Question
from .extracts import Extract, NeuronContexts
from .rules import BEGINS, Rule, plain

TOGETHER = 5  # contexts in a question, as delphi's default
SHOWN = 5  # contexts of which one is an intruder


@dataclass
class Trial:
    """One thing to be judged.

    Attributes:
        score: which. extract: of an intruder, that one.
        truth: 1 or 0; of an intruder, its place among ``shown``.
        marked: tokens of it. shown: of an intruder, all five, each with its marks.
        right: whether the judge was right, or a share of it; NaN without a usable answer.
    """

    layer: int
    neuron: int
    score: str
    extract: Extract
    truth: int
    marked: tuple[int, ...] = ()
    shown: tuple[tuple[Extract, tuple[int, ...]], ...] = ()
    right: float = nan

    def row(self) -> tuple[Any, ...]:
        """Layer, neuron, score, sequence, position, band, truth and right."""
        place = self.extract.sequence, self.extract.position, self.extract.band
        return (self.layer, self.neuron, self.score, *place, self.truth, self.right)


TrialGroup = list[Trial]
"""The trials that are one question, all of one score."""


def make_trial_groups(drawn: NeuronContexts, score: str, seed: int) -> list[TrialGroup]:
    """What a judge is asked about a neuron."""
    return list(
        MAKERS[score](drawn, np.random.default_rng([seed, 53, drawn.layer, drawn.neuron, [*MAKERS].index(score)]))
    )


def make_detection(drawn: NeuronContexts, rng: np.random.Generator) -> Iterator[TrialGroup]:
    """Firing and quiet contexts in random order."""
    some = [(one, 1) for one in drawn.tested] + [(one, 0) for one in drawn.quiet]
    for chunk in split_chunks([some[i] for i in rng.permutation(len(some)).tolist()]):
        yield [Trial(drawn.layer, drawn.neuron, "detection", one, truth) for one, truth in chunk]


def make_fuzzing(drawn: NeuronContexts, rng: np.random.Generator) -> Iterator[TrialGroup]:
    """Firing contexts, each marked rightly in one question and wrongly in another."""
    some = []
    for one in drawn.tested:
        count = min(len(one.marked), len(one.silent))
        if count:
            wrong = np.sort(rng.choice(one.silent, count, replace=False)).tolist()
            some.append((one, (tuple(wrong), one.marked), int(rng.integers(2))))
    for chunk in split_chunks([some[i] for i in rng.permutation(len(some)).tolist()]):
        for turned in (0, 1):
            yield [
                Trial(drawn.layer, drawn.neuron, "fuzzing", one, first ^ turned, marks[first ^ turned])
                for one, marks, first in chunk
            ]


def make_intruder(drawn: NeuronContexts, rng: np.random.Generator) -> Iterator[TrialGroup]:
    """Each quiet context among four firing ones."""
    if len(drawn.tested) < SHOWN - 1:
        return
    marks = max(round(float(np.mean([len(one.marked) for one in drawn.tested]))), 1)
    for strange in drawn.quiet:
        four = [drawn.tested[i] for i in rng.choice(len(drawn.tested), SHOWN - 1, replace=False).tolist()]
        count = min(marks, len(strange.tokens))
        random = tuple(np.sort(rng.choice(len(strange.tokens), count, replace=False)).tolist())
        at = int(rng.integers(SHOWN))
        shown = [(one, one.marked) for one in four]
        shown.insert(at, (strange, random))
        yield [Trial(drawn.layer, drawn.neuron, "intruder", strange, at, random, tuple(shown))]


MAKERS: dict[str, Callable[[NeuronContexts, np.random.Generator], Iterator[TrialGroup]]] = {
    "detection": make_detection,
    "fuzzing": make_fuzzing,
    "intruder": make_intruder,
}


def split_chunks(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), TOGETHER):
        yield items[start : start + TOGETHER]


# Judges.


def judge_by_rule(groups: Sequence[TrialGroup], rule: Rule) -> None:
    """By trigger tokens: a context is the neuron's if the rule holds anywhere in it, marks are right if it holds at
    half of them, and the intruder is the one whose marked words are least like the others'."""
    for trial in (trial for group in groups for trial in group):
        if trial.score == "detection":
            trial.right = float(rule.within(trial.extract) == bool(trial.truth))
        elif trial.score == "fuzzing":
            held = [rule.matches(trial.extract.tokens, at) for at in trial.marked]
            trial.right = float((sum(held) * 2 >= len(held)) == bool(trial.truth))
        else:
            words = [[plain(one.tokens[at]) for at in marked] for one, marked in trial.shown]
            words.append(words.pop(trial.truth))
            alike = np.array([[max(likeness(x, y) for x in a for y in b) for b in words] for a in words])
            trial.right = float(find_odd_one(alike[None])[0])


def find_odd_one(similarity: Float64[np.ndarray, "n shown shown"]) -> Float64[np.ndarray, " n"]:
    """Whether the last of five is the least like the others: 1, 0, or a share of 1 where it is so with others."""
    alone = similarity.copy()
    alone[:, range(SHOWN), range(SHOWN)] = 0.0
    likeness = alone.sum(2) / (SHOWN - 1)
    least = likeness <= likeness.min(1, keepdims=True) + 1e-9
    return np.where(least[:, -1], 1 / least.sum(1), 0.0)


def likeness(a: str, b: str) -> float:
    """How much of the longer of two words is a beginning that both have; none if that is short."""
    shared = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return shared / max(len(a), len(b), 1) if a == b or shared >= BEGINS else 0.0


def judge_by_asking(
    groups: Sequence[tuple[TrialGroup, str]],
    asker: Asker,
    answers: Answers,
    progress: Progress | None,
) -> None:
    """By whoever is asked; each group comes with the description that it is about."""
    questions = [
        Question(one[0].score, one[0].layer, one[0].neuron, write_question(one, description))
        for one, description in groups
    ]
    for (group, _), answer in zip(groups, answers.ask(asker, questions, progress, "judge"), strict=True):
        read_answer(group, answer)


def write_question(group: TrialGroup, description: str) -> prompts.Messages:
    """The question of a group."""
    first = group[0]
    if group[0].score == "intruder":
        return prompts.intrude([prompts.mark_tokens(one, marked) for one, marked in first.shown])
    question = prompts.DETECT if group[0].score == "detection" else prompts.FUZZ
    return prompts.judge(question, description, [prompts.mark_tokens(one.extract, one.marked) for one in group])


def read_answer(group: TrialGroup, answer: str) -> None:
    """What was right in an answer; nothing changes where it cannot be used."""
    if group[0].score == "intruder":
        found = prompts.find_number(answer, SHOWN)
        if found is not None:
            group[0].right = float(found == group[0].truth)
        return
    said = prompts.find_choices(answer, len(group))
    for trial, one in zip(group, said or (), strict=False):
        trial.right = float(one == bool(trial.truth))


# Scores.


def compute_score(trials: Sequence[Trial], score: str) -> tuple[float, float, float]:
    """A score and the ends of its 95% interval; NaN where nothing usable was judged."""
    judged = [trial for trial in trials if trial.score == score and trial.right == trial.right]
    if score == "intruder":
        return share_with_interval([trial.right for trial in judged])
    if score == "fuzzing":
        by_context: dict[tuple[int, int], list[float]] = {}
        for trial in judged:
            by_context.setdefault((trial.extract.sequence, trial.extract.position), []).append(trial.right)
        return share_with_interval([sum(both) / 2 for both in by_context.values() if len(both) == 2])
    return balanced_accuracy(*([trial.right for trial in judged if trial.truth == truth] for truth in (1, 0)))


def share_with_interval(right: Sequence[float]) -> tuple[float, float, float]:
    """A mean of numbers from 0 to 1 and its interval (Wilson): no such numbers vary more than those of 0 and 1 do."""
    low, high = share_interval(sum(right), len(right))
    return (sum(right) / len(right) if right else nan), low, high


def balanced_accuracy(firing: Sequence[float], quiet: Sequence[float]) -> tuple[float, float, float]:
    """The mean of two shares, and its interval from theirs (Wilson's, joined as Newcombe 1998 does)."""
    if not firing or not quiet:
        return nan, nan, nan
    (p, p_low, p_high), (q, q_low, q_high) = share_with_interval(firing), share_with_interval(quiet)
    middle = (p + q) / 2
    low, high = sqrt((p - p_low) ** 2 + (q - q_low) ** 2) / 2, sqrt((p_high - p) ** 2 + (q_high - q) ** 2) / 2
    return middle, middle - low, middle + high
