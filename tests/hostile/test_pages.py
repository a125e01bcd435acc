"""Hostile tokens, names and facts through everything that is shown as HTML: it parses, and nothing of it is markup."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pandas as pd
from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.core.sheets import Origin, Sheet, Table, Words
from ffnmem.show.notebook import NAME, ROOT, html

from .material import answered, hostile, tiny, tiny_store

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
    *("class", "title", "translate", "value", "scope", "style", "role", "rowspan", "colspan", "open", "tabindex"),
    *("aria-hidden", "aria-label", "focusable", "viewbox", "preserveaspectratio", "x", "x1", "x2", "y", "y1", "y2"),
    *("d", "width", "height", "points", "fill-opacity", "data-still", "data-name"),
}
"""Attributes that our own elements have."""


class Strict(HTMLParser):
    """Every element is closed where it should be, and has only attributes that ours have."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []

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
        """Styles are of what stands below our own root alone."""
        if self.open and self.open[-1] == "style":
            assert MARK not in data
            selectors = re.findall(r"([^{}]+)\{", re.sub(r"@media[^{]*\{", "", data))
            assert all(one.strip().startswith(ROOT) for rule in selectors for one in rule.split(", "))


def check(shown: Any) -> None:
    """A display in its frame, whole; an error of ours in making it is as good."""
    if isinstance(shown, fm.FfnmemError):
        return
    text = shown if isinstance(shown, str) else shown._repr_html_()
    assert text.startswith(f'<div class="{NAME}')
    parser = Strict()
    parser.feed(text)
    parser.close()
    assert parser.open == []


@hostile(examples=12, text=TEXTS, new=TEXTS, name=st.sampled_from(NASTY))
def test_texts_and_names(text: str, new: str, name: str) -> None:
    """As a prompt, as a subject, as a target, as a token and as the name of a model."""
    model = tiny()
    before, model.name = model.name, name
    try:
        fact = answered(lambda: fm.Fact(text, "r", "The {} is", text, new, id=name))
        check(fact)
        edit = answered(lambda: fm.editing.ft_l(model, fact, layer=0, steps=1, force=True))
        check(edit)
        if isinstance(edit, fm.Edit):
            check(answered(lambda: edit.diff(model, fact)))
        capture = answered(lambda: fm.capture(model, text))
        check(capture)
        if isinstance(capture, fm.prompts.Capture):
            check(answered(lambda: fm.attribute(capture)))
            check(answered(lambda: fm.attribute(capture, fm.prompts.NEXT)))
            check(answered(lambda: fm.attribute_paths(capture)))
            check(answered(lambda: fm.ablate(capture, top=2)))
        check(answered(lambda: fm.trace_fact(model, f"The {text} is", text, samples=1)))
        check(answered(lambda: fm.models.anatomy(model)))
        neuron = tiny_store().neuron(1, 3)
        check(replace(neuron, values=neuron.values.assign(token=text)))
    finally:
        model.name = before


@hostile(examples=8, names=st.lists(TEXTS, min_size=1, max_size=3, unique=True), texts=st.lists(TEXTS, max_size=3))
def test_tables(names: list[str], texts: list[str]) -> None:
    frame, title = pd.DataFrame(dict.fromkeys(names, texts)), names[0]
    folded = Table.of(frame, title=title, folded=True)
    check(
        html(Sheet.of(Table.of(frame, top=2), folded, Words.of(" ".join(texts)), Origin({title: title}), title=title))
    )
