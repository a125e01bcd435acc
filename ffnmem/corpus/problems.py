"""What a corpus holds, and what is wrong with it: documents, and problems that are counted and stop nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.sheets import Column, Table, rows

MEANINGS = {
    "invalid_utf8": "bytes that are no UTF-8 (or half a surrogate pair), replaced by \N{REPLACEMENT CHARACTER}",
    "nul": "NUL characters, kept as they are",
    "empty": "no text but whitespace, skipped",
    "broken_record": "no JSON object, or no CSV row (a quote that is not closed, or stands inside a field), skipped",
    "missing_text": "a record without the text column, or with nothing in it, skipped",
    "not_text": "a text that is no string, skipped",
    "skipped_file": "a file of another type in a folder, or a pipe or device, skipped",
    "special_text": "the name of a special token in the text, tokenised as ordinary text",
    "no_tokens": "a document of which the tokenizer left nothing, kept with no tokens",
}
"""Every kind of problem, and what was done about it. Each counts documents, records or files, not characters."""


@dataclass(frozen=True)
class Document:
    """One text of a corpus.

    Attributes:
        text: never empty, always valid Unicode.
        source: the file, relative to the folder that was opened, or the name of the corpus.
        number: where in it, from 1: the line of a text or JSON file, the row of a table, the item of an iterable.
    """

    text: str
    source: str
    number: int


@dataclass(frozen=True)
class Problem:
    """One kind of problem: how many documents (records, files) have it, and the first place where it occurred."""

    kind: str
    count: int
    first: str

    @property
    def meaning(self) -> str:
        """What the kind is, and what was done about it."""
        return MEANINGS[self.kind]

    def as_dict(self) -> dict[str, Any]:
        """As a manifest keeps it."""
        return {"kind": self.kind, "count": self.count, "first": self.first}

    def to_dict(self) -> dict[str, Any]:
        """The same with its meaning."""
        return {**self.as_dict(), "meaning": self.meaning}


def problem_table(problems: Iterable[Problem]) -> Table:
    """Each kind of problem, how often it occurs, and where first."""
    shown = rows("problem", Column("count", "count"), Column("first", wraps=True), Column("meaning", wraps=True))
    for problem in problems:
        shown.add(*problem.to_dict().values())
    return shown.table()


class Problems:
    """Counts problems while a corpus is read."""

    def __init__(self, known: Iterable[Problem] = ()) -> None:
        self._found: dict[str, tuple[int, str]] = {p.kind: (p.count, p.first) for p in known}

    def add(self, kind: str, source: str, number: int | None = None) -> None:
        """Count one more of ``kind``, one of MEANINGS; the first of a kind keeps its place."""
        if kind not in MEANINGS:
            raise KeyError(kind)
        count, first = self._found.get(kind, (0, ""))
        place = first if count else (source if number is None else f"{source}:{number}")
        self._found[kind] = (count + 1, place)

    def table(self) -> tuple[Problem, ...]:
        """What was counted, in the order of MEANINGS."""
        return tuple(Problem(kind, *self._found[kind]) for kind in MEANINGS if kind in self._found)


def problems_from(records: Iterable[Mapping[str, Any]]) -> tuple[Problem, ...]:
    """The inverse of ``as_dict``; kinds that this version does not know raise KeyError."""
    known = [Problem(str(r["kind"]), int(r["count"]), str(r["first"])) for r in records]
    unknown = [problem.kind for problem in known if problem.kind not in MEANINGS]
    if unknown:
        raise KeyError(unknown[0])
    return Problems(known).table()


def clean(raw: Any, source: str, number: int, problems: Problems) -> Document | None:
    """A document of a raw value (str or bytes), its problems counted; None where nothing is left to keep."""
    if raw is None:
        problems.add("missing_text", source, number)
        return None
    if not isinstance(raw, str | bytes):
        problems.add("not_text", source, number)
        return None
    text, valid = decoded(raw)
    if not valid:
        problems.add("invalid_utf8", source, number)
    if "\0" in text:
        problems.add("nul", source, number)
    if not text or text.isspace():
        problems.add("empty", source, number)
        return None
    return Document(text, source, number)


def decoded(raw: str | bytes) -> tuple[str, bool]:
    """Valid Unicode, and whether ``raw`` was so already. JSON can hold half of a surrogate pair, which no tokenizer
    takes."""
    if isinstance(raw, bytes):
        try:
            return raw.decode("utf-8"), True
        except UnicodeDecodeError:
            return raw.decode("utf-8", "replace"), False
    try:
        if not raw.isascii():
            raw.encode("utf-8")
    except UnicodeEncodeError:
        return raw.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), False
    return raw, True
