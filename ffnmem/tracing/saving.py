"""A folder of traces: one file a fact, written whole, so that a run over many facts goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import FileError
from ..facts.fact import Fact
from ..files import user_path, write_whole
from ..folders import Kind, claimed
from ..models import Model
from .settings import Settings
from .trace import Trace

KIND = "ffnmem traces"
SCHEMA = 1
MANIFEST = "manifest.json"
FACTS = "facts"
FOLDER = Kind(MANIFEST, KIND, SCHEMA, "the traces", rooms=(FACTS,))


def kept_noise(out: str | Path) -> float | None:
    """The noise of the traces in a folder; None where there are none."""
    there = FOLDER.said(user_path(out)) or {}
    before = there.get("settings") if there.get("kind") == KIND else None
    noise = before.get("noise") if isinstance(before, dict) else None
    return float(noise) if isinstance(noise, int | float) else None


@contextmanager
def kept(out: str | Path | None, model: Model, settings: Settings) -> Iterator[TraceFolder | None]:
    """The folder of a run over facts: new, empty, or of the same model and settings; None where there is no ``out``.

    Args:
        out: made if missing.
        model: whose fingerprint and dtype must be those of the traces there.
        settings: likewise.

    Raises: FileError: a folder that cannot be made, holds something else, or traces of another model or settings.
    """
    if out is None:
        yield None
        return
    made_by = {
        "model": model.name,
        "fingerprint": model.fingerprint,
        "dtype": str(model.dtype).removeprefix("torch."),
        "settings": settings.to_dict(),
    }
    with claimed(out, FOLDER, made_by) as folder:
        found = TraceFolder(folder)
        found.check(made_by)
        yield found


@dataclass(frozen=True)
class TraceFolder:
    """A folder of traces, with a file for each fact in ``facts``."""

    folder: Path

    def check(self, made_by: dict[str, Any]) -> None:
        """Raise FileError if what is there was not made in the same way."""
        there = FOLDER.said(self.folder) or {}
        # The name of a model is how it was asked for; the fingerprint is what it is.
        pairs = {name: (there.get(name), made_by[name]) for name in ("fingerprint", "dtype")}
        before = there["settings"] if isinstance(there.get("settings"), dict) else {}
        pairs |= {name: (before.get(name), value) for name, value in made_by["settings"].items()}
        for name, (old, new) in pairs.items():
            if old != new:
                raise FileError(f"{self.folder} holds traces with {name} {old!r}, not {new!r}: name another folder")

    def path(self, fact: Fact) -> Path:
        """The file of a fact, named after all that it says."""
        digest = hashlib.sha256(json.dumps(fact.to_dict(), sort_keys=True).encode()).hexdigest()
        return self.folder / FACTS / f"{digest[:20]}.json"

    def read(self, fact: Fact) -> Trace | str | None:
        """A fact's trace, or why it was skipped; None if it was not asked about yet. Raises FileError."""
        path = self.path(fact)
        record = read_json(path)
        if record is None:
            return None
        try:
            return str(record["skipped"]) if "skipped" in record else Trace.from_dict(record)
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"{path} is damaged ({error!r}): remove it to trace the fact again") from None

    def write(self, fact: Fact, found: Trace | str) -> None:
        """Keep a fact's trace, or why it was skipped. Raises FileError."""
        record = {"fact": fact.id, "skipped": found} if isinstance(found, str) else found.to_dict()
        try:
            (self.folder / FACTS).mkdir(exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot make {self.folder / FACTS}: {error.strerror or error}") from None
        write_whole(self.path(fact), json.dumps(record) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, None if there is no such file; raises FileError for anything else."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise FileError(f"{path} holds no JSON object")
    return found
