"""The page of two models compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.comparing import Comparison
from ffnmem.core.errors import FileError, InputError

from ..comparing.made import TEXTS, permuted
from ..editing.edits import made as random_edit
from ..helpers import build_gpt2, refuses
from .page import Page, unscripted


@pytest.fixture(scope="module")
def edited(tiny: fm.Model) -> Comparison:
    return fm.compare(tiny, corpus=TEXTS[:30], edit=random_edit(tiny, (1,)))


@pytest.fixture(scope="module")
def html(tiny: fm.Model, edited: Comparison, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("page") / "comparison.html"
    assert fm.pages.comparison(edited, out, tiny, top=7) == out
    return out.read_text("utf-8")


def test_it_begins_with_the_conclusion(html: str, edited: Comparison) -> None:
    title, *sections = Page(html).headings
    assert title == "Two models, memory by memory"
    assert [section.partition(",")[0] for section in sections[1:]] == ["moved most", "Where these numbers come from"]
    assert sections[0].endswith(f"of {edited.second}")
    assert edited.conclusion()[0] in html


def test_its_tables_are_the_result(html: str, edited: Comparison) -> None:
    layers, (_, *rows), thresholds = [table for _, _, table in Page(html).listed]
    assert [row[0].text for row in rows] == [f"{row.layer}.{row.neuron}" for row in edited.moved(7).itertuples()]
    assert rows[0][1].values == [edited.moved(1)["value_change"][0]]
    assert len(rows[0][-1].chips) == 6
    assert len(layers) == 1 + len(edited.layers)
    assert len(thresholds) == 1 + len(edited.sensitivity())


def test_nothing_of_a_name_is_markup(tiny: fm.Model, tokenizer: Any, tmp_path: Path) -> None:
    """Names come from folders and hubs."""
    first, second = (fm.load(build_gpt2(), tokenizer=tokenizer) for _ in range(2))
    permuted(second, 0, 1)
    second.name = "<script>alert(1)</script>"
    found = fm.compare(first, second, TEXTS[:30])
    text = fm.pages.comparison(found, tmp_path / "page.html").read_text("utf-8")
    assert "<script" not in unscripted(text)
    assert "&lt;script&gt;" in text
    assert any(heading.startswith("best matches elsewhere") for heading in Page(text).headings)


def test_mistakes(edited: Comparison, tokenizer: Any, tmp_path: Path) -> None:
    other = fm.load(build_gpt2(n_inner=48), tokenizer=tokenizer)
    with refuses(InputError, ValueError, other.fingerprint):
        fm.pages.comparison(edited, tmp_path / "page.html", other)
    with refuses(FileError, OSError, "missing"):
        fm.pages.comparison(edited, tmp_path / "missing" / "page.html")
    assert not list(tmp_path.iterdir())
