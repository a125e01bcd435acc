"""The fact that a prompt, a subject and a new target make: a known one where there is one, else a new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import ffnmem as fm

from ..errors import InputError
from ..resources import EMBEDDED
from .guard import note

if TYPE_CHECKING:
    from ..facts import Fact
    from ..models import Model


def own_facts(source: str | None, name: str) -> list[Fact]:
    """The facts of a source; by default those that ship with an embedded model, and none for others."""
    if source is None:
        return fm.load_facts(name) if name in EMBEDDED else []
    return fm.load_facts(source)


def fact_of(
    model: Model,
    prompt: str,
    subject: str,
    target: str,
    known: Sequence[Fact],
    *,
    true: str | None = None,
    paraphrases: Sequence[str] = (),
    neighbours: Sequence[str] = (),
) -> tuple[Fact, str]:
    """The fact to rewrite, and the new target as it was given.

    Args:
        model: asked for what is true where nothing else says it.
        prompt: ends where the target begins; holds the subject, or ``{}`` in its place.
        subject: as it is spelled there.
        target: the new target, with its space or without.
        known: facts to find it in, by their prompt or a paraphrase.
        true: the true target. paraphrases, neighbours: further ones, as whole prompts.

    Raises: InputError: the subject is not in a prompt, an empty target, or an answer of the model that is no word.
    """
    from ..facts import Fact
    from ..facts.spelling import prompt_template

    if not target.strip():
        raise InputError("the new target is empty: give a word, such as --target Rome")
    template, notes = prompt_template(prompt, subject)
    for one in notes:
        note(f"note: {one}")
    found = known_fact(template, subject, known)
    if found is None:
        answer = true_target(model, template.replace("{}", subject)) if true is None else true
        found = Fact(subject, "prompt", template, answer.strip() or answer)
    elif true is not None:
        found = replace(found, target_true=true.strip() or true)
    more = tuple(prompt_template(text, subject)[0] for text in paraphrases)
    return (
        replace(
            found,
            target_new=target.strip(),
            paraphrases=(*found.paraphrases, *more),
            neighbour_prompts=(*found.neighbour_prompts, *neighbours),
        ),
        target,
    )


def known_fact(template: str, subject: str, known: Sequence[Fact]) -> Fact | None:
    """The fact of that subject with that prompt; with it among its paraphrases, as one that is asked in that way."""
    own = [fact for fact in known if fact.subject == subject]
    for fact in own:
        if fact.prompt == template:
            return fact
    for fact in own:
        if template in fact.paraphrases:
            others = (fact.prompt, *(text for text in fact.paraphrases if text != template))
            return replace(fact, prompt=template, paraphrases=others)
    return None


def true_target(model: Model, text: str) -> str:
    """What the model itself says after a prompt."""
    from ..facts.asking import own_answer  # needs torch

    try:
        return own_answer(model, text)
    except InputError as error:
        raise InputError(f"{error} with --true") from None
