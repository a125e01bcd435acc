"""Texts and numbers on a page: escaped, white space marked, signs typeset. How numbers round: test_number_text.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from ffnmem.show.notebook import (
    percent,
    plain,
    probability,
    provenance_line,
    running_html,
    setting,
    signed,
    tiny,
    token_html,
)

READS: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    (token_html, (" <b>",), '<span class="fm-mark">·</span>&lt;b&gt;'),
    (token_html, ("\"&'",), "&#34;&amp;&#39;"),
    (token_html, ("\n",), '<span class="fm-mark">↵</span>'),
    (running_html, (" <b> x",), " &lt;b&gt; x"),
    (running_html, ("\n",), '<span class="fm-mark">↵</span>'),
    (signed, (1.234,), "+1.23"),
    (signed, (-1.236,), "−1.24"),
    (plain, (-0.25, 1), "−0.2"),
    (percent, (-0.5,), "−50%"),
    (percent, (math.inf,), "–"),
    (probability, (3e-7,), "3.0e−5%"),
    (tiny, (1.23e-7,), "1.2e−7"),
    (provenance_line, ({"model": "atlas", "prepend_bos": True},), "model atlas · prepend_bos yes"),
    (setting, (False,), "no"),
    (setting, (None,), "–"),
    (setting, (3,), "3"),
]


@pytest.mark.parametrize(("function", "given", "reads"), READS)
def test_reads(function: Callable[..., Any], given: tuple[Any, ...], reads: str) -> None:
    assert function(*given) == reads
