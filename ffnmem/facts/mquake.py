"""Cases of MQuAKE, read and written: facts that are rewritten together, and a question whose answer follows from them.

Source: Zhong et al. 2023 (2305.14795).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field

from ..core.errors import InputError, quoted
from .fact import Fact, Hop, MultiHop
from .foreign import CaseName, ForeignRecord, Text, Texts, Word, case_field, flatten_texts, prompt_of
from .templates import templates_of

MQUAKE = "mquake"
OWN_ID = re.compile(rf"{MQUAKE}\.(.+)\.\d+", re.DOTALL)


class RewriteRecord(ForeignRecord):
    """One fact of a case; its targets are objects with ``str``, texts, or fields of their own."""

    subject: Text
    prompt: Text
    question: Text = ""
    relation_id: Text = MQUAKE
    target_new: Word = Field(validation_alias=AliasChoices("target_new", "target_new_str"))
    target_true: Word = Field("", validation_alias=AliasChoices("target_true", "target_true_str"))

    def fact(self, name: str, asked: MultiHop) -> Fact:
        """As a fact; raises LeftOut where the subject is not in the prompt."""
        prompt, noted = prompt_of(self.prompt, self.subject)
        paraphrases, left = templates_of(tuple(filter(None, (self.question,))), self.subject, "question")
        ways = {prompt.replace("{}", self.subject), self.question} - {""}
        return Fact(
            subject=self.subject,
            relation=self.relation_id,
            prompt=prompt,
            target_true=self.target_true,
            target_new=self.target_new,
            paraphrases=paraphrases,
            id=name,
            notes=(*noted, *left),
            true_aliases=aliases_of(self.target_true, ways, asked.hops_before) if self.target_true else (),
            new_aliases=aliases_of(self.target_new, ways, asked.hops_after),
        )


def hop_fields(value: Any) -> Any:
    """The fields of a step as :class:`Hop` has them."""
    if not isinstance(value, dict):
        return value
    found = {name: one for name in ("question", "cloze") if (one := value.get(name)) is not None}
    aliases = flatten_texts(value.get("answer_alias"))
    return {"question": "", "cloze": "", **found, "answer": value.get("answer"), "aliases": aliases}


HopRecords = tuple[Annotated[Hop, BeforeValidator(hop_fields)], ...]


class MQuakeRecord(ForeignRecord):
    """A case: a fact a rewrite, in their order.

    The first has the multi-hop question, which ``needs`` the others. The question form of a rewrite is its paraphrase;
    the aliases of its targets are those of the hop that it is. ``orig`` (the chains as Wikidata's ids) and the ids of
    targets have no place in a fact. ``answer_extended`` of MQuAKE-T joins the answers of before.
    """

    case_id: CaseName = ""
    requested_rewrite: Annotated[
        tuple[RewriteRecord, ...], BeforeValidator(lambda value: [value] if isinstance(value, dict) else value)
    ]
    questions: Annotated[Texts, Field(min_length=1)]
    answer: Texts = ()
    answer_alias: Texts = ()
    answer_extended: Texts = ()
    new_answer: Text
    new_answer_alias: Texts = ()
    single_hops: HopRecords = ()
    new_single_hops: HopRecords = ()

    def facts(self, number: int) -> list[Fact]:
        """Raises LeftOut: a rewrite whose subject is not in its prompt."""
        name = f"{MQUAKE}.{self.case_id or f'#{number}'}"
        ids = [f"{name}.{i}" for i in range(1, len(self.requested_rewrite) + 1)]
        asked = MultiHop(
            self.questions,
            tuple(dict.fromkeys((*self.answer, *self.answer_alias, *self.answer_extended))),
            tuple(dict.fromkeys((self.new_answer, *self.new_answer_alias))),
            self.single_hops,
            self.new_single_hops,
            tuple(ids[1:]),
        )
        notes = (*self.note_rest(), *(["answer_extended joined with answer_alias"] if self.answer_extended else []))
        first, *others = (one.fact(own, asked) for one, own in zip(self.requested_rewrite, ids, strict=True))
        return [replace(first, notes=(*first.notes, *notes), multi_hop=(asked,)), *others]


def aliases_of(target: str, ways: set[str], hops: Sequence[Hop]) -> tuple[str, ...]:
    """What the hop that asks in one of some ways takes for an answer, besides the target."""
    hop = next((hop for hop in hops if ways & {hop.cloze, hop.question}), None)
    answers = () if hop is None else (hop.answer, *hop.aliases)
    return tuple(dict.fromkeys(answer for answer in answers if answer != target))


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
