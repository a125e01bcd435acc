"""Hostile tokens, names and facts through everything that is shown as HTML: it parses, and nothing of it is markup."""

from __future__ import annotations

import re
import warnings
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pandas as pd
from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.show.notebook import NAME, ROOT

from ..helpers import PROMPT
from .judging import answered, hostile
from .material import tiny, tiny_store

MARK = "XyZzY"
NASTY = (
    f"<script>{MARK}</script>",
    f"</style><img src=x onerror={MARK}>",
    f"' onmouseover='{MARK}",
    f'" style="{MARK}',
    f"&lt;{MARK}",
    f"</td></table></div>{MARK}",
    f"{{{{ {MARK} }}}}",
    f"<!-- {MARK}",
    f"]]>\u202e{MARK}\x00",
)
TEXTS = st.one_of(st.sampled_from(NASTY), st.text(st.characters(codec="utf-8"), min_size=1, max_size=12))
VOID = {"meta", "img", "br", "hr", "input", "link", "col", "wbr", "source"}
OURS = {
    *(
        "class",
        "title",
        "translate",
        "value",
        "scope",
        "style",
        "role",
        "rowspan",
        "colspan",
        "open",
        "data-name",
        "tabindex",
    ),
    *("aria-hidden", "aria-label", "focusable", "viewbox", "preserveaspectratio", "x", "x1", "x2", "y", "y1", "y2"),
    *("d", "width", "height", "points", "fill-opacity"),
    "data-still",
}
"""Attributes that our own elements have."""


class Strict(HTMLParser):
    """Every element is closed where it should be, and has only attributes that ours have."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.styles: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "img", "iframe", "link", "a"), tag
        ours = OURS | {"type", "for", "id"} if tag in ("input", "label") else OURS
        assert {name for name, _ in attrs} <= ours, attrs
        assert tag != "input" or dict(attrs)["type"] == "checkbox", attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data[:40]}")

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.styles.append(data)


def check(html: str) -> None:
    """A display in its frame: whole, styled below its own root alone."""
    assert html.startswith(f'<div class="{NAME}')
    parser = Strict()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    for styles in parser.styles:
        assert MARK not in styles
        selectors = re.findall(r"([^{}]+)\{", re.sub(r"@media[^{]*\{", "", styles))
        assert all(one.strip().startswith(ROOT) for rule in selectors for one in rule.split(", "))


def displayed(what: str, make: Any) -> None:
    """Show a result, whatever is in it; an error of ours in making it is as good."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = answered(what, make)
    if hasattr(found, "_repr_html_"):
        check(found._repr_html_())


@hostile(examples=15, subject=TEXTS, true=TEXTS, new=st.one_of(st.none(), TEXTS), name=TEXTS)
def test_facts_and_edits(subject: str, true: str, new: str | None, name: str) -> None:
    displayed("fact", lambda: fm.Fact(subject, "r", "The {} is", true, new, id=name))
    fact = answered("fact", lambda: fm.Fact(subject, "r", "The {} is", true, new, id=name))
    if isinstance(fact, fm.Fact) and new is not None:
        edit = answered("ft_l", lambda: fm.editing.ft_l(tiny(), fact, layer=0, steps=1, force=True))
        if isinstance(edit, fm.Edit):
            check(edit._repr_html_())
            displayed("diff", lambda: edit.diff(tiny(), fact))


@hostile(examples=8, prompt=TEXTS, name=st.sampled_from(NASTY))
def test_prompts_and_names(prompt: str, name: str) -> None:
    model = tiny()
    before, model.name = model.name, name
    try:
        displayed("capture", lambda: fm.capture(model, prompt))
        capture = answered("capture", lambda: fm.capture(model, prompt))
        if isinstance(capture, fm.prompts.Capture):
            for what, make in {
                "attribute": lambda: fm.attribute(capture),
                "next": lambda: fm.attribute(capture, fm.prompts.NEXT),
                "paths": lambda: fm.attribute_paths(capture),
                "ablate": lambda: fm.ablate(capture, top=2),
                "knowledge": lambda: fm.interventions.knowledge_neurons(capture, steps=2),
            }.items():
                displayed(what, make)
        displayed("trace", lambda: fm.trace_fact(model, f"The {prompt} is", prompt, samples=1))
        displayed("anatomy", lambda: fm.models.anatomy(model))
    finally:
        model.name = before


@hostile(examples=8, names=st.lists(TEXTS, min_size=1, max_size=3, unique=True), texts=st.lists(TEXTS, max_size=3))
def test_tables(names: list[str], texts: list[str]) -> None:
    from ffnmem.core.sheets import Origin, Sheet, Table, Words
    from ffnmem.evaluation.scores import failure_table, score_tables
    from ffnmem.show.notebook import html

    frame = pd.DataFrame(dict.fromkeys(names, texts))
    check(html(Sheet.of(Table.of(frame, top=2))))
    check(html(Sheet.of(Table.of(frame, title=names[0], folded=True), Words.of(" ".join(texts)), title=names[0])))
    summary = pd.DataFrame([("ES", 1.0, 0.5, 1.5, 3) for _ in names], columns=["metric", "mean", "low", "high", "n"])
    tables = score_tables(summary.assign(**{"at": names}), "at", (("ES",), names[0], " ".join(texts)))
    failures = failure_table(pd.DataFrame({"id": names, "failure": names}))
    check(html(Sheet.of(*tables, failures, Origin({names[0]: names[0]}))))


@hostile(examples=6, text=TEXTS)
def test_cards(text: str) -> None:
    """The card of a neuron whose tokens are anything."""
    neuron = tiny_store().neuron(1, 3)
    hostile_values = neuron.values.assign(token=text)
    displayed("neuron", lambda: SimpleNamespace(_repr_html_=lambda: shown(neuron, hostile_values)))
    displayed("store", lambda: tiny_store())


def shown(neuron: Any, values: pd.DataFrame) -> str:
    from dataclasses import replace

    return replace(neuron, values=values)._repr_html_()


def test_every_display_is_framed() -> None:
    """A class with a display of its own, outside the frame, would be styled by the page around it."""
    assert fm.capture(tiny(), PROMPT)._repr_html_().startswith(f'<div class="{NAME}')
