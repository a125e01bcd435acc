"""A folder of traces: one file a fact, written whole, so that a run over many facts goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ..errors import FileError, quoted
from ..facts.fact import Fact
from ..files import user_folder, write_whole
from ..models import Model
from .settings import Settings
from .trace import Trace

KIND = "ffnmem traces"
SCHEMA = 1
MANIFEST = "manifest.json"
FACTS = "facts"


def kept_noise(out: str | Path) -> float | None:
    """The noise of the traces in a folder; None where there are none."""
    there = read_json(user_folder(out) / MANIFEST)
    noise = there.get("settings", {}).get("noise") if isinstance(there, dict) and there.get("kind") == KIND else None
    return float(noise) if isinstance(noise, int | float) else None


class TraceFolder:
    """The folder of a run over facts: new, empty, or of the same model and settings.

    Args:
        out: made if missing.
        model: whose fingerprint and dtype must be those of the traces there.
        settings: likewise.

    Raises: FileError: a folder that cannot be made, holds something else, or traces of another model or settings.
    """

    def __init__(self, out: str | Path, model: Model, settings: Settings) -> None:
        self.folder = user_folder(out)
        if self.folder.exists() and not self.folder.is_dir():
            raise FileError(f"{out} is a file: name a folder for the traces")
        made_by = {
            "kind": KIND,
            "schema": SCHEMA,
            "model": model.name,
            "fingerprint": model.fingerprint,
            "dtype": str(model.dtype).removeprefix("torch."),
            "settings": settings.to_dict(),
        }
        try:
            (self.folder).mkdir(parents=True, exist_ok=True)
            # A name with a dot in front is a file that was being written when a run was stopped.
            other = [path for path in self.folder.iterdir() if not path.name.startswith(".")]
            if not other:
                write_whole(self.folder / MANIFEST, json.dumps(made_by, indent=1) + "\n")
            (self.folder / FACTS).mkdir(exist_ok=True)
        except OSError as error:
            if isinstance(error, FileError):
                raise
            raise FileError(f"cannot make {out}: {error.strerror or error}") from None
        if other:
            self.check(made_by)

    def check(self, made_by: dict[str, Any]) -> None:
        """Raise FileError if what is there was not made in the same way."""
        there = read_json(self.folder / MANIFEST)
        if there is None or there.get("kind") != KIND:
            raise FileError(f"{self.folder} is a folder with other things in it: name a new one for the traces")
        if there.get("schema") != SCHEMA:
            raise FileError(
                f"{self.folder} has schema {there.get('schema')}; this version of ffnmem reads {SCHEMA}: name a new one"
            )
        # The name of a model is how it was asked for; the fingerprint is what it is.
        pairs = {name: (there.get(name), made_by[name]) for name in ("fingerprint", "dtype")}
        before = there.get("settings", {})
        pairs |= {name: (before.get(name), value) for name, value in made_by["settings"].items()}
        for name, (old, new) in pairs.items():
            if old != new:
                raise FileError(
                    f"{self.folder} holds traces with {name} {quoted(old)}, not {quoted(new)}: name another folder"
                )

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
            raise FileError(f"{path} is damaged ({quoted(error)}): remove it to trace the fact again") from None

    def write(self, fact: Fact, found: Trace | str) -> None:
        """Keep a fact's trace, or why it was skipped. Raises FileError."""
        record = {"fact": fact.id, "skipped": found} if isinstance(found, str) else found.to_dict()
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
