"""Anything that a result holds as what strict JSON has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """``value`` in what strict JSON has: tables as their rows, results and provenance as their ``to_dict()``, other
    dataclasses as their fields, a range as its ends; what is missing or not finite as None."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, range):
        return [value.start, value.stop]
    if hasattr(value, "columns"):
        return [plain(row) for row in value.to_dict("records")]
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    if hasattr(value, "tolist"):  # arrays, tensors and their scalars
        return plain(value.tolist())
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    raise TypeError(f"{type(value).__name__} has no place in JSON")
