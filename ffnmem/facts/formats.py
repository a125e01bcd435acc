"""Files of facts: the project's own JSON lines and the public formats, a reader each; nothing is invented."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from ..core.errors import FileError, InputError, listed, quoted, warn
from ..core.files import check_destination, user_path, write_whole
from ..core.resources import EMBEDDED, embedded_folder
from ..core.types import FACT_FORMATS, FactFormat, Seed, WrittenFactFormat, checked
from .easyedit import is_knowedit, knowedit, knowedit_record, probes_of, questions
from .fact import PART_OPTIONAL, PARTS, Fact, Probe
from .mquake import is_mquake, mquake, mquake_records
from .records import LeftOut, Record, case_field, optional_text, read_records, text_field, text_list
from .templates import prompt_template, templates_of

# One reader a format of facts: a record of a public data set becomes a :class:`Fact`, and nothing is invented.

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
    EasyEdit's copy has ``portability``, which becomes probes too.

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
    carried, without = probes_of(questions({"portability": record.get("portability")}, set()))
    return Fact(
        subject=subject,
        relation="zsre",
        prompt=prompt,
        target_true=answers[0].strip(),
        target_new=optional_text(record, "alt"),
        paraphrases=paraphrases,
        id=f"zsre.{number - 1}",  # as the case_id of the programs, from 0 on
        probes=(*probes, *carried),
        notes=(*notes, *left, *without),
        true_aliases=tuple(dict.fromkeys(answer.strip() for answer in answers[1:])),
    )


def own(record: dict[str, Any], number: int) -> Fact:
    """A record of the project's own format. What is null is not there: a Parquet file has every field in every row."""
    return Fact.from_dict({name: value for name, value in record.items() if value is not None})


READERS: Mapping[str, Callable[[dict[str, Any], int], Fact]] = {
    "ffnmem": own,
    "counterfact": counterfact,
    "known_1000": known_1000,
    "zsre": zsre,
    "knowedit": knowedit,
}
"""By format, what makes a fact of a record and its number, which counts from 1. A case of MQuAKE makes several."""


def detect(record: dict[str, Any]) -> str | None:
    """The format of a record by its fields; None for what is unknown. ``"pararel"`` is a whole data set in one."""
    names = set(record)
    if {"triples", "templates"} <= names:
        return "pararel"
    if is_mquake(record):
        return "mquake"
    if "requested_rewrite" in names:
        return "counterfact"
    if {"src", "subject", "answers"} <= names:
        return "zsre"
    if {"subject", "attribute", "prompt"} <= names:
        return "known_1000"
    if names >= OWN and not names & FOREIGN and "{}" in str(record["prompt"]):
        return "ffnmem"
    if names >= FLAT:
        return "counterfact"
    if {"subject", "prompt"} <= names <= {f.name for f in fields(Fact)} and "{}" in str(record["prompt"]):
        return "ffnmem"  # without a true target
    return "knowedit" if is_knowedit(names) else None


def counterfact_record(fact: Fact) -> dict[str, Any]:
    """A fact as ``counterfact.json`` has them; raises InputError. Neighbours become whole prompts.

    ``attribute_prompts`` are empty and targets have no ``id``: a fact knows neither.
    """
    if not fact.target_true or not fact.target_new:
        raise InputError(f"it has no {'new' if fact.target_true else 'true'} target, and CounterFact compares the two")
    return {
        **case_field(fact.id.removeprefix("counterfact.")),
        "requested_rewrite": {
            "prompt": fact.prompt,
            "relation_id": fact.relation or "counterfact",
            "target_new": {"str": fact.target_new},
            "target_true": {"str": fact.target_true},
            "subject": fact.subject,
        },
        "paraphrase_prompts": [fact.ask(template) for template in fact.paraphrases],
        "neighborhood_prompts": fact.prompts_about_neighbours,
        "attribute_prompts": [],
        "generation_prompts": [fact.ask(template) for template in fact.generation_prompts],
    }


# Triples with templates, as ParaRel has them: a fact gets all templates of its relation that end in the object.

PATTERNS = ("patterns", "pattern_data/graphs_json", "graphs_json")
TRIPLES = "trex_lms_vocab"
NEIGHBOURS = 10
SUBJECT, OBJECT = "[X]", "[Y]"
IN_ORDER = ("subject", "relation", "object")  # of a triple that is an array

Read = TypeVar("Read")
Triple = tuple[str, str]
"""Subject and object."""


def read_folder(folder: Path, source: str, seed: int) -> list[Fact]:
    """ParaRel as its authors have it: ``patterns/P36.jsonl`` with lines ``{"pattern": "[X] is … [Y] ."}``, and
    ``trex_lms_vocab/P36.jsonl`` with lines ``{"sub_label": …, "obj_label": …}``.

    Relations that have only one of the two files are none, and neither are those without a template that ends in [Y].

    Raises: FileError: not such a folder, or a broken line.

    Source: Elazar et al. 2021 (2102.01017).
    """
    patterns = next((folder / name for name in PATTERNS if (folder / name).is_dir()), None)
    if patterns is None or not (folder / TRIPLES).is_dir():
        raise FileError(
            f"{source} is a folder without facts: one of ParaRel has patterns/*.jsonl and {TRIPLES}/*.jsonl in it"
        )
    facts: list[Fact] = []
    for path in sorted(patterns.glob("*.jsonl")):
        triples = folder / TRIPLES / path.name
        if triples.is_file():
            facts += facts_of_relation(path.stem, each(path, pattern_of), each(triples, triple_of), seed)
    if not facts:
        raise FileError(f"{source} has no relation with both triples and a template that ends in {OBJECT}")
    return facts


def each(path: Path, read: Callable[[Any], Read]) -> list[Read]:
    """What is read of each record of a file; raises FileError naming the broken one."""
    found = []
    for place, record in read_records(path, str(path)):
        try:
            found.append(read(record))
        except InputError as error:
            raise FileError(f"{path}, {place}: {error}") from None
    return found


def read_document(document: Mapping[str, Any], seed: int) -> list[Fact]:
    """One JSON object: ``templates`` has a list of patterns for each relation, ``triples`` a list of objects with
    subject (or sub_label), relation (or predicate_id) and object (or obj_label), or of arrays of the three.

    Raises: InputError: a triple or pattern that is none, or a relation without a template that ends in its object.
    """
    templates, triples = document.get("templates"), document.get("triples")
    if not isinstance(templates, dict) or not isinstance(triples, list):
        raise InputError("'templates' must be an object of lists, and 'triples' a list")
    pairs: dict[str, list[Triple]] = defaultdict(list)
    for number, triple in enumerate(triples, start=1):
        try:
            relation = relation_of(triple)
            if relation not in templates:
                raise InputError(f"there are no templates of its relation {quoted(relation)}")
            pairs[relation].append(triple_of(triple))
        except InputError as error:
            raise InputError(f"triple {number}: {error}") from None
    facts = []
    for relation, found in pairs.items():
        if not isinstance(templates[relation], list):
            raise InputError(f"the templates of {quoted(relation)} must be a list")
        made = facts_of_relation(relation, [pattern_of(pattern) for pattern in templates[relation]], found, seed)
        if not made:
            raise InputError(f"no template of {quoted(relation)} ends in {OBJECT}")
        facts += made
    return facts


def facts_of_relation(relation: str, patterns: Sequence[str], pairs: Sequence[Triple], seed: int) -> list[Fact]:
    """The facts of a relation: the first template asks, the others are paraphrases, neighbours are drawn."""
    templates, notes = templates_of_patterns(patterns)
    if not templates:
        return []
    holders: dict[str, list[str]] = defaultdict(list)
    for subject, target in dict.fromkeys(pairs):
        holders[target].append(subject)
    draws = neighbours_of(relation, holders, seed)
    return [
        Fact(
            subject=subject,
            relation=relation,
            prompt=templates[0],
            target_true=target,
            paraphrases=templates[1:],
            neighbours=draws[target, subject],
            id=f"{relation}.{number}",
            notes=notes,
        )
        for number, (subject, target) in enumerate(pairs)
    ]


def neighbours_of(
    relation: str, holders: Mapping[str, Sequence[str]], seed: int
) -> dict[tuple[str, str], tuple[str, ...]]:
    """For each object and subject, at most ten other subjects of it; the same whatever else is in the data set."""
    import numpy as np

    drawn = {}
    for target, subjects in holders.items():
        generator = np.random.default_rng([seed, *f"{relation}\0{target}".encode()])
        ordered = sorted(subjects)
        for i, subject in enumerate(ordered):
            others = [*ordered[:i], *ordered[i + 1 :]]
            chosen = generator.choice(len(others), min(NEIGHBOURS, len(others)), replace=False) if others else ()
            drawn[target, subject] = tuple(others[j] for j in sorted(chosen))
    return drawn


def templates_of_patterns(patterns: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Patterns with [X] and [Y] as templates that end where the target begins, and notes on what was changed."""
    templates, left, cut, spaced = [], [], 0, 0
    for pattern in patterns:
        before, _, after = pattern.partition(OBJECT)
        ends = re.fullmatch(r"[\s.,;!?]*", after) is not None and OBJECT in pattern
        if not ends or before.count(SUBJECT) != 1 or not before[-1:].isspace() or "{}" in pattern:
            left.append(pattern)
            continue
        template = " ".join(before.replace(SUBJECT, "{}").split())
        cut += bool(after.strip())
        spaced += template != before.replace(SUBJECT, "{}").strip()
        templates.append(template)
    notes = {
        f"punctuation after {OBJECT} dropped from {cut} templates": cut,
        f"double spaces made one in {spaced} templates": spaced,
        f"{len(left)} templates left out that do not end in {OBJECT}: {', '.join(map(repr, left))}": len(left),
    }
    return tuple(dict.fromkeys(templates)), tuple(note for note, count in notes.items() if count)


def pattern_of(pattern: Any) -> str:
    return text_field(pattern if isinstance(pattern, dict) else {"pattern": pattern}, "pattern")


def relation_of(triple: Any) -> str:
    if isinstance(triple, list):
        triple = dict(zip(IN_ORDER, triple, strict=False))
    if not isinstance(triple, dict):
        raise InputError(f"it must be an object or an array of three texts, not {quoted(triple)}")
    return text_field(triple, "relation" if "relation" in triple else "predicate_id")


def triple_of(triple: Any) -> Triple:
    """Subject and object of a triple; raises InputError."""
    if isinstance(triple, list):
        if len(triple) != len(IN_ORDER):
            raise InputError(f"it must hold subject, relation and object, not {quoted(triple)}")
        triple = dict(zip(IN_ORDER, triple, strict=True))
    names = ("subject", "object") if "subject" in triple else ("sub_label", "obj_label")
    return text_field(triple, names[0]), text_field(triple, names[1])


# Reading and writing files of facts: the project's own JSON lines, and the public formats.

OPTIONAL = ("neighbour_prompts", "probes", "notes", "true_aliases", "new_aliases", "multi_hop")
"""Fields that are written only where a fact has them."""
SHOWN = 3  # records of a kind that are named


@checked
def load_facts(source: str | Path = "atlas", format: FactFormat | None = None, *, seed: Seed = 0) -> list[Fact]:
    """Read facts of any of the known formats.

    Args:
        source: ``"atlas"`` for those of the embedded model; else a file of JSON lines, a JSON array or a Parquet file
            of records, or a folder of ParaRel. What a record lacks stays empty (see ``Fact.lacks``), and what had to
            be changed or left out stands in ``Fact.notes``. Records that are whole but no facts, such as those whose
            subject is not in their prompt, are left out with a warning that counts them.
        format: ``"ffnmem"`` (the fields of :class:`Fact`), ``"counterfact"`` (``counterfact.json``, and copies with
            one column a field such as counterfact-tracing), ``"known_1000"``, ``"zsre"`` (``zsre_mend_eval.json``),
            ``"knowedit"`` (KnowEdit and other files of EasyEdit), ``"mquake"`` (MQuAKE; a fact a rewrite) or
            ``"pararel"`` (triples with templates); None to tell by the first record's fields.
        seed: of the neighbours that are drawn for triples, which come without.

    Raises:
        FileError: no such file, an unknown format, or a broken record, named by its number.
        InputError: no such ``format``.
    """
    name = str(source)
    path = embedded_folder(name) / "facts.jsonl" if name in EMBEDDED else user_path(source)
    if not path.exists():
        raise FileError(
            f"no facts at {name!r}: give {' or '.join(map(repr, EMBEDDED))} or a .jsonl, .json or .parquet file"
        )
    if path.is_dir():
        if format not in (None, "pararel"):
            raise FileError(f"{name} is a folder: facts of the format {quoted(format)} are in a file")
        facts = read_folder(path, name, seed)
    else:
        records = read_records(path, name)
        if not records:
            raise FileError(f"{name} holds no facts")
        facts = facts_of_records(records, name, format or format_of(records[0], name), seed)
    check_ids(facts, name)
    return facts


def check_ids(facts: Sequence[Fact], source: str) -> None:
    """Raise FileError where an id stands twice."""
    twice = [one for one, count in Counter(fact.id for fact in facts if fact.id).items() if count > 1]
    if twice:
        raise FileError(f"{source}: the id {quoted(twice[0])} stands twice")


def format_of(first: Record, source: str) -> str:
    """The format of a first record; raises FileError naming its fields for one that is none of ours."""
    found = detect(first[1])
    if found is None:
        raise FileError(
            f"{source}, {first[0]}: fields {listed(list(map(repr, first[1])), 12)} are of no format that is known "
            f"({', '.join(FACT_FORMATS)}); facts of ours have subject, relation, prompt, target_true …"
        )
    return found


def facts_of_records(records: list[Record], source: str, format: str, seed: int) -> list[Fact]:
    """Records of one format as facts; raises FileError naming the broken one, and warns of those left out."""
    facts: list[Fact] = []
    left: dict[str, list[str]] = defaultdict(list)
    for number, (place, record) in enumerate(records, start=1):
        try:
            facts += facts_of_record(record, number, format, seed)
        except LeftOut as error:
            left[str(error)].append(place)
        except InputError as error:
            raise FileError(f"{source}, {place}: {error}") from None
    why = "; ".join(f"{len(places):,}: {reason} ({listed(places, SHOWN)})" for reason, places in left.items())
    if not facts:
        raise FileError(f"{source} holds no facts" + f": its records are left out; {why}" * bool(left))
    if left:
        count = sum(map(len, left.values()))
        warn(f"{source}: {count:,} of {len(records):,} records are left out; {why}")
    return facts


def facts_of_record(record: dict[str, Any], number: int, format: str, seed: int) -> list[Fact]:
    """The facts of one record, or of a data set in one; raises InputError."""
    if format == "pararel":
        return read_document(record, seed)
    return mquake(record, number) if format == "mquake" else [READERS[format](record, number)]


@checked
def write_facts(facts: Iterable[Fact], path: str | Path, format: WrittenFactFormat = "ffnmem") -> Path:
    """Write facts, whole or not at all: as JSON lines of our own, or as a JSON array of another format's records.

    What another format has no place for is counted in a warning; it is found by reading the records again, so that
    nothing is lost without a word.

    Args:
        facts: to write.
        path: of the file.
        format: ``"ffnmem"``, ``"counterfact"``, ``"knowedit"`` or ``"mquake"``.

    Raises:
        FileError: the file cannot be written.
        InputError: no such format, or a fact that a record of it cannot hold.
    """
    target = check_destination(path)
    if format == "ffnmem":
        lines = (json.dumps(own_record(fact), ensure_ascii=False) + "\n" for fact in facts)
        write_whole(target, "".join(lines))
        return target
    made = records_of(list(facts), format)
    changed = changes(made, format)
    write_whole(target, json.dumps([record for record, _ in made], ensure_ascii=False, indent=4) + "\n")
    if changed:
        count = sum(len(held) for _, held in made)
        what = ", ".join(f"{name} ({n:,})" for name, n in changed.items())
        warn(f"{target.name}: not all of the {count:,} facts has a place in {format}; read again, these differ: {what}")
    return target


def own_record(fact: Fact) -> dict[str, Any]:
    """A fact as the project's own files have it, without what is empty and need not be there."""
    record = {name: value for name, value in fact.to_dict().items() if value or name not in OPTIONAL}
    return {name: without_empty(value) if name in PARTS else value for name, value in record.items()}


def without_empty(value: Any) -> Any:
    """Objects inside of a record, without their empty fields."""
    if isinstance(value, list):
        return [without_empty(one) for one in value]
    if isinstance(value, dict):
        return {name: without_empty(one) for name, one in value.items() if one or name not in PART_OPTIONAL}
    return value


def records_of(facts: list[Fact], format: str) -> list[tuple[dict[str, Any], list[Fact]]]:
    """The records that facts become, each with the facts in it; raises InputError naming one that cannot be held."""
    if format == "mquake":
        return mquake_records(facts)
    write = counterfact_record if format == "counterfact" else knowedit_record
    made = []
    for fact in facts:
        try:
            made.append((write(fact), [fact]))
        except InputError as error:
            raise InputError(f"fact {quoted(fact.name)} cannot be written as {format}: {error}") from None
    return made


def changes(made: list[tuple[dict[str, Any], list[Fact]]], format: str) -> dict[str, int]:
    """In how many facts each field differs once their records are read again; notes are the reader's own.

    Raises: InputError: records that would not be read again.
    """
    counts: Counter[str] = Counter()
    ids: Counter[str] = Counter()
    for number, (record, facts) in enumerate(made, start=1):
        try:
            again = facts_of_record(json.loads(json.dumps(record)), number, format, 0)
        except InputError as error:
            raise InputError(f"fact {quoted(facts[0].name)} cannot be written as {format}: {error}") from None
        ids.update(fact.id for fact in again)
        for old, new in zip(facts, again, strict=True):
            counts.update(f.name for f in fields(Fact) if getattr(old, f.name) != getattr(new, f.name))
    twice = [name for name, count in ids.items() if count > 1]
    if twice:
        raise InputError(
            f"two facts would both be {quoted(twice[0])} in a file of {format}: give them ids of their own"
        )
    return {name: count for name, count in counts.items() if name != "notes"}
