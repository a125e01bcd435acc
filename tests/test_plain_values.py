"""Settings as plain values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ffnmem.core.errors import InputError
from ffnmem.core.plain_values import plain_value

from .helpers import refuses


def test_plain() -> None:
    """What comes back from a file must equal what went in."""
    found = plain_value(
        {"a": (1, np.float64(0.5)), "b": {"c": np.int64(3), "d": None}, "e": Path("x"), "f": float("inf")}
    )
    assert found == {"a": [1, 0.5], "b": {"c": 3, "d": None}, "e": "x", "f": "inf"}
    assert type(found["b"]["c"]) is int
    assert plain_value(found) == found


def test_plain_names_what_it_refuses() -> None:
    with refuses(InputError, ValueError, "settings.a[1]", "Tensor"):
        plain_value({"a": [0, torch.ones(2)]})
