"""Ways to break a file: bytes of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from hypothesis import strategies as st

from .judging import answered
from .material import fresh

BREAKS = st.tuples(
    st.sampled_from(["flip", "flip", "flip", "cut", "grow", "zeros", "move", "head", "tail"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 255),
)
"""How, where (as a share of the file) and with which byte."""

PLACES = st.floats(0, 1, exclude_max=True)
"""Where, as a share of the whole."""


def broken(data: bytes, how: tuple[str, float, int]) -> bytes:
    """The bytes with something wrong; now and then, with a byte that was there already, the same."""
    what, share, byte = how
    place = int(share * len(data))
    if what == "cut":
        return data[:place]
    if what == "grow":
        return data[:place] + bytes([byte]) * (1 + byte % 9) + data[place:]
    if what == "zeros":
        return data[:place] + bytes(min(byte, len(data) - place)) + data[place + byte :]
    if what == "move":
        return (
            data[:place] + data[place + byte : place + 2 * byte] + data[place : place + byte] + data[place + 2 * byte :]
        )
    if what == "head":
        place = place % min(len(data), 512)
    if what == "tail":
        place = len(data) - 1 - place % min(len(data), 2048)
    return data[:place] + bytes([byte]) + data[place + 1 :] if data else b"\0"


def linked(folder: Path, changed: Mapping[str, bytes]) -> Path:
    """A folder with the same files, some of them with other bytes."""
    target = fresh()
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if path.is_dir() or path.name.startswith("."):
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if str(name) not in changed:
            os.link(path, target / name)
    for name, data in changed.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(data)
    return target


def plain(value: Any) -> Any:
    """A result as text that tells any two numbers apart."""
    if isinstance(value, pd.DataFrame):
        return value.to_csv()
    return repr(value)


def same_or_refused(what: str, ask: Callable[[], Any], right: str) -> None:
    """A question to what may be broken is answered as it was before, or with an error of ours."""
    found = answered(what, lambda: plain(ask()))
    if isinstance(found, str):
        assert found == right, f"{what} gave another result:\n{found[:500]}\ninstead of\n{right[:500]}"
