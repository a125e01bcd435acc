"""Cases of MQuAKE, read and written: facts that are rewritten together, and a question whose answer follows from them.

Source: Zhong et al. 2023 (2305.14795).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import InputError, quoted
from .fact import Fact, Hop, MultiHop
from .records import case_field, case_name, note_of_fields, optional_text, prompt_of, text_field, texts_of
from .templates import templates_of

MQUAKE = "mquake"
READ = frozenset(
    {"case_id", "requested_rewrite", "questions", "answer", "answer_alias", "answer_extended", "new_answer"}
    | {"new_answer_alias", "single_hops", "new_single_hops"}
)
OWN_ID = re.compile(rf"{MQUAKE}\.(.+)\.\d+", re.DOTALL)


def is_mquake(record: Mapping[str, Any]) -> bool:
    """Whether a record has several rewrites, where CounterFact has one, or questions with an answer of after."""
    return isinstance(record.get("requested_rewrite"), list) or {"questions", "new_answer"} <= set(record)


def mquake(record: dict[str, Any], number: int) -> list[Fact]:
    """A case as facts, one a rewrite, in their order.

    The first has the multi-hop question, which ``needs`` the others. The question form of a rewrite is its paraphrase;
    the aliases of its targets are those of the hop that it is. ``orig`` (the chains as Wikidata's ids) and the ids of
    targets have no place in a fact. ``answer_extended`` of MQuAKE-T joins the answers of before.

    Raises: LeftOut: a rewrite whose subject is not in its prompt. InputError: a field that is missing or of another
        type.
    """
    rewrites = record.get("requested_rewrite")
    rewrites = [rewrites] if isinstance(rewrites, dict) else rewrites
    if not isinstance(rewrites, list | tuple) or not rewrites or not all(isinstance(one, dict) for one in rewrites):
        raise InputError(f"field 'requested_rewrite' must be a list of objects, not {quoted(rewrites)}")
    name = f"{MQUAKE}.{case_name(record, number)}"
    ids = [f"{name}.{i}" for i in range(1, len(rewrites) + 1)]
    questions = texts_of(record.get("questions"), "questions")
    if not questions:
        raise InputError("field 'questions' must hold at least one text")
    text_field(record, "new_answer")
    asked = MultiHop(
        questions,
        joined(record, "answer", "answer_alias", "answer_extended"),
        joined(record, "new_answer", "new_answer_alias"),
        hops_of(record, "single_hops"),
        hops_of(record, "new_single_hops"),
        tuple(ids[1:]),
    )
    notes = note_of_fields(record, READ)
    if texts_of(record.get("answer_extended"), "answer_extended"):
        notes = (*notes, "answer_extended joined with answer_alias")
    return [
        rewrite_of(rewrite, name, asked if not i else None, asked, notes if not i else ())
        for i, (rewrite, name) in enumerate(zip(rewrites, ids, strict=True))
    ]


def rewrite_of(rewrite: dict[str, Any], name: str, own: MultiHop | None, asked: MultiHop, notes: Sequence[str]) -> Fact:
    """One rewrite of a case as a fact; raises as :func:`mquake`."""
    subject = text_field(rewrite, "subject")
    prompt, noted = prompt_of(text_field(rewrite, "prompt"), subject)
    question = optional_text(rewrite, "question")
    paraphrases, left = templates_of(() if question is None else (question,), subject, "question")
    new, true = target_of(rewrite, "target_new"), target_of(rewrite, "target_true")
    if not new:
        raise InputError(f"field 'target_new' must be an object with 'str', not {quoted(rewrite.get('target_new'))}")
    ways = {prompt.replace("{}", subject), *([question] if question else [])}
    return Fact(
        subject=subject,
        relation=optional_text(rewrite, "relation_id") or MQUAKE,
        prompt=prompt,
        target_true=true,
        target_new=new,
        paraphrases=paraphrases,
        id=name,
        notes=(*noted, *left, *notes),
        true_aliases=aliases_of(true, ways, asked.hops_before) if true else (),
        new_aliases=aliases_of(new, ways, asked.hops_after),
        multi_hop=() if own is None else (own,),
    )


def target_of(rewrite: dict[str, Any], name: str) -> str:
    """A target, which is an object with ``str``, a text, or a field of its own; empty where there is none."""
    value = rewrite.get(name)
    if isinstance(value, dict):
        return text_field(value, "str")
    return optional_text(rewrite, name, f"{name}_str") or ""


def aliases_of(target: str, ways: set[str], hops: Sequence[Hop]) -> tuple[str, ...]:
    """What the hop that asks in one of some ways takes for an answer, besides the target."""
    hop = next((hop for hop in hops if ways & {hop.cloze, hop.question}), None)
    answers = () if hop is None else (hop.answer, *hop.aliases)
    return tuple(dict.fromkeys(answer for answer in answers if answer != target))


def joined(record: dict[str, Any], *names: str) -> tuple[str, ...]:
    """The texts of some fields, each once."""
    return tuple(dict.fromkeys(text for name in names for text in texts_of(record.get(name), name)))


def hops_of(record: dict[str, Any], name: str) -> tuple[Hop, ...]:
    """The steps of a chain; raises InputError naming the field."""
    found = [] if record.get(name) is None else record[name]
    if not isinstance(found, list | tuple) or not all(isinstance(hop, dict) for hop in found):
        raise InputError(f"field {quoted(name)} must be a list of objects, not {quoted(found)}")
    try:
        return tuple(
            Hop(
                optional_text(hop, "question") or "",
                optional_text(hop, "cloze") or "",
                text_field(hop, "answer"),
                texts_of(hop.get("answer_alias"), "answer_alias"),
            )
            for hop in found
        )
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def mquake_records(facts: Sequence[Fact]) -> list[tuple[dict[str, Any], list[Fact]]]:
    """Facts as cases, one a multi-hop question, each with the facts that it is about.

    Raises: InputError: facts that no question is about, or a question that needs others than these.
    """
    by_id = {fact.id: fact for fact in facts if fact.id}
    cases = [(fact, asked) for fact in facts for asked in fact.multi_hop]
    needed = {name for _, asked in cases for name in asked.needs}
    missing = sorted(needed - set(by_id))
    if missing:
        raise InputError(f"a multi-hop question needs {quoted(missing[0])} rewritten too, which is none of these facts")
    without = [fact for fact in facts if not fact.multi_hop and fact.id not in needed]
    if without:
        raise InputError(
            f"{len(without)} of {len(facts)} facts have no part in a multi-hop question, which cases of MQuAKE are: "
            f"{quoted(without[0].name)} is the first"
        )
    return [mquake_record(asked, [fact, *(by_id[name] for name in asked.needs)]) for fact, asked in cases]


def mquake_record(asked: MultiHop, facts: list[Fact]) -> tuple[dict[str, Any], list[Fact]]:
    """One case, and the facts in it; raises InputError for one without a new target."""
    lacking = next((fact for fact in facts if not fact.target_new), None)
    if lacking is not None:
        raise InputError(f"fact {quoted(lacking.name)} has no new target, which cases of MQuAKE are about")
    match = OWN_ID.fullmatch(facts[0].id)
    # A fact with several questions is in as many cases, which cannot all have its name.
    name = "" if len(facts[0].multi_hop) > 1 else match[1] if match else facts[0].id
    record = {
        **case_field(name),
        "requested_rewrite": [
            {
                "prompt": fact.prompt,
                **({} if fact.relation in ("", MQUAKE) else {"relation_id": fact.relation}),
                "target_new": {"str": fact.target_new},
                **({"target_true": {"str": fact.target_true}} if fact.target_true else {}),
                "subject": fact.subject,
                **({"question": fact.ask(fact.paraphrases[0])} if fact.paraphrases else {}),
            }
            for fact in facts
        ],
        "questions": list(asked.questions),
        **({"answer": asked.before[0], "answer_alias": list(asked.before[1:])} if asked.before else {}),
        "new_answer": asked.after[0],
        "new_answer_alias": list(asked.after[1:]),
        "single_hops": [hop_record(hop) for hop in asked.hops_before],
        "new_single_hops": [hop_record(hop) for hop in asked.hops_after],
    }
    return record, facts


def hop_record(hop: Hop) -> dict[str, Any]:
    ways = {"question": hop.question, "cloze": hop.cloze}
    return {
        **{name: text for name, text in ways.items() if text},
        "answer": hop.answer,
        "answer_alias": list(hop.aliases),
    }
