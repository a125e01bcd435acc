"""What edits show of themselves: settings as plain values for JSON, tables as HTML."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..errors import InputError
from ..token_text import page_text

ROWS = 20


def plain(value: Any, name: str = "settings") -> Any:
    """``value`` as what JSON holds: tuples become lists, numpy's numbers Python's, infinite ones text.

    Raises InputError naming what is no plain value, such as a tensor or a function.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(inner, f"{name}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, f"{name}[{i}]") for i, inner in enumerate(value)]
    raise InputError(f"{name} is a {type(value).__name__}, not a plain value that a file can hold")


def table(frame: pd.DataFrame, rows: int = ROWS) -> str:
    """The first rows of a table as HTML, every text of it escaped; nothing for an empty one."""
    if frame.empty:
        return ""
    head = "".join(f"<th>{page_text(str(name))}</th>" for name in frame.columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{cell(value)}</td>' for value in row)}</tr>"
        for row in frame.head(rows).itertuples(index=False, name=None)
    )
    more = f"<p><small>… and {len(frame) - rows} more</small></p>" if len(frame) > rows else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def cell(value: Any) -> str:
    """A number with four digits that count, missing ones as a dash, text with its whitespace marked."""
    from ..reports.rendering import MINUS, MISSING, token_html

    if isinstance(value, str):
        return str(token_html(value)) if value != value.strip() else page_text(value)
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    if isinstance(value, float):
        return f"{value:.4g}".replace("-", MINUS)
    return page_text(str(value))
