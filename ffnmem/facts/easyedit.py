"""Records of KnowEdit and of other files of EasyEdit.

The files differ: KnowEdit's four (ZsRE, WikiData_recent, WikiData_counterfact, WikiBio) name their fields in two ways
and their answers in three, files of before it (``counterfact-edit.json``) have one field a text. All become the same
facts.

Source: Zhang et al. 2024 (2401.01286); Wang et al. 2023 (2308.07269); the program's ``KnowEditDataset``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, Field

from ..core.errors import InputError, quoted
from .fact import Fact, Probe, ProbeKind
from .foreign import CaseName, ForeignRecord, LeftOut, Text, Texts, flatten_texts, prompt_of
from .templates import templates_of

KNOWEDIT = "knowedit"
NO_TRUTH = "<|endoftext|>"
"""What EasyEdit puts where nobody says the truth."""

NEIGHBOURS = "neighborhood"
SHORT = {
    "locality_rs": ("locality", "Relation_Specificity"),
    "locality_f": ("locality", "Forgetfulness"),
    "portability_s": ("portability", "Subject_Aliasing"),
}
"""What the program calls lists of questions once it has read them: their side and category."""
ONE_FIELD = re.compile(r"(locality|portability)(?:_(\w+))?_prompt")
Answers = Annotated[Texts, AfterValidator(lambda texts: tuple(text for text in texts if text != NO_TRUTH))]


class KnowEditRecord(ForeignRecord):
    """A record of KnowEdit or EasyEdit.

    ``ground_truth`` is text, a list or a list of lists: the first answer is the true target, the others are its
    aliases; where it is missing (WikiData_recent inserts what nobody knew) the fact has no true target. ``locality``
    and ``portability`` become probes that keep the names of their categories: what must stay as it is "unrelated",
    subjects by other names "alias", inverse relations "reverse"; other categories of portability are left out with a
    note. Neighbours with the fact's own truth become neighbour_prompts.
    """

    case_id: CaseName = ""
    subject: Text = Field("", validation_alias=AliasChoices("subject", "concept"))
    prompt: Text = Field(validation_alias=AliasChoices("prompt", "text"))
    target_new: Answers = Field((), validation_alias=AliasChoices("target_new", "labels"))
    ground_truth: Answers = ()
    paraphrases: Texts = Field(
        (), validation_alias=AliasChoices("rephrase_prompt", "rephrase_prompts", "rephrase", "paraphrase_prompts")
    )
    relation: Text = Field(KNOWEDIT, validation_alias=AliasChoices("relation_id", "relation"))

    def facts(self, number: int) -> list[Fact]:
        """Raises LeftOut: no subject, one that is not in the prompt, or no target. InputError: a broken question."""
        if not self.subject:
            raise LeftOut("it has no subject")
        prompt, notes = prompt_of(self.prompt, self.subject)
        new, true = self.target_new, self.ground_truth
        if not new and not true:
            raise LeftOut("it has neither target_new nor ground_truth")
        paraphrases, left = templates_of(self.paraphrases, self.subject, "paraphrase")
        probes, without = probes_of(questions(self.rest))
        beside = [one for one in probes if one.category == NEIGHBOURS and (one.target, *one.aliases) == true]
        fact = Fact(
            subject=self.subject,
            relation=self.relation,
            prompt=prompt,
            target_true=true[0] if true else "",
            target_new=new[0] if new else None,
            paraphrases=paraphrases,
            id=f"{KNOWEDIT}.{self.case_id or f'#{number}'}",
            neighbour_prompts=tuple(one.prompt for one in beside),
            probes=tuple(one for one in probes if one not in beside),
            notes=(*notes, *left, *without, *self.note_rest()),
            true_aliases=true[1:],
            new_aliases=new[1:],
        )
        return [fact]


def probes_of(questions: Iterable[Probe | None]) -> tuple[tuple[Probe, ...], tuple[str, ...]]:
    """Those of some questions that can be asked, and a note on the others."""
    every = list(questions)
    left = every.count(None)
    note = f"questions left out that have no prompt or no answer: {left}"
    return tuple(one for one in every if one is not None), (note,) if left else ()


def kind_of(side: str, category: str) -> ProbeKind | None:
    """The kind of probe that a category's questions are; None for what follows from the new target by further facts."""
    name = category.lower()
    if side == "locality":
        return "unrelated"
    if "alias" in name or "subject_replace" in name:
        return "alias"
    return "reverse" if "revers" in name or "invers" in name else None


def questions(fields: dict[str, Any]) -> Iterator[Probe | None]:
    """Every question of some kind among the fields of a record, which are taken out; None for one without text or
    answer."""
    for side in ("locality", "portability"):
        for name in (side, f"{side}_inputs"):
            found = fields.pop(name, {})
            if not isinstance(found, dict):
                raise InputError(f"field {quoted(name)} must be an object, not {quoted(found)}")
            if left := {category: value for category, value in found.items() if kind_of(side, category) is None}:
                fields[name] = left
            for category, value in found.items():
                if category not in left:
                    yield from asked_in(side, category, value)
    for name, (side, category) in SHORT.items():
        yield from asked_in(side, category, fields.pop(name, None))
    for name in list(fields):
        match = ONE_FIELD.fullmatch(name)
        if match and kind_of(match[1], match[2] or NEIGHBOURS) is not None:
            answer = fields.pop(name.removesuffix("prompt") + "ground_truth", None)
            item = {"prompt": fields.pop(name), "ground_truth": answer}
            yield from asked_in(match[1], match[2] or NEIGHBOURS, item)
    if "loc" in fields:
        item = {"prompt": fields.pop("loc"), "ground_truth": fields.pop("loc_ans", None)}
        yield from asked_in("locality", NEIGHBOURS, item)


def asked_in(side: str, category: str, value: Any) -> Iterator[Probe | None]:
    """The questions of a category: objects with prompt and ground_truth, one or a list; or two lists side by side."""
    for item in value if isinstance(value, list | tuple) else (value,):
        if item is None:
            continue
        if not isinstance(item, dict) or "prompt" not in item:
            raise InputError(
                f"{side} {quoted(category)} must hold objects with prompt and ground_truth, not {quoted(item)}"
            )
        prompt, answers = item["prompt"], item.get("ground_truth", item.get("answer"))
        pairs = [(prompt, answers)]
        if isinstance(prompt, list | tuple):
            each = answers if isinstance(answers, list | tuple) else (answers,)
            if len(each) != len(prompt) != 1:
                raise InputError(f"{side} {quoted(category)} has {len(prompt)} prompts and {len(each)} ground truths")
            pairs = list(zip(prompt, each, strict=True)) if len(each) == len(prompt) else [(prompt[0], answers)]
        for one, answer in pairs:
            if not isinstance(one, str | None):
                raise InputError(f"{side} {quoted(category)}: a prompt must be text, not {quoted(one)}")
            text, right = (one or "").strip(), flatten_texts(answer)
            kind = kind_of(side, category)
            assert kind is not None
            yield Probe(kind, text, right[0], right[1:], category) if text and right else None
