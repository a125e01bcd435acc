"""Numbers as text, the same on a terminal, in a notebook, in Markdown and in sentences; a dash where there is none."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

MISSING = "–"


def decimals(values: Iterable[float], digits: int = 4) -> int:
    """Decimal places that show the largest of some values with ``digits`` significant digits."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if largest == 0:
        return digits - 1
    return min(max(digits - 1 - math.floor(math.log10(largest)), 0), 9)


def format_number(value: float, places: int = 2, sign: bool = False) -> str:
    """A number with fixed places; ``sign``: with a plus sign too, but for what rounds to zero."""
    if not math.isfinite(value):
        return MISSING
    text = f"{value:z.{places}f}"
    return f"+{text}" if sign and value > 0 and float(text) else text


def format_share(value: float, places: int = 1, sign: bool = False) -> str:
    """A share of a whole, or a change of one, in percent."""
    return format_number(100 * value, places, sign) + "%" * math.isfinite(value)


def format_probability(value: float) -> str:
    """A probability in percent with one decimal, below 1% with two digits that count (``0.0054%``), and below 0.001% as
    people write it: ``5e-7``. One that would round to certainty says so."""
    if 0.9995 <= value < 1:
        return "> 99.9%"
    if -0.01 < value < 0:  # what one loses
        return f"-{format_probability(-value)}"
    if not 0 < value < 0.01:
        return format_share(value)
    if value < 1e-5:
        return format_small(value).replace(".0e", "e")
    return f"{float(f'{100 * value:.2g}'):.5f}".rstrip("0").removesuffix(".") + "%"


def format_bytes(count: float) -> str:
    """A size in MB or GB, powers of ten."""
    megabytes = count / 1e6
    if megabytes >= 1000:
        return f"{megabytes / 1000:,.1f} GB"
    return f"{megabytes:.0f} MB" if megabytes >= 10 else f"{megabytes:.1f} MB"


def format_small(value: float) -> str:
    """An error or a very small probability as mantissa and exponent."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else MISSING
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}" if int(exponent) else mantissa


def format_value(value: Any) -> str:
    """A number with four significant digits, a whole one with thousands; anything else as it is."""
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else MISSING
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
