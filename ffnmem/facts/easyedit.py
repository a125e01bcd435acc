"""Records of KnowEdit and of other files of EasyEdit, read and written.

The files differ: KnowEdit's four (ZsRE, WikiData_recent, WikiData_counterfact, WikiBio) name their fields in two ways
and their answers in three, files of before it (``counterfact-edit.json``) have one field a text. All become the same
facts; one form is written, which the loader of EasyEdit takes.

Source: Zhang et al. 2024 (2401.01286); Wang et al. 2023 (2308.07269); the program's ``KnowEditDataset``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, Field

from ..core.errors import InputError, quoted
from .fact import Fact, Probe, ProbeKind
from .foreign import CaseName, ForeignRecord, LeftOut, Text, Texts, case_field, flatten_texts, prompt_of
from .templates import templates_of

KNOWEDIT = "knowedit"
NO_TRUTH = "<|endoftext|>"
"""What EasyEdit puts where nobody says the truth."""

NEIGHBOURS = "neighborhood"
SHORT = {
    "locality_rs": ("locality", "Relation_Specificity"),
    "locality_f": ("locality", "Forgetfulness"),
    "portability_r": ("portability", "Reasoning"),
    "portability_s": ("portability", "Subject_Aliasing"),
    "portability_l": ("portability", "Logical_Generalization"),
}
"""What the program calls lists of questions once it has read them: their side and category."""
ALONE = {"locality": NEIGHBOURS, "portability": "one_hop"}
"""The categories that the program gives questions whose file names none."""
ONE_FIELD = re.compile(r"(locality|portability)(?:_(\w+))?_prompt")
CATEGORIES = {
    "unrelated": NEIGHBOURS,
    "portability": "Reasoning",
    "reverse": "Inverse_Relation",
    "alias": "Subject_Aliasing",
}
"""By kind of probe, the category that one without a name is written as."""

Answers = Annotated[Texts, AfterValidator(lambda texts: tuple(text for text in texts if text != NO_TRUTH))]


class KnowEditRecord(ForeignRecord):
    """A record of KnowEdit or EasyEdit.

    ``ground_truth`` is text, a list or a list of lists: the first answer is the true target, the others are its
    aliases; where it is missing (WikiData_recent inserts what nobody knew) the fact has no true target. ``locality``
    and ``portability`` become probes that keep the names of their categories: what must stay as it is "unrelated",
    subjects by other names "alias", inverse relations "reverse", all else "portability". Neighbours with the fact's
    own truth become neighbour_prompts.
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


def kind_of(side: str, category: str) -> ProbeKind:
    """The kind of probe that a category's questions are."""
    name = category.lower()
    if side == "locality":
        return "unrelated"
    if "alias" in name or "subject_replace" in name:
        return "alias"
    return "reverse" if "revers" in name or "invers" in name else "portability"


def questions(fields: dict[str, Any]) -> Iterator[Probe | None]:
    """Every question among the fields of a record, which are taken out; None for one without text or answer."""
    for side in ("locality", "portability"):
        for name in (side, f"{side}_inputs"):
            found = fields.pop(name, {})
            if not isinstance(found, dict):
                raise InputError(f"field {quoted(name)} must be an object, not {quoted(found)}")
            if GENERATED[0] in found:
                item = {"prompt": found[GENERATED[0]], "ground_truth": found.get(GENERATED[1])}
                yield from asked_in(side, ALONE[side], item)
            for category, value in found.items():
                if category not in GENERATED:
                    yield from asked_in(side, category, value)
    for name, (side, category) in SHORT.items():
        yield from asked_in(side, category, fields.pop(name, None))
    for name in list(fields):
        if match := ONE_FIELD.fullmatch(name):
            answer = fields.pop(name.removesuffix("prompt") + "ground_truth", None)
            item = {"prompt": fields.pop(name), "ground_truth": answer}
            yield from asked_in(match[1], match[2] or ALONE[match[1]], item)
    if "loc" in fields:
        item = {"prompt": fields.pop("loc"), "ground_truth": fields.pop("loc_ans", None)}
        yield from asked_in("locality", NEIGHBOURS, item)


GENERATED = ("New Question", "New Answer", "Recalled Relation")
"""The fields of the one question of ``zsre_mend_eval_portability_gpt4.json``, which stand where categories do."""


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
            yield Probe(kind, text, right[0], right[1:], category) if text and right else None


def knowedit_record(fact: Fact) -> dict[str, Any]:
    """A fact as the loader of EasyEdit takes it: one answer is text, several are a list; raises InputError.

    Neighbours become whole prompts. Relations are written as ``relation_id``, which the loader passes over.
    """
    if not fact.target_new:
        raise InputError("it has no new target, which records of KnowEdit are about")
    record: dict[str, Any] = {
        **case_field(fact.id.removeprefix(f"{KNOWEDIT}.")),
        "subject": fact.subject,
        "prompt": fact.text,
        "target_new": fact.target_new,
        "ground_truth": one_or_list((fact.target_true, *fact.true_aliases) if fact.target_true else ()),
        "rephrase_prompt": one_or_list(tuple(fact.ask(template) for template in fact.paraphrases)),
        "relation_id": "" if fact.relation == KNOWEDIT else fact.relation,
    }
    record = {name: value for name, value in record.items() if value not in ("", [])}
    sides: dict[str, dict[str, list[dict[str, Any]]]] = {"locality": {}, "portability": {}}
    truth = one_or_list((fact.target_true, *fact.true_aliases))
    for text in fact.prompts_about_neighbours if fact.target_true else ():
        sides["locality"].setdefault(NEIGHBOURS, []).append({"prompt": text, "ground_truth": truth})
    for probe in fact.probes:
        side = sides["locality" if probe.kind == "unrelated" else "portability"]
        item = {"prompt": probe.prompt, "ground_truth": one_or_list((probe.target, *probe.aliases))}
        side.setdefault(probe.category or CATEGORIES[probe.kind], []).append(item)
    # The loader asks every record for its locality.
    return record | {name: side for name, side in sides.items() if side or name == "locality"}


def one_or_list(texts: tuple[str, ...]) -> str | list[str]:
    return texts[0] if len(texts) == 1 else list(texts)
