"""Scores on disk: a finished table, and the folder of an evaluation that goes on where it was stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ..attribution import plain_records
from ..errors import FileError, quoted
from ..files import replacing, user_folder, write_whole
from ..provenance import Provenance
from .scores import ABOUT, Scores

SCHEMA = 1
KIND, PART = "ffnmem scores", "ffnmem evaluation"
CASES, SUMMARY, MANIFEST, CHUNKS = "cases.parquet", "summary.json", "manifest.json", "chunks"
OWN = ("model", "fingerprint", "dtype", "device", "prepend_bos", "version")


def save_scores(scores: Scores, folder: str | Path) -> Path:
    """Write scores into a folder, made if missing; raises FileError."""
    target = user_folder(folder)
    make_folder(target)
    write_table(scores.cases, target / CASES)
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
    }
    write_whole(target / SUMMARY, json.dumps(made, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return target


def load_scores(folder: str | Path) -> Scores:
    """The scores in a folder; intervals come out the same, for their draws are seeded. Raises FileError."""
    source = user_folder(folder)
    made = read_json(source / SUMMARY)
    if made is None:
        unfinished = " an evaluation that was not finished: the same call of evaluate goes on with it"
        what = unfinished if (source / MANIFEST).is_file() else " no scores: Scores.save and evaluate(out=…) write them"
        raise FileError(f"{folder} holds{what}")
    if made.get("kind") != KIND or made.get("schema") != SCHEMA:
        raise FileError(f"{source / SUMMARY} is no {KIND} of schema {SCHEMA}, which this version of ffnmem reads")
    try:
        own = dict(made["provenance"])
        settings = tuple((str(name), value) for name, value in own.pop("settings"))
        return Scores(
            cases=read_table(source / CASES),
            settings=made["settings"],
            provenance=Provenance(**own, settings=settings),
            draws=made["draws"],
            seed=made["seed"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{source / SUMMARY} is damaged ({quoted(error)})") from None


class Folder:
    """The folder of an evaluation: new, empty, or of the same run.

    Args:
        out: made if missing.
        run: all that the cases depend on, as plain values.

    Raises: FileError: a folder that cannot be made, holds something else, or another run.
    """

    def __init__(self, out: str | Path, run: Mapping[str, Any]) -> None:
        self.folder = user_folder(out)
        made_by = json.loads(json.dumps({"kind": PART, "schema": SCHEMA, **run}))
        make_folder(self.folder)
        # A name with a dot in front is a file that was being written when a run was stopped.
        if any(not path.name.startswith(".") for path in self.folder.iterdir()):
            self.check(made_by)
        else:
            write_whole(self.folder / MANIFEST, json.dumps(made_by, indent=1, ensure_ascii=False) + "\n")
        make_folder(self.folder / CHUNKS)

    def check(self, made_by: Mapping[str, Any]) -> None:
        """Raise FileError if what is there belongs to another run."""
        there = read_json(self.folder / MANIFEST)
        if there is None or there.get("kind") != PART:
            raise FileError(f"{self.folder} is a folder with other things in it: name a new one for the evaluation")
        for name, value in made_by.items():
            old = there.get(name)
            if name != "model" and old != value:  # a model's name is how it was asked for, not what it is
                what = f"{name} {short(old)}, not {short(value)}"
                raise FileError(f"{self.folder} holds an evaluation with {what}: name another folder")

    def path(self, number: int) -> Path:
        return self.folder / CHUNKS / f"{number:05d}.parquet"

    def read(self, number: int, about: Sequence[tuple[str, str]]) -> pd.DataFrame | None:
        """A chunk's cases, checked to be those of these editors and facts; None where it is not there yet."""
        path = self.path(number)
        if not path.exists():
            return None
        found = read_table(path)
        if not set(ABOUT) <= set(found) or list(zip(found["editor"], found["id"], strict=True)) != list(about):
            raise FileError(f"{path} is damaged: it holds other cases; remove it to evaluate them again")
        return found

    def write(self, number: int, cases: pd.DataFrame) -> None:
        """Keep a chunk's cases, whole. Raises FileError."""
        write_table(cases, self.path(number))


def short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:79]}…"


def make_folder(folder: Path) -> None:
    """Make a folder if it is missing; raises FileError."""
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder} is a file: name a folder for the scores")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make {folder}: {error.strerror or error}") from None


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as Parquet whose pages have checksums, whole or not at all. Raises FileError."""
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    with replacing(path) as temporary:
        pq.write_table(table, temporary, write_page_checksum=True)


def read_table(path: Path) -> pd.DataFrame:
    """A table that :func:`write_table` wrote; raises FileError where it is missing or damaged."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            return file.read().to_pandas()
    except FileNotFoundError:
        raise FileError(f"{path} is missing") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise FileError(f"{path} is damaged ({first}): remove it to evaluate its facts again") from None


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
