"""What is asked about an edit: the prompts of a fact, each with its answers, and what they are asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ..errors import InputError, quoted
from ..facts import Fact
from ..facts.asking import target_ids
from ..facts.fact import KINDS
from ..models import Model
from ..models.scoring import Question

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


def wanted_target(fact: Fact, target: str | None) -> str:
    """The new target of a fact; raises InputError where it has none, or its true one."""
    wanted = (fact.target_new if target is None else target) or ""
    name = fact.name
    if not wanted.strip():
        raise InputError(f"fact {quoted(name)} has no new target: name one, such as target='Rome'")
    if not fact.target_true:
        raise InputError(f"fact {quoted(name)} has no true target to compare the new one with: give target_true")
    if wanted.strip() == fact.target_true.strip():
        raise InputError(f"fact {quoted(name)}: the new target {quoted(wanted.strip())} is its true one already")
    return wanted.strip()


def make_case(model: Model, fact: Fact, target: str | None, roles: Collection[str] = ROLES) -> EditCase:
    """A fact's questions of some roles.

    Args:
        model: whose tokenizer is used.
        fact: what is edited.
        target: default the fact's ``target_new``.
        roles: of ROLES.

    Raises: InputError: no new target, one without tokens, or a prompt of the fact itself that is too long.
    """
    new = wanted_target(fact, target)
    both = (target_ids(model, fact.target_true), target_ids(model, new))
    asked: list[tuple[str, Question]] = []
    unasked = 0
    for role, text, answer in prompts(fact, new):
        if role not in roles:
            continue
        try:
            tokens = tuple(model.tokenize(text))
            answers = both if answer is None else (target_ids(model, answer),)
            longest = len(tokens) + max(map(len, answers)) - 1
            if longest > model.n_ctx:
                raise InputError(f"the prompt and its answer have {longest} tokens; {model.name} reads {model.n_ctx}")
        except InputError:
            if role == "rewrite":
                raise
            unasked += 1
            continue
        asked.append((role, Question(tokens, answers)))
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
