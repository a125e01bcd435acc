"""A folder of traces: one file a fact, written whole, so that a run over many facts goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..core.checked_files import Form, is_whole, read_json, with_checksum
from ..core.errors import FileError, quoted
from ..core.files import make_folder, user_path, write_whole
from ..core.folders import Kind, RunFolder
from ..core.schemas import Misfit, fields, flag, items, maybe, number, row, rule, table, text, together, whole, word
from ..facts.fact import Fact
from ..models.model import Model
from .settings import TraceSettings
from .traces import Trace

KIND = "ffnmem traces"
SCHEMA = 1
MANIFEST = "manifest.json"
FACTS = "facts"
FOLDER = Kind(MANIFEST, KIND, SCHEMA, "the traces", rooms=(FACTS,))
FORM = Form(
    KIND,
    SCHEMA,
    fields(
        {
            "model": text(),
            "fingerprint": word,
            "dtype": word,
            "settings": fields(
                {
                    "kinds": items(text(), least=1),
                    "window": whole(1),
                    "noise": number(0),
                    "samples": whole(1),
                    "seed": whole(),
                    "prepend_bos": flag,
                }
            ),
        }
    ),
    "folder of traces: trace_facts writes one",
)
SKIPPED = fields({"fact": text(), "skipped": text()})
TRACED = together(
    fields(
        {
            **{name: text() for name in ("fact", "text", "answer")},
            "tokens": items(text(), least=1),
            "subject": row(whole(), whole()),
            "answer_ids": items(whole(), least=1),
            "clean": number(),
            "samples": items(number(), least=1),
            "window": whole(1),
            "noise": number(0),
            "seed": whole(),
            "scores": table(text(), items(items(number(), least=1), least=1)),
            "provenance": fields(
                {name: text() for name in ("model", "fingerprint", "dtype", "device", "ffnmem")},
                {"prepend_bos": maybe(flag)},
            ),
        }
    ),
    rule(
        lambda trace: {len(row) for scores in trace["scores"].values() for row in scores} == {len(trace["tokens"])},
        "a trace with a score for every token",
    ),
    rule(
        lambda trace: len({len(scores) for scores in trace["scores"].values()}) == 1,
        "a trace with scores of as many layers of every kind",
    ),
    rule(lambda trace: trace["subject"][0] < trace["subject"][1] <= len(trace["tokens"]), "a trace with a subject"),
)


def kept_noise(out: str | Path) -> float | None:
    """The noise of the traces in a folder; None where there are none."""
    there = TraceFolder.made_before(user_path(out))
    return None if there is None else float(there["settings"]["noise"])


def run_of(model: Model, settings: TraceSettings) -> dict[str, Any]:
    """All that traces of facts depend on, as a folder's manifest says it."""
    return made_by(model, settings.to_dict())


def made_by(model: Model, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A model and settings, as a folder's manifest says them."""
    return {
        "model": model.name,
        "fingerprint": model.fingerprint,
        "dtype": str(model.dtype).removeprefix("torch."),
        "settings": dict(settings),
    }


@dataclass(frozen=True)
class FactFolder(RunFolder):
    """A folder with a file for each fact in ``facts``: what was found of it, or why it was skipped.

    Attributes:
        again: what to do about a damaged file.
    """

    again: ClassVar[str]

    @staticmethod
    def deciding(made_by: Mapping[str, Any]) -> Mapping[str, Any]:
        """Fingerprint, dtype and each of the settings."""
        return {**{name: made_by.get(name) for name in ("fingerprint", "dtype")}, **made_by.get("settings", {})}

    def path(self, fact: Fact) -> Path:
        """The file of a fact, named after all that it says."""
        digest = hashlib.sha256(json.dumps(fact.to_dict(), sort_keys=True).encode()).hexdigest()
        return self.folder / FACTS / f"{digest[:20]}.json"

    def record(self, fact: Fact) -> dict[str, Any] | None:
        """What a fact's file says; None where there is none. Raises FileError."""
        path = self.path(fact)
        if not path.exists():
            return None
        found = read_json(path, again=self.again)
        if not is_whole(found):
            raise FileError(f"{path} is damaged: its checksum does not match: {self.again}")
        return found

    def write_record(self, fact: Fact, record: dict[str, Any]) -> None:
        """Write a fact's file. Raises FileError."""
        make_folder(self.folder / FACTS)
        write_whole(self.path(fact), json.dumps(with_checksum(record)) + "\n")

    def write_skipped(self, fact: Fact, reason: str) -> None:
        """Keep why a fact was skipped. Raises FileError."""
        self.write_record(fact, {"fact": fact.id, "skipped": reason})

    @staticmethod
    def skipped(record: dict[str, Any], fact: Fact) -> str:
        """Why a fact was skipped; raises Misfit."""
        SKIPPED(record)
        if record["fact"] != fact.id:
            raise Misfit(quoted(fact.id), record["fact"], ("fact",))
        return str(record["skipped"])

    def deciding_of(self, found: Any, fact: Fact) -> dict[str, tuple[Any, Any]]:
        """What tells a result of this fact, model and settings from others: as the result has it, and as it must be."""
        settings = self.made_by["settings"]
        return {
            "text": (found.text, fact.text),
            "fingerprint": (found.provenance.fingerprint, self.made_by["fingerprint"]),
            "prepend_bos": (found.provenance.prepend_bos, settings["prepend_bos"]),
            "window": (found.window, settings["window"]),
        }

    def check_found(self, found: Any, fact: Fact) -> None:
        """Raise Misfit for the result of another fact, model or settings than those of this folder."""
        for name, (own, right) in self.deciding_of(found, fact).items():
            if own != right:
                raise Misfit(quoted(right), own, (name,))

    @contextmanager
    def fitting(self, path: Path) -> Iterator[None]:
        """A block whose Misfit is a FileError about a file."""
        try:
            yield
        except Misfit as misfit:
            raise FileError(f"{path} is damaged ({misfit}): {self.again}") from None


@dataclass(frozen=True)
class TraceFolder(FactFolder):
    """A folder of traces."""

    kind: ClassVar[Kind] = FOLDER
    form: ClassVar[Form] = FORM
    holds: ClassVar[str] = "traces"
    again: ClassVar[str] = "remove it to trace the fact again"

    def read(self, fact: Fact) -> Trace | str | None:
        """A fact's trace, or why it was skipped; None if it was not asked about yet. Raises FileError."""
        record = self.record(fact)
        if record is None:
            return None
        with self.fitting(self.path(fact)):
            if "skipped" in record:
                return self.skipped(record, fact)
            TRACED(record)
            found = Trace.from_dict(record)
            self.check_found(found, fact)
            return found

    def deciding_of(self, found: Trace, fact: Fact) -> dict[str, tuple[Any, Any]]:
        settings = self.made_by["settings"]
        return {
            **super().deciding_of(found, fact),
            "kinds": (list(found.kinds), settings["kinds"]),
            "samples": (len(found.samples), settings["samples"]),
            **{name: (getattr(found, name), settings[name]) for name in ("noise", "seed")},
        }

    def write(self, fact: Fact, found: Trace | str) -> None:
        """Keep a fact's trace, or why it was skipped. Raises FileError."""
        if isinstance(found, str):
            self.write_skipped(fact, found)
        else:
            self.write_record(fact, found.to_dict())
