"""Traces in notebooks."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.tracing import KINDS, SEVERED, Trace, Traces, trace_fact
from ffnmem.tracing.display import described, map_html, trace_html, traces_html
from tests.helpers import PROMPT


@pytest.fixture(scope="module")
def found(tiny: fm.Model) -> Trace:
    return trace_fact(tiny, PROMPT, "Eiffel Tower", samples=2, noise=1.0)


class Tags(HTMLParser):
    """Tags that are open, and how often each was opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_cell_for_each_layer_and_token(found: Trace) -> None:
    tags = Tags(map_html(found, "ffn"))
    assert not tags.open
    assert tags.seen.count("td") == len(found.tokens) * (found.n_layers + 1)
    strongest = map_html(found, "ffn").count(", 1.00)")
    assert strongest >= 1, "no cell has the full colour"


def test_probabilities_subject_and_provenance(found: Trace) -> None:
    text = trace_html(found)
    assert not Tags(text).open
    assert f"{found.clean:.1%} clean, {found.corrupted:.1%}" in text
    assert text.count("Tower*</td>") == len(KINDS)
    assert found.provenance.fingerprint in text
    assert "BOS" in text


def test_everything_is_escaped(found: Trace) -> None:
    """Tokens, prompts and reasons are anybody's text."""
    bad = "<img src=x onerror=alert(1)>"
    nasty = replace(found, text=bad, answer=bad, tokens=(bad,) * len(found.tokens))
    traces = Traces((nasty,), pd.DataFrame({"fact": [bad], "subject": [bad], "reason": [bad]}), found.provenance)
    for text in (trace_html(nasty), traces_html(traces)):
        assert "<img" not in text


def test_many(found: Trace) -> None:
    skipped = pd.DataFrame({"fact": ["a"], "subject": ["b"], "reason": ["not known"]})
    text = traces_html(Traces((found, found), skipped, found.provenance))
    assert not Tags(text).open
    assert "2 facts traced, 1 skipped" in text
    assert ">not known</p>" in text
    assert "last token" in text


def test_kinds_in_words() -> None:
    words = [described(kind, 3) for kind in (*KINDS, *SEVERED)]
    assert len(set(words)) == 5
    assert described("ffn", 3) == "FFN of 3 layers"
    assert described("attention", 1) == "attention of one layer"
