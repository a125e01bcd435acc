"""Ways to break a file: bytes of it, or one value of the JSON in it."""

from __future__ import annotations

import copy
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
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
"""Which value of a JSON text, as a share of all."""


def deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


VALUES = st.one_of(
    st.sampled_from(
        [
            *(None, True, False, 0, 1, -1, 2, 3, 127, 2**31, 2**53 + 1, 2**63, 10**30, -(10**30), 0.5, 1e308),
            *(
                float("nan"),
                float("inf"),
                "",
                "x",
                "7",
                "../../etc/passwd",
                "/etc/passwd",
                "a\0b",
                "\ud800",
                "\x1b[31m",
            ),
            *("e" * 10_000, [], {}, [[]], [None], [0, 1], ["x"], {"": None}, {"a": 1}, deep(30), deep(300), [0] * 1000),
        ]
    ),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
)


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


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where values of a JSON text are, itself left out."""
    holder = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in holder:
        yield (*place, name)
        yield from places(item, (*place, name))


def with_value(value: Any, share: float, other: Any) -> Any:
    """A copy with another value at one of its places; ``"gone"`` removes it."""
    found = copy.deepcopy(value)
    everywhere = list(places(found))
    *path, last = everywhere[int(share * len(everywhere))]
    holder = found
    for name in path:
        holder = holder[name]
    if other == "gone":
        del holder[last]
    else:
        holder[last] = holder[last] + other if type(holder[last]) is type(other) is int else other
    return found


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


def reheaded(data: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    """A safetensors file of ours with another header in JSON, and a checksum that fits it."""
    size = int.from_bytes(data[:8], "little")
    outer = json.loads(data[8 : 8 + size])
    text = json.dumps(change(json.loads(outer["__metadata__"]["ffnmem"].partition(" ")[2])))
    outer["__metadata__"]["ffnmem"] = f"{zlib.crc32(text.encode()):08x} {text}"
    head = json.dumps(outer).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head + data[8 + size :]


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
