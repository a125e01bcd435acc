"""Templates to HTML: the one place where numbers, tokens and provenance become text for a page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..token_text import flowing, page_text, pieces

MINUS = "−"  # as wide as a plus sign and a digit, so that columns of numbers line up
MISSING = "–"


HERE = "ffnmem.show"
NONE: Mapping[str, Any] = {}


def render(template: str, *, room: str = HERE, filters: Mapping[str, Any] = NONE, **values: Any) -> str:
    """A template of ``templates/`` of a room, or of this one, filled in; every value is escaped unless a filter made
    it."""
    return environment(room, tuple(filters.items())).get_template(template).render(**values)


@cache
def environment(room: str, filters: tuple[tuple[str, Any], ...]) -> Environment:
    """The templates of a room, each compiled when first used: that takes longer than to fill it in."""
    found = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in dict.fromkeys((room, HERE))]),
        autoescape=True,
        finalize=finished,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        token=token_html,
        running=running_html,
        signed=signed,
        plain=plain,
        percent=percent,
        count=count,
        probability=probability,
        tiny=tiny,
        setting=setting,
        **dict(filters),
    )
    return found


def finished(value: Any) -> Any:
    """What an expression of a template gave: what no filter has made, may come from anywhere."""
    return Markup(page_text(value)) if isinstance(value, str) and not isinstance(value, Markup) else value


def token_html(token: str) -> Markup:
    """A token's text, escaped, with whitespace and unprintable characters as marks that styles can dim."""
    return marked(pieces(token))


def running_html(text: str) -> Markup:
    """Running text in the same way, but with its spaces as they are."""
    return marked(flowing(text))


def marked(parts: Iterable[tuple[str, bool]]) -> Markup:
    mark = Markup('<span class="fm-mark">{}</span>')
    return Markup("").join(mark.format(text) if is_mark else text for text, is_mark in parts)


def plain(value: float, digits: int = 2) -> str:
    """A number with a fixed count of decimals, without a plus sign."""
    if not math.isfinite(value):
        return MISSING
    text = f"{abs(value):.{digits}f}"
    return MINUS + text if value < 0 and float(text) != 0 else text


def signed(value: float, digits: int = 2) -> str:
    """The same with a plus sign, and none for what rounds to zero."""
    text = plain(value, digits)
    return f"+{text}" if math.isfinite(value) and value > 0 and float(text) != 0 else text


def percent(value: float, digits: int = 0) -> str:
    return MISSING if not math.isfinite(value) else plain(100 * value, digits) + "%"


def count(value: int) -> str:
    return f"{value:,}"


def probability(value: float) -> str:
    """Four decimals, so that a column lines up; what would round to nothing or to certainty says so."""
    if not math.isfinite(value):
        return MISSING
    if 0.99995 <= value < 1:
        return "> 0.9999"
    return tiny(value) if 0 < value < 0.00005 else f"{value:.4f}"


def tiny(value: float) -> str:
    """An error or a very small probability as mantissa and exponent."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else MISSING
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{MINUS if int(exponent) < 0 else ''}{abs(int(exponent))}".replace("e0", "")


def setting(value: Any) -> str:
    """A field of the provenance in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return MISSING if value is None else str(value)


def provenance_line(fields: Mapping[str, Any]) -> str:
    """Provenance on one line: ``model atlas · fingerprint … · …``."""
    return " · ".join(f"{name} {setting(value)}" for name, value in fields.items())
