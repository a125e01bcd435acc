"""The folder of an evaluation, which goes on where it was stopped, and the tables that it and finished scores keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ..checked_files import digest_of, is_whole, open_parquet, reading, seal, sealable
from ..errors import FileError
from ..files import make_folder, replacing
from ..folders import Kind, RunFolder
from .metrics import ABOUT

SCHEMA = 1
PART, MANIFEST, CHUNKS = "ffnmem evaluation", "manifest.json", "chunks"
FOLDER = Kind(MANIFEST, PART, SCHEMA, "the evaluation", rooms=(CHUNKS,))
RUN = b"ffnmem.run"


@dataclass(frozen=True)
class CaseFolder(RunFolder):
    """The folder of an evaluation, with the cases of some facts in each file of ``chunks``."""

    kind: ClassVar[Kind] = FOLDER
    holds: ClassVar[str] = "an evaluation"

    def before(self) -> Mapping[str, Any]:
        there = FOLDER.said(self.folder) or {}
        if not is_whole(there):
            raise FileError(f"{self.folder / MANIFEST} is damaged: its checksum does not match: name another folder")
        return self.deciding(there)

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
        return digest_of(dict(self.deciding(self.made_by)))


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
