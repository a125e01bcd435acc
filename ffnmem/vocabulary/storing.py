"""Projections as tables: the columns, the Parquet file, and reading it back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float, Int

from ..checked_files import Form, open_parquet, parsed, reading, seal, sealable
from ..errors import FileError, check_whole
from ..files import check_destination, replacing, user_path
from ..models import Model
from ..neuron_names import NeuronName, place_of
from ..schemas import anything, fields, table
from ..schemas import text as any_text
from .vectors import SIGNS

SCHEMA_VERSION = 1
METADATA = b"ffnmem.projection"
FORM = Form(
    "",
    SCHEMA_VERSION,
    fields({"provenance": table(any_text(), anything)}),
    "projection: project(model, out=…) or ffnmem project --all --out writes one",
)
WORD = pa.dictionary(pa.int8(), pa.string())
SCHEMA = pa.schema(
    {
        "layer": pa.int32(),
        "neuron": pa.int32(),
        "side": WORD,
        "sign": WORD,
        "rank": pa.int32(),
        "token": pa.dictionary(pa.int32(), pa.string()),
        "token_id": pa.int32(),
        "score": pa.float32(),  # float64 for a float64 model
        "basis": WORD,
    }
)
COLUMNS = tuple(SCHEMA.names)
SCORES = (pa.float32(), pa.float64())
PLAIN = {"layer": pa.int64(), "neuron": pa.int64(), "rank": pa.int64(), "token_id": pa.int64(), "score": pa.float64()}


class Tables:
    """Makes Arrow tables of blocks of neurons, and knows the tokens' texts once they were needed."""

    def __init__(self, model: Model, sides: list[str], basis: str) -> None:
        self.model, self.sides, self.basis = model, sides, basis
        self.codes = np.full(model.d_vocab, -1, np.int32)  # of each id's text, once it was needed
        self.texts: list[str] = []
        self.places: dict[str, int] = {}  # of each text; several ids may share one

    def table(
        self,
        layer: int,
        neurons: list[int],
        ids: Int[np.ndarray, "rows sides 2 k"],
        scores: Float[np.ndarray, "rows sides 2 k"],
    ) -> pa.Table:
        """One row a token: by neuron, side, sign and rank."""
        rows, sides, ends, k = ids.shape
        count = rows * sides * ends * k
        columns = [
            pa.array(np.full(count, layer, np.int32)),
            pa.array(np.repeat(np.array(neurons, np.int32), sides * ends * k)),
            words(np.tile(np.repeat(np.arange(sides, dtype=np.int8), ends * k), rows), self.sides),
            words(np.tile(np.repeat(np.arange(ends, dtype=np.int8), k), rows * sides), list(SIGNS)),
            pa.array(np.tile(np.arange(1, k + 1, dtype=np.int32), rows * sides * ends)),
            self.coded(ids.reshape(-1)),
            pa.array(ids.reshape(-1).astype(np.int32)),
            pa.array(scores.reshape(-1)),
            words(np.zeros(count, np.int8), [self.basis]),
        ]
        return pa.Table.from_arrays(columns, names=list(COLUMNS))

    def coded(self, ids: Int[np.ndarray, " n"]) -> pa.DictionaryArray:
        """The ids' texts, each text once."""
        wanted = np.unique(ids)
        unknown = wanted[self.codes[wanted] < 0]
        for index, text in zip(unknown.tolist(), self.model.token_strings(unknown.tolist()), strict=True):
            self.codes[index] = self.places.setdefault(text, len(self.texts))
            if self.codes[index] == len(self.texts):
                self.texts.append(text)
        used, places = np.unique(self.codes[ids], return_inverse=True)
        return words(places.astype(np.int32), [self.texts[code] for code in used.tolist()])


def words(codes: Int[np.ndarray, " n"], texts: list[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(texts, pa.string()))


def plain_frame(table: pa.Table, provenance: dict[str, Any]) -> pd.DataFrame:
    """A table with pandas' usual types: whole numbers in 64 bits, text as text."""
    types = [PLAIN.get(field.name, pa.string()) for field in table.schema]
    frame = table.cast(pa.schema(zip(table.column_names, types, strict=True))).to_pandas()
    frame.attrs = {"provenance": provenance}
    return frame


def frugal_frame(tables: list[pa.Table], provenance: dict[str, Any]) -> pd.DataFrame:
    """Tables as one frame that takes some 30 bytes a row: text is categorical, whole numbers have 32 bits."""
    frame = pa.concat_tables(tables).unify_dictionaries().to_pandas()
    frame.attrs = {"provenance": provenance}
    return frame


def write_projection(out: str | Path, tables: Iterator[pa.Table], provenance: dict[str, Any], **settings: Any) -> Path:
    """Stream tables into a Parquet file, one row group each; the file appears when it is complete.

    Raises FileError.
    """
    path = check_destination(out)
    about = json.dumps({"schema": SCHEMA_VERSION, **settings, "provenance": provenance})
    with replacing(path) as temporary:
        first = next(tables)
        schema = first.schema.with_metadata(sealable({METADATA: about.encode()}))
        coded = [name for name in COLUMNS if name not in ("token_id", "score")]  # hardly any of these come twice
        options = {"compression": "zstd", "write_page_checksum": True, "store_schema": True, "use_dictionary": coded}
        with pq.ParquetWriter(temporary, schema, **options) as writer:
            writer.write_table(first, row_group_size=len(first))
            for table in tables:
                writer.write_table(table, row_group_size=len(table))
        seal(temporary)
    return path


@contextmanager
def stored(path: str | Path) -> Iterator[tuple[pq.ParquetFile, dict[str, Any]]]:
    """An open projection and what it says about itself; raises FileError for any other file, and for a broken one.

    What is read from it stands in a block of :func:`.checked_files.reading`.
    """
    missing = f"there is no file {path}: write one with project(model, out=…) or ffnmem project --all --out"
    place = user_path(path)
    with open_parquet(place, missing) as file:
        yield file, description(place, file)


def description(path: Path, file: pq.ParquetFile) -> dict[str, Any]:
    """The file's own account: schema, k, sides, provenance."""
    metadata = file.schema_arrow.metadata or {}
    if METADATA not in metadata or file.schema_arrow.names != list(COLUMNS):
        raise FileError(f"{path} is no projection: project(model, out=…) or ffnmem project --all --out writes one")
    wrong = [field.name for field in file.schema_arrow if field.type not in (SCHEMA.field(field.name).type, *SCORES)]
    if wrong or file.schema_arrow.field("score").type not in SCORES:
        raise FileError(f"{path} is no projection: the types of its columns are others ({', '.join(wrong) or 'score'})")
    about = parsed(path, metadata[METADATA])
    FORM.check_version(path, about)
    FORM.check_fields(path, about)
    return dict(about)


def read_projection(
    path: str | Path, layer: SupportsIndex | NeuronName | None = None, neuron: SupportsIndex | None = None
) -> pd.DataFrame:
    """Rows of a projection that ``project(model, out=…)`` wrote: all, a layer's, or one neuron's (in milliseconds).

    Args:
        path: the file. layer, neuron: which, or a neuron's name such as ``"3.17"`` alone; neuron None
            for all of the layer, layer None for that neuron of all.

    Returns:
        The columns of :func:`project`; no rows where the file does not hold that neuron.

    Raises:
        FileError: no such file, or none that is a whole projection.
    """
    if isinstance(layer, str | Sequence):
        layer, neuron = place_of(layer, neuron)
    wanted = {
        name: check_whole(name, value) for name, value in (("layer", layer), ("neuron", neuron)) if value is not None
    }
    with stored(path) as (file, about):
        places = [COLUMNS.index(name) for name in wanted]
        with reading(Path(path)):
            groups = [
                group
                for group in range(file.num_row_groups)
                if all(
                    statistics.min <= value <= statistics.max
                    for place, value in zip(places, wanted.values(), strict=True)
                    for statistics in [file.metadata.row_group(group).column(place).statistics]
                )
            ]
            table = file.read_row_groups(groups)
        for name, value in wanted.items():
            table = table.filter(pa.array(table[name].to_numpy() == value))
        return plain_frame(table, about["provenance"])
