"""How numbers read, wherever they are shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from ffnmem.core.number_text import (
    decimals,
    format_interval,
    format_number,
    format_probability,
    format_share,
    format_small,
    format_value,
)

READS: list[tuple[Callable[..., Any], tuple[Any, ...], Any]] = [
    (decimals, ([0.001, 12.0],), 2),
    (decimals, ([1.5, -0.1],), 3),
    (decimals, ([0.0123],), 5),
    (decimals, ([],), 3),
    (decimals, ([1e-20],), 9),
    (decimals, ([123456.0],), 0),
    (decimals, ([math.nan, 0.0],), 3),
    (decimals, ([math.inf, 1.0], 2), 1),
    (format_number, (1.005, 1), "1.0"),
    (format_number, (0.5,), "0.50"),
    (format_number, (-0.001, 2), "0.00"),
    (format_number, (0.001, 2, True), "0.00"),
    (format_number, (0.0, 2, True), "0.00"),
    (format_number, (1.5, 1, True), "+1.5"),
    (format_number, (-1.5, 1, True), "-1.5"),
    (format_number, (math.nan,), "–"),
    (format_share, (0.1234,), "12.3%"),
    (format_share, (0.1234, 0), "12%"),
    (format_share, (0.1, 1, True), "+10.0%"),
    (format_share, (math.inf,), "–"),
    (format_share, (-0.0123,), "-1.2%"),
    (format_share, (-0.0001,), "0.0%"),
    (format_interval, (0.5, 0.25, 0.75), "50.0% (25.0% to 75.0%)"),
    (format_probability, (0.99995,), "> 99.9%"),
    (format_probability, (0.9994,), "99.9%"),
    (format_probability, (1.0,), "100.0%"),
    (format_probability, (0.0,), "0.0%"),
    (format_probability, (0.00123,), "0.12%"),
    (format_probability, (0.0021,), "0.2%"),  # from here on as a share
    (format_probability, (0.0019,), "0.19%"),
    (format_probability, (0.001,), "0.1%"),
    (format_probability, (0.00054,), "0.054%"),
    (format_probability, (0.000012,), "0.0012%"),
    (format_probability, (1e-8,), "1.0e-6%"),
    (format_small, (0,), "0"),
    (format_small, (1.25,), "1.2"),
    (format_small, (12.0,), "1.2e1"),
    (format_small, (0.00321,), "3.2e-3"),
    (format_small, (math.nan,), "–"),
    (format_value, (1234.5678,), "1235"),
    (format_value, (12345,), "12,345"),
    (format_value, (True,), "True"),
    (format_value, (math.inf,), "–"),
    (format_value, ("text",), "text"),
]


@pytest.mark.parametrize(("function", "given", "reads"), READS)
def test_reads(function: Callable[..., Any], given: tuple[Any, ...], reads: Any) -> None:
    assert function(*given) == reads
