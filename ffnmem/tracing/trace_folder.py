"""A folder of traces: one file a fact, written whole, so that a run over many facts goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
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
            "answer_id": whole(),
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
    """A folder with a file for each fact in ``facts``."""

    @staticmethod
    def deciding(made_by: Mapping[str, Any]) -> Mapping[str, Any]:
        """Fingerprint, dtype and each of the settings."""
        return {**{name: made_by.get(name) for name in ("fingerprint", "dtype")}, **made_by.get("settings", {})}

    def path(self, fact: Fact) -> Path:
        """The file of a fact, named after all that it says."""
        digest = hashlib.sha256(json.dumps(fact.to_dict(), sort_keys=True).encode()).hexdigest()
        return self.folder / FACTS / f"{digest[:20]}.json"


@dataclass(frozen=True)
class TraceFolder(FactFolder):
    """A folder of traces."""

    kind: ClassVar[Kind] = FOLDER
    form: ClassVar[Form] = FORM
    holds: ClassVar[str] = "traces"

    def read(self, fact: Fact) -> Trace | str | None:
        """A fact's trace, or why it was skipped; None if it was not asked about yet. Raises FileError."""
        path = self.path(fact)
        if not path.exists():
            return None
        again = "remove it to trace the fact again"
        record = read_json(path, again=again)
        if not is_whole(record):
            raise FileError(f"{path} is damaged: its checksum does not match: {again}")
        try:
            (SKIPPED if "skipped" in record else TRACED)(record)
            if "skipped" in record and record["fact"] != fact.id:
                raise Misfit(quoted(fact.id), record["fact"], ("fact",))
            found = str(record["skipped"]) if "skipped" in record else Trace.from_dict(record)
            if isinstance(found, Trace):
                self.check_trace(found, fact)
        except Misfit as misfit:
            raise FileError(f"{path} is damaged ({misfit}): {again}") from None
        return found

    def check_trace(self, trace: Trace, fact: Fact) -> None:
        """Raise Misfit for the trace of another fact, model or settings than those of this folder."""
        wanted: dict[str, tuple[Any, Any]] = {
            "text": (trace.text, fact.text),
            "kinds": (list(trace.kinds), self.made_by["settings"]["kinds"]),
            "samples": (len(trace.samples), self.made_by["settings"]["samples"]),
            "prepend_bos": (trace.provenance.prepend_bos, self.made_by["settings"]["prepend_bos"]),
            "fingerprint": (trace.provenance.fingerprint, self.made_by["fingerprint"]),
            **{name: (getattr(trace, name), self.made_by["settings"][name]) for name in ("window", "noise", "seed")},
        }
        for name, (found, right) in wanted.items():
            if found != right:
                raise Misfit(quoted(right), found, (name,))

    def write(self, fact: Fact, found: Trace | str) -> None:
        """Keep a fact's trace, or why it was skipped. Raises FileError."""
        record = {"fact": fact.id, "skipped": found} if isinstance(found, str) else found.to_dict()
        make_folder(self.folder / FACTS)
        write_whole(self.path(fact), json.dumps(with_checksum(record)) + "\n")
