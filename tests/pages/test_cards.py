"""Cards on a page, and neurons as Markdown."""

from __future__ import annotations

import re
import shutil
from html import unescape
from pathlib import Path

import pytest

import ffnmem as fm
from ffnmem.core.token_text import printable
from ffnmem.neurons import NeuronCards, read_cards
from ffnmem.scanning import Store, open_store
from ffnmem.scanning.neuron import Neuron
from ffnmem.show.markdown import escaped

from .hostile import HOSTILE, UNSEEN, poisoned
from .page import Page


@pytest.fixture(scope="module")
def neuron(tiny_store: Store) -> Neuron:
    return tiny_store.neuron(1, 5)


@pytest.fixture(scope="module")
def surveyed(tiny: fm.Model, tiny_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = open_store(shutil.copytree(tiny_store.folder, tmp_path_factory.mktemp("meanings") / "tiny"), model=tiny)
    fm.polysemanticity(store, tiny, draws=20, budget=None)
    return store


def test_meanings_are_on_every_card(surveyed: Store, tmp_path: Path) -> None:
    """What was found of a store is on every card of it."""
    found = fm.meanings(surveyed, 1, 5)
    one = surveyed.neuron(1, 5)
    (shown,) = one.meanings
    assert shown.table.equals(found.table)
    assert found.label.capitalize() in Page(one._repr_html_()).words
    out = fm.pages.page(read_cards(surveyed, [(1, 5), (0, 3)]), tmp_path / "a.html", top=20)
    page = Page(out.read_text("utf-8"))
    index = page.listed[0][2]
    assert [cell.text for cell in index[0]][-3:-1] == ["promotes", "verdict"]
    assert index[1][-2].text == found.label
    assert f"{found.label.capitalize()}" in page.words
    places = [attrs["title"].partition("; ")[2] for tag, attrs in page.tags if tag == "mark"]
    assert len(places) > len(set(places[: len(places) // 2])) >= len(places) // 2 - 1, "each example once a card"
    text = read_cards(surveyed, "1.5").to_markdown()
    assert f"**{found.label.capitalize()}" in text
    assert found.why in text


# -- Markdown --------------------------------------------------------------------------------------------------------


def read_back(text: str) -> str:
    """What Markdown shows of escaped text."""
    return unescape(re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", text))


def rows(text: str, title: str) -> list[list[str]]:
    """The cells of the table under a title."""
    part = text.split(f"**{title}**", 1)[1].split("\n\n")[1]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in part.splitlines()[2:]]


def test_escaping_is_undone_by_reading() -> None:
    assert read_back(escaped(HOSTILE)) == printable(HOSTILE)  # what would not show is written as an escape
    assert "<" not in escaped(HOSTILE)


def test_examples_are_the_neurons(tiny_store: Store) -> None:
    one = tiny_store.neuron(1, 5, kind=("top", "quantile"))
    text = one.to_markdown()
    assert text.startswith(f"## Neuron {one.name} of ".replace(".", "\\."))
    assert NeuronCards((one, one), one.provenance).to_markdown().startswith("## 2 neurons of ")
    top = one.examples[one.examples["kind"] == "top"]
    found = rows(text, "Largest coefficients")
    assert [float(read_back(cells[0]).replace("−", "-")) for cells in found] == pytest.approx(
        top["coefficient"].tolist(), abs=5e-4
    )
    for cells, context in zip(found, top["context"], strict=True):
        shown = read_back(re.sub(r"</?b>", "", cells[1])).strip("…").strip()
        assert shown == context.strip() or "\ufffd" in context
        assert cells[1].count("<b>") == 1
    assert f"{tiny_store.n_tokens:,} tokens" in text
    assert read_back(text).count(tiny_store.fingerprint) == 1


def test_hostile_text_formats_nothing(tiny_store: Store) -> None:
    """One row stays one row, and the only tags are ours."""
    one = poisoned(tiny_store.neuron(1, 5, kind="top"))
    text = one.to_markdown()
    assert set(re.findall(r"<[^>]*>?", text)) == {"<b>", "</b>"}
    assert not set(UNSEEN) & set(text)
    assert all(len(cells) == 2 for cells in rows(text, "Largest coefficients"))
    assert len(rows(text, "Largest coefficients")) == len(one.examples)


def test_a_token_of_spaces_shows(tiny_store: Store) -> None:
    assert "<b>·</b>" in poisoned(tiny_store.neuron(0, 1, kind="top"), " ").to_markdown()
