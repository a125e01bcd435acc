"""How numbers and tokens read, wherever they are shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from ffnmem.core.number_text import (
    decimals,
    format_number,
    format_probability,
    format_share,
    format_small,
    format_value,
)
from ffnmem.core.token_text import flowing, is_partial, page_text, pieces, token_id, visible

READS: list[tuple[Callable[..., Any], tuple[Any, ...], Any]] = [
    (is_partial, ("a�",), True),
    (is_partial, ("<0xE2>",), True),
    (is_partial, ("<0xyz>",), False),
    (is_partial, ("é",), False),
    (decimals, ([0.001, 12.0],), 2),
    (decimals, ([0.0123],), 5),
    (decimals, ([],), 3),
    (decimals, ([1e-20],), 9),
    (decimals, ([123456.0],), 0),
    (decimals, ([math.inf, math.nan, -1.0], 2), 1),
    (format_number, (0.5,), "0.50"),
    (format_number, (-0.001, 2), "0.00"),
    (format_number, (0.001, 2, True), "0.00"),
    (format_number, (1.5, 1, True), "+1.5"),
    (format_number, (-1.5, 1, True), "-1.5"),
    (format_number, (math.nan,), "–"),
    (format_share, (0.1234,), "12.3%"),
    (format_share, (0.1234, 0), "12%"),
    (format_share, (0.1, 1, True), "+10.0%"),
    (format_share, (math.inf,), "–"),
    (format_probability, (0.99995,), "> 99.9%"),
    (format_probability, (0.9995,), "> 99.9%"),
    (format_probability, (0.9994,), "99.9%"),
    (format_probability, (-0.00063,), "-0.063%"),
    (format_probability, (1.0,), "100.0%"),
    (format_probability, (0.0,), "0.0%"),
    (format_probability, (0.0124,), "1.2%"),  # from 1% on as a share
    (format_probability, (0.00999,), "1%"),
    (format_probability, (0.0054,), "0.54%"),
    (format_probability, (0.000054,), "0.0054%"),
    (format_probability, (0.00001,), "0.001%"),
    (format_probability, (5e-7,), "5e-7"),
    (format_probability, (7.1e-11,), "7.1e-11"),
    (format_small, (0,), "0"),
    (format_small, (1.25,), "1.2"),
    (format_small, (0.00321,), "3.2e-3"),
    (format_small, (math.nan,), "–"),
    (format_value, (1234.5678,), "1235"),
    (format_value, (12345,), "12,345"),
    (format_value, (True,), "True"),
    (format_value, (math.inf,), "–"),
    (visible, (" Paris",), "·Paris"),
    (visible, ("\n\n",), "↵↵"),
    (visible, ("\t x\r",), "⇥·x␍"),
    (visible, ("",), "∅"),
    (visible, ("\u202eabc",), "\\u202eabc"),  # a direction override would turn the page's text round
    (visible, ("\ud800",), "\\ud800"),
    (visible, ("\u0301e",), "◌\u0301e"),
    (visible, ("e\u0301 a\n",), "e\u0301·a↵"),
    (visible, ("<b>&é",), "<b>&é"),
    (visible, (" Paris", 1), "…"),
    (visible, (" Paris", 4), "·Pa…"),
    (visible, (" Paris", 6), "·Paris"),
    (pieces, ("  a b",), [("··", True), ("a", False), ("·", True), ("b", False)]),
    (pieces, ("·",), [("·", False)]),  # a true middle dot is text, and so looks different
    (flowing, (" a b\n",), [(" a b", False), ("↵", True)]),
    (flowing, ("\x1b[31m\u202e",), [("\\x1b", True), ("[31m", False), ("\\u202e", True)]),
    (flowing, ("\u0301",), [("◌\u0301", False)]),
    (flowing, ("",), []),
    (page_text, ("<b>\n\u202e\x1b",), "&lt;b&gt;\n\\u202e\\x1b"),
    (token_id, ("id:417",), 417),
    (token_id, ("id:-1",), None),
]


@pytest.mark.parametrize(("function", "given", "reads"), READS)
def test_reads(function: Callable[..., Any], given: tuple[Any, ...], reads: Any) -> None:
    assert function(*given) == reads
