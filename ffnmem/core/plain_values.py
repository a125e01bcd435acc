"""Settings as plain values, for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .errors import InputError


def plain_value(value: Any, name: str = "settings") -> Any:
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
        return {str(key): plain_value(inner, f"{name}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(inner, f"{name}[{i}]") for i, inner in enumerate(value)]
    raise InputError(f"{name} is a {type(value).__name__}, not a plain value that a file can hold")
