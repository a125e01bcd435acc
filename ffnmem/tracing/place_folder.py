"""Folders of silencings and of knockouts: one file a fact, so that a run over many facts goes on where it stopped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..core.checked_files import Form
from ..core.files import make_folder
from ..core.folders import Kind
from ..core.schemas import anything, fields, table, text, word
from ..facts.fact import Fact
from .knockouts import Knockout
from .silences import Silencing
from .trace_folder import FACTS, MANIFEST, FactFolder

SCHEMA = 1


def kind_of(what: str) -> Kind:
    return Kind(MANIFEST, f"ffnmem {what}", SCHEMA, f"the {what}", rooms=(FACTS,))


def form_of(kind: Kind, made_by: str) -> Form:
    run = {"model": text(), "fingerprint": word, "dtype": word, "settings": table(text(), anything)}
    return Form(kind.kind, SCHEMA, fields(run), f"folder of {kind.what.removeprefix('the ')}: {made_by} writes one")


@dataclass(frozen=True)
class PlaceFolder(FactFolder):
    """A folder of results by place: what is found of a fact as its own file, why one was skipped beside it."""

    again: ClassVar[str] = "remove it to ask the fact again"
    result: ClassVar[type[Silencing | Knockout]]

    def found_at(self, fact: Fact) -> Path:
        """Where what is found of a fact is kept."""
        return self.path(fact).with_suffix(".safetensors")

    def read(self, fact: Fact) -> Any:
        """What was found of a fact, or why it was skipped; None if it was not asked about yet. Raises FileError."""
        path = self.found_at(fact)
        if path.exists():
            found = self.result.load(path)
            with self.fitting(path):
                self.check_found(found, fact)
            return found
        record = self.record(fact)
        if record is None:
            return None
        with self.fitting(self.path(fact)):
            return self.skipped(record, fact)

    def write(self, fact: Fact, found: Any) -> None:
        """Keep what was found of a fact, or why it was skipped. Raises FileError."""
        if isinstance(found, str):
            self.write_skipped(fact, found)
        else:
            make_folder(self.folder / FACTS)
            found.save(self.found_at(fact))


@dataclass(frozen=True)
class SilencingFolder(PlaceFolder):
    """A folder of silencings."""

    kind: ClassVar[Kind] = kind_of("silencings")
    form: ClassVar[Form] = form_of(kind, "silence_facts")
    holds: ClassVar[str] = "silencings"
    result: ClassVar[type[Silencing | Knockout]] = Silencing

    def deciding_of(self, found: Silencing, fact: Fact) -> dict[str, tuple[Any, Any]]:
        settings = self.made_by["settings"]
        return {
            **super().deciding_of(found, fact),
            "kinds": (list(found.kinds), settings["kinds"]),
            "replaced_by": (found.replaced_by, settings["replaced_by"]),
        }


@dataclass(frozen=True)
class KnockoutFolder(PlaceFolder):
    """A folder of knockouts."""

    kind: ClassVar[Kind] = kind_of("knockouts")
    form: ClassVar[Form] = form_of(kind, "knockout_facts")
    holds: ClassVar[str] = "knockouts"
    result: ClassVar[type[Silencing | Knockout]] = Knockout
