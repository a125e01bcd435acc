"""What is asked about an edit, and many facts' prompts answered in batches, each under its own fact's edit."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import InputError, quoted
from ..editing.changes import RowChanges
from ..editing.edit import Edit, row_changes
from ..editing.requests import new_target
from ..facts.answers import make_question
from ..facts.fact import KINDS, Fact
from ..models.answers import BATCH_TOKENS, Answered, Question, answer
from ..models.model import Model
from ..models.replaying import PlainLayers
from .metrics import METRICS, Replies, from_prompts

ROLES = ("rewrite", "paraphrase", "neighbour", "plus", *KINDS)
NEXT = ("neighbour", "unrelated")  # whose next token's whole distribution is compared


@dataclass(frozen=True, eq=False)
class EditCase:
    """One fact with its new target, and its questions.

    Attributes:
        fact: what is edited.
        target: the new one, a plain word or some.
        roles: what each question is asked for.
        questions: as many; the answers are (true, new), of probes the probe's own.
        unasked: prompts that are longer than the model reads, and so were left out.
    """

    fact: Fact
    target: str
    roles: tuple[str, ...]
    questions: tuple[Question, ...]
    unasked: int


def make_case(model: Model, fact: Fact, target: str | None, roles: Collection[str] = ROLES) -> EditCase:
    """A fact's questions of some roles, towards a target, by default the fact's ``target_new``.

    Raises: InputError: no new target, one without tokens, or a prompt of the fact itself that is too long.
    """
    new = new_target(fact, target)
    if not fact.target_true:
        raise InputError(f"fact {quoted(fact.text)} has no true target to compare the new one with: give target_true")
    asked: list[tuple[str, Question]] = []
    unasked = 0
    for role, text, one in prompts(fact, new):
        if role not in roles:
            continue
        try:
            question = make_question(model, text, *((fact.target_true, new) if one is None else (one,)))
        except InputError:
            if role == "rewrite":
                raise
            unasked += 1
            continue
        asked.append((role, question))
    return EditCase(fact, new, tuple(role for role, _ in asked), tuple(question for _, question in asked), unasked)


def prompts(fact: Fact, new: str) -> Iterator[tuple[str, str, str | None]]:
    """Role, text and (of probes) answer of everything that a record lets us ask."""
    yield "rewrite", fact.text, None
    for template in fact.paraphrases:
        yield "paraphrase", fact.ask(template), None
    for text in fact.prompts_about_neighbours:
        yield "neighbour", text, None
    for text in fact.prompts_about_neighbours:
        # Hoelscher-Obermaier et al. 2023 (2305.17553): an edited model should not mistake the mention for the question.
        yield "plus", f"{fact.text} {new}. {text}", None
    for probe in fact.probes:
        yield probe.kind, probe.prompt, probe.target


# Metrics of edits: many facts' prompts in batches, each row under its own fact's edit, the weights untouched.

GATHERED = 1 << 26  # numbers of factors that the rows of a batch may take: 256 MiB in float32
SHORT = 8  # tokens of a short prompt

CaseAnswers = list[Answered]
"""What a model says to the questions of a case, in their order."""


def ask_cases(
    layers: PlainLayers,
    cases: Sequence[EditCase],
    edits: Sequence[Edit | None] | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> tuple[list[CaseAnswers], list[CaseAnswers]]:
    """What a model says to the questions of each case: as it is, and with the case's own edit, if it has one."""
    before: list[CaseAnswers] = []
    after: list[CaseAnswers] = []
    own = [None] * len(cases) if edits is None else list(edits)
    for some in case_slices(own, batch_tokens):
        for into, found in zip((before, after), ask_slice(layers, cases[some], own[some], batch_tokens), strict=True):
            into += found
    return before, after


def case_slices(edits: Sequence[Edit | None], batch_tokens: int) -> Iterator[slice]:
    """Cases that are asked in one go: all, unless their edits are too large to be laid beside each other by rows."""
    size = max((c.rank * (c.left.shape[1] + c.right.shape[1]) for e in edits if e for c in e.changes), default=0)
    if size * batch_tokens // SHORT <= GATHERED:
        yield slice(0, len(edits))
    else:  # one edit at a time needs no gathering
        yield from (slice(i, i + 1) for i in range(len(edits)))


def changes_by_owner(model: Model, edits: Sequence[Edit | None], owners: Sequence[int]) -> RowChanges | None:
    """For rows that belong to some of these edits, each with its own; None where none has any."""
    made = [edit for edit in edits if edit is not None]
    place = {id(edit): i for i, edit in enumerate(made)}
    rows = [-1 if (edit := edits[owner]) is None else place[id(edit)] for owner in owners]
    return row_changes(model, made, rows) if made else None


def ask_slice(
    layers: PlainLayers, cases: Sequence[EditCase], edits: Sequence[Edit | None], batch_tokens: int
) -> tuple[list[CaseAnswers], list[CaseAnswers]]:
    """As :func:`ask_cases`, for cases that are asked together."""
    found: tuple[list[list[Answered | None]], ...] = tuple([[None] * len(c.roles) for c in cases] for _ in range(2))
    for next_token in (False, True):
        where = [
            (i, j) for i, case in enumerate(cases) for j, role in enumerate(case.roles) if (role in NEXT) is next_token
        ]
        if not where:
            continue
        questions = [cases[i].questions[j] for i, j in where]
        rows = changes_by_owner(layers.model, edits, [i for i, _ in where])
        changed: dict[str, Any] = {} if rows is None else {"changing": rows.changing, "start": rows.lowest}
        both = answer(layers, questions, next_token=next_token, batch_tokens=batch_tokens, **changed)
        for into, answers in zip(found, both, strict=True):
            for (i, j), one in zip(where, answers, strict=True):
                into[i][j] = one
    before, after = ([[one for one in case if one is not None] for case in side] for side in found)
    return before, after


def measure(case: EditCase, before: CaseAnswers, after: CaseAnswers, metrics: Sequence[str]) -> dict[str, float]:
    """Those of some metrics that are read off answers to a case's own prompts, NaN where it has no such prompt."""
    found: dict[str, float] = {}
    for name in from_prompts(metrics):
        metric = METRICS[name]
        at = [i for i, role in enumerate(case.roles) if role == metric.asks]
        questions = [case.questions[i] for i in at]
        old, new = (Replies(questions, [side[i] for i in at]) for side in (before, after))
        if metric.moved is not None:
            found[name] = metric.average(metric.moved(old, new))
        elif metric.of is not None:
            found |= {f"{name}_before": metric.average(metric.of(old)), name: metric.average(metric.of(new))}
    return found
