"""What JSON of ours must look like: small checks that are put together, and say where and how something does not fit.

``fields({"layers": whole(1), "d_mlp": items(whole(1))})`` is a check: called with a value it returns, or raises
:class:`Misfit`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from math import isfinite
from typing import Any

from .errors import SHOWN, quoted

Check = Callable[[Any], None]

MOST = 1 << 62  # no number of ours is larger, and two of them added still fit 64 bits
DEEPEST = 40  # levels of lists and objects in JSON of ours; the deepest has six


ABSENT = object()


class Misfit(Exception):
    """A value that is not what it must be: where it is, what it is, what would be right."""

    def __init__(self, wanted: str, value: Any, place: tuple[str, ...] = ()) -> None:
        super().__init__(wanted)
        self.wanted, self.value, self.place = wanted, value, place

    def within(self, name: object) -> Misfit:
        """The same seen from one level up."""
        return Misfit(self.wanted, self.value, (str(name), *self.place))

    def __str__(self) -> str:
        where = ".".join(self.place)[:SHOWN] or "all of it"
        if self.value is ABSENT:
            return f"{where} is missing"
        return f"{where} is {quoted(self.value)}, and must be {self.wanted}"


def within(name: object, check: Check, value: Any) -> None:
    """Check a part of something, and say which part where it does not fit."""
    try:
        check(value)
    except Misfit as misfit:
        raise misfit.within(name) from None


def anything(value: Any) -> None:
    """Whatever JSON holds: see :func:`check_plain`."""


def flag(value: Any) -> None:
    """True or false."""
    if not isinstance(value, bool):
        raise Misfit("true or false", value)


def whole(least: int = 0, most: int = MOST) -> Check:
    """A whole number within bounds."""
    bounds = f"a whole number of at least {least}" if most == MOST else f"a whole number from {least} to {most}"

    def check(value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise Misfit(bounds, value)

    return check


def number(least: float | None = None) -> Check:
    """A finite number, whole or not."""
    wanted = "a finite number" + ("" if least is None else f" of at least {least:g}")

    def check(value: Any) -> None:
        there = isinstance(value, int | float) and not isinstance(value, bool)
        if not there or abs(value) > 1e300 or not isfinite(value) or (least is not None and value < least):
            raise Misfit(wanted, value)

    return check


def text(pattern: str = r"(?s).*", wanted: str = "text") -> Check:
    """Text, all of which matches a pattern."""
    form = re.compile(pattern)

    def check(value: Any) -> None:
        if not isinstance(value, str) or form.fullmatch(value) is None:
            raise Misfit(wanted, value)

    return check


def hexadecimal(digits: int) -> Check:
    """So many lower-case hexadecimal digits."""
    return text(f"[0-9a-f]{{{digits}}}", f"{digits} hexadecimal digits")


word = text(r"[!-~]{1,128}", "a hash or another single word")


def one_of(*values: Any) -> Check:
    """One of a few values."""

    def check(value: Any) -> None:
        if not any(type(value) is type(known) and value == known for known in values):
            raise Misfit(" or ".join(map(repr, values)), value)

    return check


def maybe(check: Check) -> Check:
    """What ``check`` wants, or null."""

    def either(value: Any) -> None:
        if value is not None:
            check(value)

    return either


def items(check: Check, least: int = 0) -> Check:
    """A list of at least so many things, each of which fits."""

    def each(value: Any) -> None:
        if not isinstance(value, list) or len(value) < least:
            raise Misfit(f"a list of at least {least}" if least else "a list", value)
        for number, item in enumerate(value):
            within(number, check, item)

    return each


def ascending(check: Check) -> Check:
    """A list that is not empty, each thing larger than the one before."""
    each = items(check, least=1)

    def ordered(value: Any) -> None:
        each(value)
        if any(a >= b for a, b in pairwise(value)):
            raise Misfit("ascending", value)

    return ordered


def row(*checks: Check) -> Check:
    """A list with one thing for each check."""

    def each(value: Any) -> None:
        if not isinstance(value, list) or len(value) != len(checks):
            raise Misfit(f"a list of {len(checks)}", value)
        for number, (check, item) in enumerate(zip(checks, value, strict=True)):
            within(number, check, item)

    return each


def table(keys: Check, values: Check) -> Check:
    """An object with any number of names, each of which fits, and what it holds too."""

    def each(value: Any) -> None:
        if not isinstance(value, dict):
            raise Misfit("an object", value)
        for name, item in value.items():
            within(name, keys, name)
            within(name, values, item)

    return each


def fields(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None, closed: bool = False) -> Check:
    """An object with these fields; with others besides, which versions to come may add, unless it is closed."""
    known = {**required, **(optional or {})}

    def each(value: Any) -> None:
        if not isinstance(value, dict):
            raise Misfit("an object", value)
        for name, check in known.items():
            if name in value:
                within(name, check, value[name])
            elif name in required:
                raise Misfit("there", ABSENT, (name,))
        if closed and set(value) - set(known):
            raise Misfit(f"an object with {', '.join(known)} and nothing else", sorted(value))

    return each


def together(*checks: Check) -> Check:
    """All of some checks, in their order."""

    def each(value: Any) -> None:
        for check in checks:
            check(value)

    return each


def rule(holds: Callable[[Any], bool], wanted: str) -> Check:
    """A condition that parts must meet together, asked where each by itself fits."""

    def check(value: Any) -> None:
        if not holds(value):
            raise Misfit(wanted, value)

    return check


def check_plain(value: Any) -> None:
    """Raise Misfit for what JSON can hold and no program of ours writes: hundreds of levels, halves of characters."""
    level: list[tuple[tuple[str, ...], Any]] = [((), value)] if isinstance(value, dict | list) else []
    for _ in range(DEEPEST):
        deeper: list[tuple[tuple[str, ...], Any]] = []
        for place, holder in level:
            pairs = holder.items() if isinstance(holder, dict) else enumerate(holder)
            for name, item in pairs:
                for letters in (name, item):
                    if isinstance(letters, str) and not letters.isascii() and HALF.search(letters):
                        raise Misfit("text without half characters (lone surrogates)", item, (*place, ascii(name)))
                if isinstance(item, dict | list):
                    deeper.append(((*place, str(name)), item))
        level = deeper
    if level:
        raise Misfit(f"no more than {DEEPEST} levels deep", "…", level[0][0][:3])


HALF = re.compile("[\ud800-\udfff]")


PROVENANCE = fields(
    {
        **{name: text() for name in ("model", "fingerprint", "dtype", "device", "version")},
        "prepend_bos": maybe(flag),
        "settings": items(row(text(), anything)),
    }
)
"""What a file says of where its numbers come from; see :class:`ffnmem.core.provenance.Provenance`."""
