"""The meanings of a neuron on pages and in notebooks."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from ffnmem.reports.meanings import LISTED, meanings_card, meanings_html, settled

import ffnmem as fm
from ffnmem.reports.cards import card
from ffnmem.reports.display import neuron_html
from ffnmem.scanning import Store, open_store
from ffnmem.scanning.contexts import Window
from ffnmem.scanning.neuron import CONTEXTS
from ffnmem.semantics.meanings import Meanings
from tests.reports.hostile import HOSTILE
from tests.reports.page import Page


@pytest.fixture(scope="module")
def surveyed(tiny: fm.Model, tiny_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = open_store(shutil.copytree(tiny_store.folder, tmp_path_factory.mktemp("meanings") / "tiny"))
    fm.polysemanticity(store, tiny, draws=20, budget=None)
    return store


@pytest.fixture(scope="module")
def found(surveyed: Store) -> Meanings:
    return fm.meanings(surveyed, 1, 5)


def many(found: Meanings, n: int) -> Meanings:
    """As many meanings of one example each."""
    rows = pd.concat([found.examples.head(1)] * n, ignore_index=True).assign(meaning=np.arange(n), rank=1)
    columns = {"meaning": np.arange(n), "share": 1 / n, "examples": 1, "strongest": 1.0, "tokens": "x"}
    triggers = tuple((f"t{i}",) for i in range(n))
    return replace(found, table=pd.DataFrame(columns), examples=rows, windows=found.windows[:1] * n, triggers=triggers)


def test_page_shows_each_meaning(found: Meanings) -> None:
    page = Page(meanings_html(found))
    rows = page.tables["fm-table fm-examples fm-by-meaning"][1:]
    heads = [row for row in rows if row[-1].chips]
    assert [row[0].values[0] for row in heads] == found.table["share"].tolist()
    assert [tuple(row[-1].chips) for row in heads] == [
        tuple(t.replace(" ", "·") for t in own[:8]) for own in found.triggers
    ]
    shown = [row[0].values[0] for row in rows if not row[-1].chips]
    assert shown == found.examples["activation"].tolist()
    assert found.verdict.capitalize() in page.words
    assert found.why in page.words
    measures = page.tables["fm-table"][1:]
    assert [row[0].text for row in measures] == ["meanings", "clusters", "ms", "trigger tokens"]
    assert found.provenance["fingerprint"] in page.words
    assert "draws 20" in page.words
    assert found._repr_html_() == meanings_html(found)


def test_a_card_lists_the_first(found: Meanings) -> None:
    one = meanings_card(many(found, LISTED + 3))
    assert [meaning.number for meaning in one.listed] == list(range(1, LISTED + 1))
    assert one.hidden == 3
    assert one.rest == pytest.approx(3 / (LISTED + 3))
    assert [len(meaning.examples) for meaning in one.listed] == [1] * LISTED
    assert one.listed[0].more == 0
    assert one.examples == LISTED + 3


def test_neuron_card_and_page_have_them(surveyed: Store, found: Meanings, tmp_path: Path) -> None:
    """What was found of a store is on every card of it; without it, cards are as before."""
    one = surveyed.neuron(1, 5)
    (shown,) = card(one).meanings
    assert shown.found.table.equals(found.table)
    assert max(len(meaning.examples) for meaning in shown.listed) <= CONTEXTS
    page = Page(neuron_html(one))
    assert "fm-table fm-examples fm-by-meaning" in page.tables
    assert found.verdict.capitalize() in page.words
    out = fm.neuron_report(surveyed, [(1, 5), (0, 3)], tmp_path / "a.html")
    index = Page(out.read_text("utf-8")).tables["index"]
    assert [cell.text for cell in index[0]][-2:] == ["verdict", "promotes"]
    assert index[1][-2].text == found.verdict
    text = fm.neuron_report(surveyed, [(1, 5)], tmp_path / "a.md").read_text("utf-8")
    assert f"### {found.verdict.capitalize()}" in text
    assert found.why in text


def test_without_any_the_card_is_as_before(tiny_store: Store) -> None:
    one = tiny_store.neuron(1, 5)
    assert one.meanings == ()
    assert card(one).verdict == ""
    assert "fm-by-meaning" not in neuron_html(one)
    assert one.as_dict()["meanings"] == []


def test_json_of_a_card(surveyed: Store, found: Meanings) -> None:
    (plain,) = surveyed.neuron(1, 5).as_dict()["meanings"]
    assert plain["verdict"] == found.verdict
    assert [one["share"] for one in plain["meanings"]] == found.table["share"].tolist()


def test_a_dead_neuron(surveyed: Store) -> None:
    dead = surveyed.stats(1).query("dead")["neuron"].iloc[0]
    page = Page(fm.meanings(surveyed, 1, dead)._repr_html_())
    assert "Dead" in page.words
    assert "no examples" in page.words
    assert "Dead" in Page(neuron_html(surveyed.neuron(1, dead))).words


def test_hostile_text_is_only_text(found: Meanings) -> None:
    bad = many(found, 2)
    examples = bad.examples.assign(token=HOSTILE, context=HOSTILE)
    window = Window((HOSTILE, HOSTILE, HOSTILE), 1, True, True)
    provenance = {**bad.provenance, "model": HOSTILE}
    bad = replace(
        bad, examples=examples, windows=(window,) * 2, triggers=((HOSTILE,),) * 2, why=HOSTILE, provenance=provenance
    )
    html = bad._repr_html_()
    page = Page(html)
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert not any("onerror" in attrs for _, attrs in page.tags)
    assert "<script" not in html


def test_provenance_on_one_level(found: Meanings) -> None:
    flat = settled(found.provenance)
    assert all(isinstance(value, str | int | float | bool) for value in flat.values())
    assert (flat["seed"], flat["draws"], flat["budget"], flat["sign"]) == (0, 20, "no limit", "positive")
