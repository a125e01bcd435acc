"""``search_projection``: the neurons whose lists hold a word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..arguments import public
from ..checked_files import reading
from ..errors import InputError, check_choice, check_count, listed
from .storing import COLUMNS, plain_frame, stored
from .vectors import SIDES, SIGNS

ORDER = ["rank", "_strength", "layer", "neuron", "side", "sign"]


@public
def search_projection(
    source: str | Path | pd.DataFrame,
    text: str,
    *,
    side: str | None = None,
    sign: str | None = None,
    exact: bool = False,
    limit: int | None = None,
) -> pd.DataFrame:
    """Rows of a projection whose token contains a text, or is it.

    Args:
        source: a Parquet file that ``project(model, out=…)`` wrote, or a table of :func:`project`.
        text: looked for anywhere in the token, upper and lower case alike.
        side: only ``"value"``, ``"key"`` or ``"gate"``. sign: only ``"promoted"`` or ``"suppressed"``.
        exact: the token must be ``text``, with its leading space and its case.
        limit: at most this many rows.

    Returns:
        The columns of :func:`project`, best rank first; of equal ranks, the largest \\|score\\|.

    Raises:
        FileError: no such file, or none that is a projection. InputError: an empty text, an unknown side or sign, or a
        table without the columns.
    """
    if not text:
        raise InputError("the text to search for is empty")
    only = {}
    for name, value, choices in (("side", side, SIDES), ("sign", sign, SIGNS)):
        if value is not None:
            only[name] = check_choice(name, value, choices)
    if limit is not None:
        check_count("limit", limit)
    if isinstance(source, pd.DataFrame):
        table, provenance = frame_table(source), source.attrs.get("provenance", {})
        return best_first([hits(table, text, exact, only)], provenance, limit)
    with stored(source) as (file, about):
        found = [hits(rows, text, exact, only) for rows in row_groups(Path(source), file)]
    return best_first(found, about["provenance"], limit)


def row_groups(path: Path, file: pq.ParquetFile) -> Iterator[pa.Table]:
    """The rows of a projection, some at a time; raises FileError where they are damaged."""
    for group in range(file.num_row_groups):
        with reading(path):
            rows = file.read_row_group(group)
        yield rows


def frame_table(frame: pd.DataFrame) -> pa.Table:
    """A table of :func:`project` as Arrow has it."""
    missing = [name for name in COLUMNS if name not in frame.columns]
    if missing:
        raise InputError(f"this table is no projection: it has no column {listed(missing)}")
    return pa.Table.from_pandas(frame[list(COLUMNS)], preserve_index=False).replace_schema_metadata()


def hits(table: pa.Table, text: str, exact: bool, only: dict[str, str]) -> pa.Table:
    """The rows that match; text columns become plain strings, so that hits of several blocks fit together."""
    mask = chosen(table["token"], lambda tokens: matching(tokens, text, exact))
    for name, value in only.items():
        mask = pc.and_(mask, chosen(table[name], lambda words, value=value: pc.equal(words, value)))
    found = table.filter(mask)
    strings = [field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field for field in found.schema]
    return found.cast(pa.schema(strings))


def chosen(column: pa.ChunkedArray, test: Any) -> pa.ChunkedArray:
    """``test`` of every row; of dictionary-encoded text it is asked once a word."""
    parts = [
        pc.take(test(chunk.dictionary), chunk.indices) if isinstance(chunk, pa.DictionaryArray) else test(chunk)
        for chunk in column.chunks
    ]
    return pa.chunked_array(parts, pa.bool_())


def matching(tokens: pa.Array, text: str, exact: bool) -> pa.Array:
    return pc.equal(tokens, text) if exact else pc.match_substring(tokens, text, ignore_case=True)


def best_first(tables: list[pa.Table], provenance: dict[str, Any], limit: int | None) -> pd.DataFrame:
    frame = plain_frame(pa.concat_tables(tables), provenance)
    ordered = frame.assign(_strength=-frame["score"].abs()).sort_values(ORDER, kind="stable", ignore_index=True)
    result = ordered.drop(columns="_strength").head(limit if limit is not None else len(ordered))
    result.attrs = frame.attrs
    return result
