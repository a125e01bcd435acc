"""One reader a format of facts: a record of a public data set becomes a :class:`Fact`, and nothing is invented."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InputError, quoted
from .fact import Fact, Probe
from .records import optional_text, text_field, text_list
from .spelling import prompt_template, templates_of

OWN = frozenset({"subject", "relation", "prompt", "target_true"})
FLAT = frozenset({"subject", "prompt", "target_true"})
FOREIGN = frozenset({"relation_id", "relation_prefix", "target_false", "case_id", "paraphrase_prompts"})
"""Fields of flattened CounterFact copies that the project's own facts do not have."""


def counterfact(record: dict[str, Any], number: int) -> Fact:
    """A record of CounterFact, as in ``counterfact.json`` or a copy of it with one column a field.

    The subject's literal name in paraphrases and generation prompts becomes ``{}``; those without it, or with it
    twice, are left out with a note. ``neighborhood_prompts`` become neighbour_prompts. ``attribute_prompts`` (about
    subjects for which the *new* target is true) have no place in a fact. A flattened copy has ``target_new`` or
    ``target_false``, and its prompt may hold the subject.

    Source: Meng et al. 2022 (2202.05262), appendix E; counterfact-tracing of the Hugging Face hub.
    """
    rewrite = record.get("requested_rewrite", record)
    if not isinstance(rewrite, dict):
        raise InputError(f"field 'requested_rewrite' must be an object, not {quoted(rewrite)}")
    nested = rewrite is not record
    subject = text_field(rewrite, "subject")
    prompt, notes = counterfact_prompt(rewrite, subject)
    target_true = word_of(rewrite, "target_true") if nested else text_field(rewrite, "target_true")
    if nested:
        target_new = None if rewrite.get("target_new") is None else word_of(rewrite, "target_new")
    else:
        target_new = optional_text(rewrite, "target_new", "target_false")
    paraphrases, left = templates_of(text_list(record, "paraphrase_prompts"), subject, "paraphrase")
    generation, other = templates_of(text_list(record, "generation_prompts"), subject, "generation prompt")
    case = record.get("case_id")
    return Fact(
        subject=subject,
        relation=optional_text(rewrite, "relation_id", "relation") or "counterfact",
        prompt=prompt,
        target_true=target_true,
        target_new=target_new,
        paraphrases=paraphrases,
        generation_prompts=generation,
        id=f"counterfact.{number if case is None else case}",
        neighbour_prompts=tuple(text.strip() for text in text_list(record, "neighborhood_prompts")),
        notes=(*notes, *left, *other),
    )


def counterfact_prompt(rewrite: dict[str, Any], subject: str) -> tuple[str, tuple[str, ...]]:
    """The template: of prefix and suffix where a record has both and they make up its prompt, else of its prompt."""
    prompt = text_field(rewrite, "prompt")
    prefix, suffix = rewrite.get("relation_prefix"), rewrite.get("relation_suffix")
    if isinstance(prefix, str) and isinstance(suffix, str):
        spaced = str(rewrite["subject"])  # with the space before it, inside a sentence
        space = spaced[: len(spaced) - len(spaced.lstrip())]
        template = f"{prefix}{space}{{}}{suffix}".strip()
        if template.count("{}") == 1 and template.replace("{}", subject) == prompt:
            return template, ()
    return prompt_template(prompt, subject)


def word_of(rewrite: dict[str, Any], name: str) -> str:
    """A target of CounterFact, which is an object with ``str`` and ``id``."""
    target = rewrite.get(name)
    if not isinstance(target, dict):
        raise InputError(f"field {quoted(name)} must be an object with 'str', not {quoted(target)}")
    return text_field(target, "str")


def known_1000(record: dict[str, Any], number: int) -> Fact:
    """A record of ``known_1000.json``. The prompt may be longer than its template, so it is taken from the prompt.

    It has neither a new target nor paraphrases nor neighbours; see ``Fact.lacks``.

    Source: Meng et al. 2022 (2202.05262), appendix B.1.
    """
    subject = text_field(record, "subject")
    prompt, notes = prompt_template(text_field(record, "prompt"), subject)
    known = record.get("known_id")
    return Fact(
        subject=subject,
        relation=optional_text(record, "relation_id") or "known_1000",
        prompt=prompt,
        target_true=text_field(record, "attribute"),
        id=f"known_1000.{number if known is None else known}",
        notes=notes,
    )


def zsre(record: dict[str, Any], number: int) -> Fact:
    """A record of ``zsre_mend_eval.json``: target_true is ``answers[0]``, target_new is ``alt``.

    The programs differ in what they edit towards: MEND and those after it towards ``alt``, the programs of ROME and
    MEMIT towards ``answers[0]``, the truth, which their model did not know (the place of the true target holds an
    end-of-text token there). For the latter, pass ``target=fact.target_true`` to an editor. ``loc`` becomes a probe
    of kind "unrelated", with the question mark that those programs add. Records have no relation: it reads "zsre".

    Source: Mitchell et al. 2021 (2110.11309), §5; Meng et al. 2022 (2202.05262), §3.2; their programs' readers.
    """
    subject = text_field(record, "subject")
    prompt, notes = prompt_template(text_field(record, "src"), subject)
    answers = text_list(record, "answers")
    if not answers:
        raise InputError("field 'answers' must hold at least one text")
    rephrase = optional_text(record, "rephrase")
    paraphrases, left = templates_of(() if rephrase is None else (rephrase,), subject, "paraphrase")
    loc, loc_answer = optional_text(record, "loc"), optional_text(record, "loc_ans")
    probes: tuple[Probe, ...] = ()
    if loc is not None and loc_answer is not None:
        probes = (Probe("unrelated", loc if loc.endswith("?") else f"{loc}?", loc_answer),)
    return Fact(
        subject=subject,
        relation="zsre",
        prompt=prompt,
        target_true=answers[0].strip(),
        target_new=optional_text(record, "alt"),
        paraphrases=paraphrases,
        id=f"zsre.{number - 1}",  # as the case_id of the programs, from 0 on
        probes=probes,
        notes=(*notes, *left),
    )


def own(record: dict[str, Any], number: int) -> Fact:
    """A record of the project's own format. What is null is not there: a Parquet file has every field in every row."""
    return Fact.from_dict({name: value for name, value in record.items() if value is not None})


READERS: Mapping[str, Callable[[dict[str, Any], int], Fact]] = {
    "ffnmem": own,
    "counterfact": counterfact,
    "known_1000": known_1000,
    "zsre": zsre,
}
"""By format, what makes a fact of a record and its number, which counts from 1."""


def detect(record: dict[str, Any]) -> str | None:
    """The format of a record by its fields; None for what is unknown. ``"pararel"`` is a whole data set in one."""
    names = set(record)
    if {"triples", "templates"} <= names:
        return "pararel"
    if "requested_rewrite" in names:
        return "counterfact"
    if {"src", "subject", "answers"} <= names:
        return "zsre"
    if {"subject", "attribute", "prompt"} <= names:
        return "known_1000"
    if names >= OWN and not names & FOREIGN and "{}" in str(record["prompt"]):
        return "ffnmem"
    return "counterfact" if names >= FLAT else None
