"""Folders of silencings and of knockouts: one file a fact, so that a run over many facts goes on where it stopped."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..core.checked_files import Form, is_whole, read_json, with_checksum
from ..core.errors import FileError, quoted
from ..core.files import make_folder, write_whole
from ..core.folders import Kind
from ..core.schemas import Misfit, anything, fields, table, text, word
from ..facts.fact import Fact
from .knockouts import Knockout
from .silences import Silencing
from .trace_folder import FACTS, MANIFEST, SKIPPED, FactFolder

SCHEMA = 1


def form_of(kind: Kind, made_by: str) -> Form:
    run = {"model": text(), "fingerprint": word, "dtype": word, "settings": table(text(), anything)}
    return Form(kind.kind, SCHEMA, fields(run), f"folder of {kind.what.removeprefix('the ')}: {made_by} writes one")


@dataclass(frozen=True)
class PlaceFolder(FactFolder):
    """A folder of results by place: what is found of a fact as its own file, why one was skipped beside it."""

    result: ClassVar[type[Silencing | Knockout]]

    def found_at(self, fact: Fact) -> Path:
        """Where what is found of a fact is kept."""
        return self.path(fact).with_suffix(".safetensors")

    def read(self, fact: Fact) -> Any:
        """What was found of a fact, or why it was skipped; None if it was not asked about yet. Raises FileError."""
        path, again = self.found_at(fact), "remove it to ask the fact again"
        if path.exists():
            found = self.result.load(path)
            wrong = self.misfit(found, fact)
            if wrong is not None:
                raise FileError(f"{path} is damaged ({wrong}): {again}")
            return found
        path = self.path(fact)
        if not path.exists():
            return None
        record = read_json(path, again=again)
        try:
            SKIPPED(record)
            if not is_whole(record) or record["fact"] != fact.id:
                raise Misfit(quoted(fact.id), record["fact"], ("fact",))
        except Misfit as misfit:
            raise FileError(f"{path} is damaged ({misfit}): {again}") from None
        return str(record["skipped"])

    def misfit(self, found: Silencing | Knockout, fact: Fact) -> Misfit | None:
        """What tells a result from one of this fact, model and settings."""
        settings, provenance = self.made_by["settings"], found.provenance
        wanted: dict[str, tuple[Any, Any]] = {
            "text": (found.text, fact.text),
            "fingerprint": (provenance.fingerprint, self.made_by["fingerprint"]),
            "prepend_bos": (provenance.prepend_bos, settings["prepend_bos"]),
            "window": (found.window, settings["window"]),
        }
        if isinstance(found, Silencing):
            wanted["kinds"] = (list(found.kinds), list(settings["kinds"]))
            wanted["replaced_by"] = (found.replaced_by, settings["replaced_by"])
        wrong = (Misfit(quoted(str(right)), own, (name,)) for name, (own, right) in wanted.items() if own != right)
        return next(wrong, None)

    def write(self, fact: Fact, found: Any) -> None:
        """Keep what was found of a fact, or why it was skipped. Raises FileError."""
        make_folder(self.folder / FACTS)
        if isinstance(found, str):
            record = with_checksum({"fact": fact.id, "skipped": found})
            write_whole(self.path(fact), json.dumps(record) + "\n")
        else:
            found.save(self.found_at(fact))


@dataclass(frozen=True)
class SilencingFolder(PlaceFolder):
    """A folder of silencings."""

    kind: ClassVar[Kind] = Kind(MANIFEST, "ffnmem silencings", SCHEMA, "the silencings", rooms=(FACTS,))
    form: ClassVar[Form] = form_of(kind, "silence_facts")
    holds: ClassVar[str] = "silencings"
    result: ClassVar[type[Silencing | Knockout]] = Silencing


@dataclass(frozen=True)
class KnockoutFolder(PlaceFolder):
    """A folder of knockouts."""

    kind: ClassVar[Kind] = Kind(MANIFEST, "ffnmem knockouts", SCHEMA, "the knockouts", rooms=(FACTS,))
    form: ClassVar[Form] = form_of(kind, "knockout_facts")
    holds: ClassVar[str] = "knockouts"
    result: ClassVar[type[Silencing | Knockout]] = Knockout
