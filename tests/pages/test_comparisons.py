"""The page of two models compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.comparing import Comparison
from ffnmem.core.errors import InputError

from ..comparing.made import TEXTS
from ..editing.edits import made as random_edit
from ..helpers import build_gpt2, refuses
from .page import Page


@pytest.fixture(scope="module")
def edited(tiny: fm.Model) -> Comparison:
    return fm.compare(tiny, corpus=TEXTS[:30], edit=random_edit(tiny, (1,)))


@pytest.fixture(scope="module")
def html(tiny: fm.Model, edited: Comparison, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("page") / "comparison.html"
    assert fm.pages.comparison(edited, out, tiny, top=7) == out
    return out.read_text("utf-8")


def test_it_begins_with_the_verdicts(html: str, edited: Comparison) -> None:
    title, *sections = Page(html).headings
    assert title == "Two models, memory by memory"
    assert [section.partition(",")[0] for section in sections[1:]] == ["moved most", "Where these numbers come from"]
    assert sections[0].endswith(f"of {edited.second}")
    assert edited.verdict in html


def test_its_tables_are_the_result(html: str, edited: Comparison) -> None:
    layers, (_, *rows), thresholds = [table for _, _, table in Page(html).listed]
    assert [row[0].text for row in rows] == [f"{row.layer}.{row.neuron}" for row in edited.moved(7).itertuples()]
    assert rows[0][1].values == [edited.moved(1)["value_change"][0]]
    assert len(rows[0][-1].chips) == 6
    assert len(layers) == 1 + len(edited.layers)
    assert len(thresholds) == 1 + len(edited.sensitivity())


def test_mistakes(edited: Comparison, tokenizer: Any, tmp_path: Path) -> None:
    other = fm.load(build_gpt2(n_inner=48), tokenizer=tokenizer)
    with refuses(InputError, ValueError, other.fingerprint):
        fm.pages.comparison(edited, tmp_path / "page.html", other)
    assert not list(tmp_path.iterdir())
