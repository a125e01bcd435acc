"""Files as numbered records (JSON lines, a JSON document or Parquet, told apart by what is in them), and as classes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import FileError, InputError, listed, quoted
from ..core.files import check_ordinary
from ..core.foreign import first_line

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

PARQUET = b"PAR1"

Record = tuple[str, dict[str, Any]]
"""A record with its place in the file for messages: ``"line 3"`` or ``"record 3"``."""


def read_records(path: Path, source: str) -> list[Record]:
    """The records of a file, which messages call ``source``; of a JSON document that is one object, that object alone.

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
        return numbered(parse_json(text, source), source)
    if start == "{":
        try:
            whole = json.loads(text)
        except (ValueError, RecursionError):
            whole = None  # more than one object: a line each
        if isinstance(whole, dict) and len(text.strip().splitlines()) > 1:
            return [("record 1", whole)]
    lines = enumerate(text.split("\n"), start=1)  # splitlines() would also break inside a text
    records = [(f"line {number}", parse_json(line, source, number)) for number, line in lines if line.strip()]
    return check_records(records, source)


def parse_json(text: str, source: str, first: int = 1) -> Any:
    """What a text holds, which stands in a file from line ``first`` on; raises FileError."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise FileError(f"{source}, line {first + error.lineno - 1}: {error.msg} (column {error.colno})") from None
    except (ValueError, RecursionError) as error:  # endless numbers and nesting
        raise FileError(f"{source}, line {first}: {error}") from None


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
    return check_records([(f"record {number}", value) for number, value in enumerate(values, start=1)], source)


def check_records(records: list[Record], source: str) -> list[Record]:
    """Records; raises FileError for one that is no object."""
    for place, value in records:
        if not isinstance(value, dict):
            raise FileError(f"{source}, {place}: a record must be a JSON object, not {quoted(value)}")
    return records


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """What reads plain values as a class; made once, when the first is read."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def read_as(kind: Any, value: Any) -> Any:
    """Plain values as a dataclass or a model of pydantic's; raises InputError with the first mistake in one line."""
    from pydantic import ValidationError

    try:
        return adapter(kind).validate_python(value)
    except ValidationError as error:
        raise InputError(describe_mistake(error)) from None


def describe_mistake(error: ValidationError) -> str:
    """The first mistake in a record, in one line that names its field."""
    mistake = error.errors(include_url=False)[0]
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in mistake["loc"]).lstrip(".")
    match mistake["type"]:
        case "missing":
            has = listed(list(map(quoted, mistake["input"])), 12) or "none"
            return f"field {quoted(place)} is missing; it has {has}"
        case "unexpected_keyword_argument" | "extra_forbidden":
            return f"there is no field {quoted(place)}"
        case "value_error":
            return (f"field {quoted(place)}: " if place else "") + str(mistake["ctx"]["error"])
    due = re.sub(r"^\w+ should", "must", mistake["msg"])
    return f"field {quoted(place)} {due}, not {quoted(mistake['input'])}" if place else due
