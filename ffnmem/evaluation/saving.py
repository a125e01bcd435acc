"""Scores on disk: a finished table, and the folder of an evaluation that goes on where it was stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ..attribution import plain_records
from ..checked_files import (
    Form,
    digest_of,
    file_hash,
    is_whole,
    open_parquet,
    read_checked,
    reading,
    seal,
    sealable,
    with_checksum,
)
from ..errors import FileError, listed, quoted
from ..files import make_folder, replacing, user_folder, user_path, write_whole
from ..folders import UNFINISHED, Kind, claimed
from ..provenance import Provenance
from ..schemas import anything, fields, flag, hexadecimal, items, maybe, row, table, text, whole
from .scores import ABOUT, Scores

SCHEMA = 1
KIND, PART = "ffnmem scores", "ffnmem evaluation"
CASES, SUMMARY, MANIFEST, CHUNKS = "cases.parquet", "summary.json", "manifest.json", "chunks"
SAVED = Kind(SUMMARY, KIND, SCHEMA, "the scores")
FOLDER = Kind(MANIFEST, PART, SCHEMA, "the evaluation", rooms=(CHUNKS,))
RUN = b"ffnmem.run"
FORM = Form(
    KIND,
    SCHEMA,
    fields(
        {
            "draws": whole(1),
            "seed": whole(),
            "settings": table(text(), anything),
            "provenance": fields(
                {
                    **{name: text() for name in ("model", "fingerprint", "dtype", "device", "version")},
                    "prepend_bos": maybe(flag),
                    "settings": items(row(text(), anything)),
                }
            ),
        },
        {"cases": hexadecimal(64)},
    ),
    "table of scores: Scores.save and evaluate(out=…) write one",
)
OWN = ("model", "fingerprint", "dtype", "device", "prepend_bos", "version")


def save_scores(scores: Scores, folder: str | Path) -> Path:
    """Write scores into a folder: new, empty, or of scores or an evaluation; raises FileError."""
    evaluated = FOLDER.said(user_path(folder)) is not None
    with claimed(folder, FOLDER if evaluated else SAVED) as target:
        SAVED.mark(target)  # else a kill would leave one's cases beside another's summary
        write_table(scores.cases, target / CASES)
        write_whole(target / SUMMARY, summary_text(scores, file_hash(target / CASES)))
    return target


def summary_text(scores: Scores, cases: str) -> str:
    """The text of summary.json; ``cases``: the hash of their file."""
    made = {
        "kind": KIND,
        "schema": SCHEMA,
        "draws": scores.draws,
        "seed": scores.seed,
        "settings": dict(scores.settings),
        "provenance": {name: getattr(scores.provenance, name) for name in OWN}
        | {"settings": [list(pair) for pair in scores.provenance.settings]},
        "summary": plain_records(scores.summary),
        "relations": plain_records(scores.relations),
        "cases": cases,
    }
    return json.dumps(with_checksum(made), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def load_scores(folder: str | Path) -> Scores:
    """The scores in a folder; intervals come out the same, for their draws are seeded. Raises FileError."""
    source = user_folder(folder)
    unfinished = " an evaluation that was not finished: the same call of evaluate goes on with it"
    nothing = " no scores: Scores.save and evaluate(out=…) write them"
    missing = f"{folder} holds{unfinished if FOLDER.said(source) is not None else nothing}"
    if UNFINISHED in (SAVED.said(source) or {}):
        raise FileError(missing)
    made = read_checked(source / SUMMARY, FORM, missing)
    if made.get("cases", None) not in (None, file_hash(source / CASES)):
        raise FileError(f"{source / CASES} is damaged, or of other scores than {SUMMARY}: evaluate again")
    own = made["provenance"]
    cases = read_table(source / CASES)
    lacking = [name for name in (*ABOUT, "failure") if name not in cases]
    if lacking:
        raise FileError(f"{source / CASES} holds no scores: it has no column {listed(lacking)}")
    return Scores(
        cases=cases,
        settings=made["settings"],
        provenance=Provenance(**{name: own[name] for name in OWN}, settings=tuple(map(tuple, own["settings"]))),
        draws=made["draws"],
        seed=made["seed"],
    )


@contextmanager
def kept(out: str | Path | None, run: Mapping[str, Any]) -> Iterator[Folder | None]:
    """The folder of an evaluation: new, empty, or of the same run; None where there is no ``out``.

    Args:
        out: made if missing.
        run: all that the cases depend on, as plain values.

    Raises: FileError: a folder that cannot be made, holds something else, or another run.
    """
    if out is None:
        yield None
        return
    made_by = json.loads(json.dumps(run))
    with claimed(out, FOLDER, made_by) as folder:
        found = Folder(folder, made_by)
        found.check()
        yield found


@dataclass(frozen=True)
class Folder:
    """The folder of an evaluation, with the cases of some facts in each file of ``chunks``."""

    folder: Path
    made_by: Mapping[str, Any]

    def check(self) -> None:
        """Raise FileError if what is there belongs to another run."""
        there = FOLDER.said(self.folder) or {}
        if not is_whole(there):
            raise FileError(f"{self.folder / MANIFEST} is damaged: its checksum does not match: name another folder")
        for name, value in self.made_by.items():
            old = there.get(name)
            if name != "model" and old != value:  # a model's name is how it was asked for, not what it is
                what = f"{name} {quoted(old)}, not {quoted(value)}"
                raise FileError(f"{self.folder} holds an evaluation with {what}: name another folder")

    def path(self, number: int) -> Path:
        return self.folder / CHUNKS / f"{number:05d}.parquet"

    def read(self, number: int, about: Sequence[tuple[str, str]]) -> pd.DataFrame | None:
        """A chunk's cases, checked to be those of these editors and facts; None where it is not there yet."""
        path = self.path(number)
        if not path.exists():
            return None
        found = read_table(path, self.run)
        if not set(ABOUT) <= set(found) or list(zip(found["editor"], found["id"], strict=True)) != list(about):
            raise FileError(f"{path} is damaged: it holds other cases; remove it to evaluate them again")
        return found

    def write(self, number: int, cases: pd.DataFrame) -> None:
        """Keep a chunk's cases, whole. Raises FileError."""
        make_folder(self.folder / CHUNKS)
        write_table(cases, self.path(number), self.run)

    @property
    def run(self) -> str:
        """What tells the cases of this run from those of another: all that they depend on."""
        return digest_of({name: value for name, value in self.made_by.items() if name != "model"})


def write_table(frame: pd.DataFrame, path: Path, run: str = "") -> None:
    """Write a table as Parquet whose pages and footer have checksums, whole or not at all. Raises FileError."""
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(sealable({RUN: run.encode()}))
    with replacing(path) as temporary:
        pq.write_table(table, temporary, write_page_checksum=True)
        seal(temporary)


def read_table(path: Path, run: str = "") -> pd.DataFrame:
    """A table that :func:`write_table` wrote; raises FileError where it is missing or damaged, or of another run."""
    again = "remove it to evaluate its facts again"
    with open_parquet(path, again=again) as file:
        # One of an older version does not say of which run it is.
        if (file.schema_arrow.metadata or {}).get(RUN, run.encode()) != run.encode():
            raise FileError(f"{path} is of another evaluation: {again}")
        with reading(path, again):
            return file.read().to_pandas()
