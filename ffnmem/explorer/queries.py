"""What an address asks for: its parameters as typed values, and addresses made of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any
from urllib.parse import quote, urlencode

from ..core.errors import InputError, check_choice, check_text, counted, quoted
from ..core.neuron_names import read_neuron
from ..core.token_text import token_id

LONGEST = 4000  # characters of a text
MOST = 64  # parameters of an address
VARIANTS = 4
CHANGES = 64  # neurons of a variant

Variant = dict[tuple[int, int], float]
"""What each neuron's coefficient is multiplied by: 0 switches it off."""


def address(path: str, *pairs: tuple[str, Any], **named: Any) -> str:
    """A path with parameters, in this order; what is None, False or empty is left out, True is 1."""
    given = [(name, 1 if value is True else value) for name, value in (*pairs, *named.items())]
    kept = [(name, value) for name, value in given if not (value is None or value is False or value == "")]
    shown = urlencode(kept, quote_via=quote)
    return f"{path}?{shown}" if shown else path


class Query:
    """The parameters of an address. Whatever cannot be read is an InputError of one clear line.

    Args:
        pairs: names and values as they stand in the address, in order; empty values count as not given.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.pairs = tuple((name, value) for name, value in pairs if value.strip())
        if len(self.pairs) > MOST:
            raise InputError(f"the address has {len(self.pairs)} parameters, and at most {MOST} are read")

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        """What tells two queries apart."""
        return self.pairs

    def __bool__(self) -> bool:
        return bool(self.pairs)

    def __contains__(self, name: str) -> bool:
        return bool(self.all(name))

    def all(self, name: str) -> list[str]:
        """Every value of a parameter, as typed."""
        return [value for given, value in self.pairs if given == name]

    def raw(self, name: str, default: str = "") -> str:
        """A parameter as typed, to fill in a form again; the last where there are several."""
        return next(iter(self.all(name)[::-1]), default)

    def address(self, path: str, *more: tuple[str, Any], **changes: Any) -> str:
        """This query's address with some parameters replaced, or left out (None), and ``more`` after them."""
        return address(path, *((n, v) for n, v in self.pairs if n not in changes), *more, **changes)

    def token(self, name: str) -> str | int | None:
        """A token as text, or by its number: ``id:417``; None where none is given."""
        typed = self.text(name, most=200)
        number = token_id(typed.strip())
        return typed or None if number is None else number

    def text(self, name: str, default: str = "", *, most: int = LONGEST, what: str = "") -> str:
        """A text of at most ``most`` characters, its spaces as typed."""
        found = check_text(what or name, self.raw(name, default))
        if len(found) > most:
            raise InputError(f"{what or name} has {len(found):,} characters, and at most {most:,} are read here")
        return found.replace("\r\n", "\n")

    def needed(self, name: str, *, most: int = LONGEST, what: str = "") -> str:
        """The same of one that must be given."""
        if name not in self:
            raise InputError(f"{what or name} is missing: type one")
        return self.text(name, most=most, what=what)

    def whole(self, name: str, default: int, *, least: int, most: int, what: str = "") -> int:
        """A whole number in a range; ``what``: what its field is called."""
        typed, what = self.raw(name, str(default)).strip(), what or name
        if len(typed) > 20 or not typed.removeprefix("-").isdecimal() or not typed.isascii():
            raise InputError(f"{what} must be a whole number from {least:,} to {most:,}, not {quoted(typed)}")
        found = int(typed)
        if not least <= found <= most:
            raise InputError(f"{what} must be from {least:,} to {most:,}, not {found:,}")
        return found

    def number(self, name: str, default: float, *, least: float, most: float, what: str = "") -> float:
        """A number in a range; ``what``: what its field is called."""
        return number_of(what or name, self.raw(name, str(default)), least, most)

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        """One of some names."""
        return check_choice(name, self.raw(name, default).strip(), choices)

    def flag(self, name: str) -> bool:
        """Whether a box is ticked."""
        return self.choice(name, ("0", "1"), "0") == "1"

    def neuron(self, name: str = "neuron") -> tuple[int, int] | None:
        """A neuron, as ``3.17`` or ``L3N17``; None where none is named. Whether the model has it is asked later."""
        return read_neuron(self.raw(name).strip()) if name in self else None

    def variants(self, name: str = "v") -> list[Variant]:
        """What each value of ``name`` changes: ``3.17:0,5.97:2`` switches one neuron off and doubles another."""
        typed = self.all(name)
        if len(typed) > VARIANTS:
            raise InputError(f"{counted(len(typed), 'variant')} are too many: {VARIANTS} stand side by side")
        return [variant_of(one) for one in typed]


def number_of(name: str, typed: str, least: float, most: float) -> float:
    """A number as typed; raises InputError."""
    try:
        found = float(typed.strip()) if len(typed) <= 40 else math.nan
    except ValueError:
        found = math.nan
    if not least <= found <= most:
        raise InputError(f"{name} must be a number from {least:g} to {most:g}, not {quoted(typed)}")
    return found


def variant_of(typed: str) -> Variant:
    """One variant as typed; raises InputError."""
    parts = [part.strip() for part in typed.split(",") if part.strip()]
    if not parts or len(parts) > CHANGES:
        raise InputError(f"a variant names 1 to {CHANGES} neurons, such as 3.17:0,5.97:2, not {quoted(typed)}")
    found: Variant = {}
    for part in parts:
        name, colon, factor = part.partition(":")
        at = read_neuron(name.strip())
        if at in found:
            raise InputError(f"a variant names neuron {at[0]}.{at[1]} twice: {quoted(typed)}")
        found[at] = number_of(f"the factor of {name.strip()}", factor, -100, 100) if colon else 0.0
    return found


def told(variant: Variant) -> str:
    """A variant as an address has it."""
    return ",".join(f"{layer}.{neuron}:{factor:g}" for (layer, neuron), factor in variant.items())
