"""Reading and writing files of facts, one JSON record a line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from ..errors import FileError, InputError
from ..files import check_destination, write_whole
from ..resources import EMBEDDED, embedded_folder
from .fact import Fact


def load_facts(source: str | Path = "atlas") -> list[Fact]:
    """Read facts: ``"atlas"`` for those of the embedded model, or a JSON-lines file with the fields of :class:`Fact`.

    Raises:
        FileError: no such file, or a line that is no fact, named by its number.
    """
    path = embedded_folder(str(source)) / "facts.jsonl" if str(source) in EMBEDDED else Path(source).expanduser()
    try:
        lines = path.read_text("utf-8").split("\n")  # splitlines() would also break at separators inside a text
    except FileNotFoundError:
        raise FileError(
            f"no facts at {str(source)!r}: give {' or '.join(map(repr, EMBEDDED))} or a .jsonl file"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{source}: cannot be read as UTF-8 text ({error})") from None
    facts = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise InputError("a line must hold one JSON object")
            facts.append(Fact.from_dict(record))
        except (ValueError, RecursionError) as error:  # broken JSON, endless numbers and nesting, no fact
            raise FileError(f"{source}, line {number}: {error}") from None
    if not facts:
        raise FileError(f"{source} holds no facts")
    ids = [fact.id for fact in facts if fact.id]
    if len(set(ids)) != len(ids):
        twice = next(i for n, i in enumerate(ids) if i in ids[:n])
        raise FileError(f"{source}: the id {twice!r} stands twice")
    return facts


def write_facts(facts: Iterable[Fact], path: str | Path) -> Path:
    """Write facts as JSON lines, whole or not at all. Raises FileError where that cannot be."""
    target = check_destination(path)
    write_whole(target, "".join(json.dumps(fact.to_dict(), ensure_ascii=False) + "\n" for fact in facts))
    return target
