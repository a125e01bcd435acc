"""JSON that somebody broke: any value in any place of a document, and any byte of a file."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

DEEP: Any = [[[[[[[[]]]]]]]]
VALUES = st.one_of(
    st.sampled_from(
        (None, True, False, 0, 1, -1, 2, 3, 7, 10**4 + 1, 10**6, 2**31, 10**9, 2**63, 10**30, 0.5, -1.0, 1e-30, 1e30)
    ),
    st.sampled_from((float("nan"), float("inf"), "", "x", "0", "../x", "/dev/zero", "gelu", "auto", "a\nb", "\ud800")),
    st.sampled_from(([], {}, [None], [0], ["x"], {"x": 1}, {"": None}, [[["global"], 10**9]], DEEP)),
    st.integers(-300, 300),
    st.text(max_size=6),
)


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a document: what holds it, and the key or index there."""
    for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        yield tree, key
        if isinstance(value, dict | list):
            yield from places(value)


@st.composite
def changes(draw: st.DrawFn) -> tuple[str, int, Any, str]:
    """One change, to be made by :func:`changed`: what is done, where, with which value and name."""
    kind = draw(st.sampled_from(("put", "put", "put", "drop", "rename", "add", "double")))
    return kind, draw(st.integers(0, 10**4)), draw(VALUES), draw(st.text(max_size=4))


def changed(document: Any, made: list[tuple[str, int, Any, str]]) -> Any:
    """A copy of a document with some changes; ``double`` puts what is in one place in another one too."""
    found = copy.deepcopy(document)
    for kind, where, value, name in made:
        all_places = list(places(found)) if isinstance(found, dict | list) else []
        if not all_places:
            return value
        holder, key = all_places[where % len(all_places)]
        if kind == "put":
            holder[key] = copy.deepcopy(value)
        elif kind == "drop":
            del holder[key]
        elif kind == "add" and isinstance(holder, dict):
            holder[name] = copy.deepcopy(value)
        elif kind == "rename" and isinstance(holder, dict):
            holder[f"{key}{name}"] = holder.pop(key)
        elif kind == "double":
            other, there = all_places[(where // 7) % len(all_places)]
            holder[key] = copy.deepcopy(other[there])
    return found


def write_json(path: Path, document: Any) -> None:
    """As ``json.dump`` writes it, lone surrogates and numbers that are none included."""
    path.write_text(json.dumps(document), "utf-8")


BYTES = st.lists(
    st.tuples(st.sampled_from(("flip", "cut", "insert", "drop")), st.integers(0, 2**20), st.binary(max_size=9)),
    min_size=1,
    max_size=3,
)


def broken(data: bytes, made: list[tuple[str, int, bytes]]) -> bytes:
    """A file's bytes with some of them changed."""
    found = bytearray(data)
    for kind, where, more in made:
        at = where % (len(found) + 1)
        if kind == "cut":
            del found[at:]
        elif kind == "insert":
            found[at:at] = more
        elif kind == "drop":
            del found[at : at + len(more)]
        else:
            found[at : at + len(more)] = more
    return bytes(found)
