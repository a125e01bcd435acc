"""Hostile input: what counts as an answer to it, small models and stores to break, and ways to break them."""

from __future__ import annotations

import atexit
import copy
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.core.errors import FfnmemError
from ffnmem.scanning import Store, scan

from ..helpers import build_gpt2, build_tokenizer
from ..scanning.texts import tiny_texts

LONGEST = 1500  # characters that a message may have, whatever the input was
FUZZ = int(os.environ.get("FFNMEM_FUZZ", "0"))
"""How many times as many inputs are drawn, others each time; 0: a few, the same every time."""


def hostile(
    examples: int, **strategies: st.SearchStrategy[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A test that draws ``examples`` inputs."""
    frame = settings(
        max_examples=examples * max(FUZZ, 1),
        deadline=None,
        derandomize=not FUZZ,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: frame(given(**strategies)(test))


def answered(call: Callable[[], Any]) -> Any:
    """What a call returns, or the error of ours in one line that it raises. Anything else fails the test."""
    found: Any
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning is no failure; those of libraries come as they please
            found = call()
    except FfnmemError as error:
        found = error
    if isinstance(found, FfnmemError):
        message = str(found)
        assert message.strip(), f"{type(found).__name__} without a message"
        assert "\n" not in message, f"a message of several lines: {message!r}"
        assert len(message) <= LONGEST, f"a message of {len(message)} characters: {message[:200]!r}…"
    return found


# -- models and stores, made once a process, in a folder that goes with it ---------------------------------------------

COUNTER = count()


@cache
def place() -> Path:
    """A folder for this process."""
    torch.set_num_threads(1)
    folder = Path(mkdtemp(prefix="ffnmem-hostile-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def fresh() -> Path:
    """A path in it where nothing lies yet."""
    return place() / str(next(COUNTER))


@cache
def tiny() -> fm.Model:
    """A random two-layer GPT-2. Shared: do not change it."""
    return fm.load(build_gpt2(), tokenizer=build_tokenizer())


@cache
def tiny_folder() -> Path:
    """The same in the hub's own layout. Shared: copy it."""
    folder = fresh()
    build_gpt2().save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


@cache
def tiny_store() -> Store:
    """A finished scan of it. Shared: copy its folder."""
    return scan(tiny(), tiny_texts(), fresh(), k=3, sample=8, draws=4, frequent=8)


# -- bytes -------------------------------------------------------------------------------------------------------------

BREAKS = st.tuples(
    st.sampled_from(["flip", "flip", "flip", "cut", "grow", "zeros", "head", "tail", "deep"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 255),
)
"""How, where (as a share of the file) and with which byte."""


def broken(data: bytes, how: tuple[str, float, int]) -> bytes:
    """The bytes with something wrong; now and then, with a byte that was there already, the same."""
    what, share, byte = how
    at = int(share * len(data))
    if what == "deep" or not data:
        return b"[" * 9000
    if what == "cut":
        return data[:at]
    if what == "grow":
        return data[:at] + bytes([byte]) * (1 + byte % 9) + data[at:]
    if what == "zeros":
        return data[:at] + bytes(min(byte, len(data) - at)) + data[at + byte :]
    if what == "head":
        at %= min(len(data), 512)
    if what == "tail":
        at = len(data) - 1 - at % min(len(data), 2048)
    return data[:at] + bytes([byte]) + data[at + 1 :]


# -- JSON: any value in any place of a document ------------------------------------------------------------------------

DEEP: Any = [[[[[[[[]]]]]]]]
VALUES = st.one_of(
    st.sampled_from((None, True, False, 0, 1, -1, 2, 3, 7, 10**4 + 1, 10**6, 2**31, 10**9, 2**63, 10**30, 0.5, 1e-30)),
    st.sampled_from((float("nan"), float("inf"), "", "x", "0", "../x", "/dev/zero", "gelu", "auto", "a\nb", "\ud800")),
    st.sampled_from(([], {}, [None], [0], ["x"], {"x": 1}, {"": None}, [[["global"], 10**9]], DEEP, "{}", "[X] [Y]")),
    st.integers(-300, 300),
    st.text(max_size=6),
)
Change = tuple[str, int, Any, str]


@st.composite
def changes(draw: st.DrawFn) -> list[Change]:
    """Up to three changes: what is done, where, with which value and name."""
    kinds = st.sampled_from(("put", "put", "put", "drop", "rename", "add"))
    one = st.tuples(kinds, st.integers(0, 10**4), VALUES, st.text(max_size=4))
    return draw(st.lists(one, min_size=1, max_size=3))


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a document: what holds it, and the key or index there."""
    for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        yield tree, key
        if isinstance(value, dict | list):
            yield from places(value)


def changed(document: Any, made: list[Change]) -> Any:
    """A copy of a document with some changes."""
    found = copy.deepcopy(document)
    for kind, where, value, name in made:
        every = list(places(found))
        if not every:
            return value
        holder, key = every[where % len(every)]
        if kind == "put":
            holder[key] = copy.deepcopy(value)
        elif kind == "drop":
            del holder[key]
        elif isinstance(holder, dict):
            holder[f"{key}{name}"] = holder.pop(key) if kind == "rename" else copy.deepcopy(value)
    return found
