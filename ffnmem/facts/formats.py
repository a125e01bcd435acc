"""Files of facts: the project's own JSON lines and the public formats, a reader each; nothing is invented."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..core.arguments import public
from ..core.choices import FACT_FORMATS
from ..core.errors import FileError, InputError, check_choice, listed, quoted
from ..core.files import check_destination, check_ordinary, user_path, write_whole
from ..core.foreign import first_line
from ..core.resources import EMBEDDED, embedded_folder
from .fact import Fact, Probe
from .templates import prompt_template, templates_of

# Files as numbered records: JSON lines, one JSON document, or Parquet, told apart by what is in them.

PARQUET = b"PAR1"

Record = tuple[str, dict[str, Any]]
"""A record with its place in the file for messages: ``"line 3"`` or ``"record 3"``."""


def read_records(path: Path, source: str) -> list[Record]:
    """The records of a file; of a JSON document that is one object, that object alone.

    Args:
        path: of the file.
        source: its name in messages.

    Raises: FileError: a file that cannot be read, no UTF-8 text, or something that is no record, by its place.
    """
    try:
        content = check_ordinary(path, source).read_bytes()
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{source}: cannot be read ({error.strerror or error})") from None
    if content.startswith(PARQUET):
        return read_parquet(path, source)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{source}: cannot be read as UTF-8 text ({error})") from None
    start = text.lstrip()[:1]
    if start == "[":
        return array_records(text, source)
    if start == "{":
        try:
            whole = json.loads(text)
        except (ValueError, RecursionError):
            whole = None  # more than one object: a line each
        if isinstance(whole, dict) and len(text.strip().splitlines()) > 1:
            return [("record 1", whole)]
    return line_records(text, source)


def line_records(text: str, source: str) -> list[Record]:
    """One JSON object a line; empty lines are none."""
    records = []
    for number, line in enumerate(text.split("\n"), start=1):  # splitlines() would also break inside a text
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            if not isinstance(value, dict):
                raise InputError("a line must hold one JSON object")
        except json.JSONDecodeError as error:
            raise FileError(f"{source}, line {number}: {error.msg} (column {error.colno})") from None
        except (ValueError, RecursionError) as error:  # endless numbers and nesting
            raise FileError(f"{source}, line {number}: {error}") from None
        records.append((f"line {number}", value))
    return records


def array_records(text: str, source: str) -> list[Record]:
    """One JSON array of objects."""
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise FileError(f"{source}, line {error.lineno}: {error.msg} (column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        raise FileError(f"{source}, from line 1 on: {error}") from None
    return numbered(values, source)


def read_parquet(path: Path, source: str) -> list[Record]:
    """The rows of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            values = file.read().to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:  # a broken text is a ValueError
        raise FileError(f"{source} cannot be read as Parquet: {first_line(error)}") from None
    return numbered(values, source)


def numbered(values: Sequence[Any], source: str) -> list[Record]:
    records = [(f"record {number}", value) for number, value in enumerate(values, start=1)]
    for place, value in records:
        if not isinstance(value, dict):
            raise FileError(f"{source}, {place}: a record must be a JSON object, not {quoted(value)}")
    return records


def text_field(record: dict[str, Any], name: str) -> str:
    """A field that must be text and not empty; raises InputError naming it."""
    if name not in record:
        raise InputError(f"there is no field {quoted(name)}; it has {', '.join(map(repr, record)) or 'none'}")
    value = record[name]
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"field {quoted(name)} must be text that is not empty, not {quoted(value)}")
    return value.strip()


def optional_text(record: dict[str, Any], *names: str) -> str | None:
    """The first of some fields that a record has, as text; None where it has none of them, or nothing in them."""
    for name in names:
        if record.get(name) not in (None, ""):
            return text_field(record, name)
    return None


def text_list(record: dict[str, Any], name: str) -> tuple[str, ...]:
    """A field that must be a list of texts, where a record has it; raises InputError naming it."""
    value = record.get(name)
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) and text.strip() for text in value):
        raise InputError(f"field {quoted(name)} must be a list of texts, not {quoted(value)}")
    return tuple(value)


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

OPTIONAL = ("neighbour_prompts", "probes", "notes")  # written only where a fact has them


@public
def load_facts(source: str | Path = "atlas", format: str | None = None, *, seed: int = 0) -> list[Fact]:
    """Read facts of any of the known formats.

    Args:
        source: ``"atlas"`` for those of the embedded model; else a file of JSON lines, a JSON array or a Parquet file
            of records, or a folder of ParaRel. What a record lacks stays empty (see ``Fact.lacks``), and what had to
            be changed or left out stands in ``Fact.notes``.
        format: ``"ffnmem"`` (the fields of :class:`Fact`), ``"counterfact"`` (``counterfact.json``, and copies with
            one column a field such as counterfact-tracing), ``"known_1000"``, ``"zsre"`` (``zsre_mend_eval.json``) or
            ``"pararel"`` (triples with templates); None to tell by the first record's fields.
        seed: of the neighbours that are drawn for triples, which come without.

    Raises:
        FileError: no such file, an unknown format, or a record that is no fact, named by its number.
        InputError: no such ``format``.
    """
    if format is not None:
        check_choice("format", format, FACT_FORMATS)
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
    twice = [one for one, count in Counter(fact.id for fact in facts if fact.id).items() if count > 1]
    if twice:
        raise FileError(f"{name}: the id {quoted(twice[0])} stands twice")
    return facts


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
    """Records of one format as facts; raises FileError naming the broken one."""
    facts: list[Fact] = []
    for number, (place, record) in enumerate(records, start=1):
        try:
            if format == "pararel":
                facts += read_document(record, seed)
            else:
                facts.append(READERS[format](record, number))
        except InputError as error:
            raise FileError(f"{source}, {place}: {error}") from None
    if not facts:
        raise FileError(f"{source} holds no facts")
    return facts


def write_facts(facts: Iterable[Fact], path: str | Path) -> Path:
    """Write facts as JSON lines, whole or not at all. Raises FileError where that cannot be."""
    target = check_destination(path)
    records = (
        {name: value for name, value in fact.to_dict().items() if value or name not in OPTIONAL} for fact in facts
    )
    write_whole(target, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    return target
