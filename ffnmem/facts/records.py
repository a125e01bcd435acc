"""Files as numbered records (JSON lines, a JSON document or Parquet, told apart by what is in them), their fields."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import FileError, InputError, listed, quoted
from ..core.files import check_ordinary
from ..core.foreign import first_line
from .templates import prompt_template

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
        value = record.get(name)
        if value is not None and not (isinstance(value, str) and not value.strip()):
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


def texts_of(value: Any, name: str, depth: int = 3) -> tuple[str, ...]:
    """The texts of a text, of a list of texts or of lists of such lists, in their order, each once.

    Spaces at their ends go; empty ones and null are none. Raises InputError for anything else.
    """
    if value is None:
        return ()
    if isinstance(value, str):
        return (value.strip(),) if value.strip() else ()
    if not isinstance(value, list | tuple) or not depth:
        raise InputError(f"field {quoted(name)} must be a text or lists of texts, not {quoted(value)}")
    return tuple(dict.fromkeys(text for one in value for text in texts_of(one, name, depth - 1)))


def optional_object(record: dict[str, Any], name: str) -> dict[str, Any]:
    """A field that must be an object, where a record has it, without what is null in it; raises InputError."""
    value = record.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(f"field {quoted(name)} must be an object, not {quoted(value)}")
    return {key: one for key, one in value.items() if one is not None}


# Records that are whole, but no facts, and cases by the names that their data sets give them.


class LeftOut(InputError):
    """A whole record that no fact can be made of; the others of its file are read."""


def prompt_of(text: str, subject: str) -> tuple[str, tuple[str, ...]]:
    """As :func:`prompt_template`; raises LeftOut where the subject is not in the prompt."""
    try:
        return prompt_template(text, subject)
    except InputError:
        raise LeftOut("its subject does not stand in its prompt, spelled the same") from None


def case_name(record: dict[str, Any], number: int) -> str:
    """What a record calls its case; ``"#3"`` of the third record where it has no name. Raises InputError."""
    case = record.get("case_id")
    if case is None:
        return f"#{number}"
    if isinstance(case, bool) or not isinstance(case, int | str) or not str(case).strip():
        raise InputError(f"field 'case_id' must be a number or text, not {quoted(case)}")
    return str(case).strip()


def case_field(name: str) -> dict[str, Any]:
    """The field that :func:`case_name` reads: numbers are numbers again, and ``"#3"`` needs none."""
    if not name or name.startswith("#"):
        return {}
    return {"case_id": int(name) if len(name) < 16 and str(name).isdecimal() and name == str(int(name)) else name}


def note_of_fields(record: dict[str, Any], read: Collection[str]) -> tuple[str, ...]:
    """A note on the fields of a record that have no place in a fact, where it has such."""
    left = [
        quoted(name)[1:-1] for name, value in record.items() if name not in read and value not in (None, "", [], {})
    ]
    return (f"fields left out: {listed(left, 12)}",) if left else ()
