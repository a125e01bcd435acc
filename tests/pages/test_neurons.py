"""Cards of one neuron, and of several, as pages."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.errors import FfnmemWarning, InputError, ModelError, OutOfRangeError
from ffnmem.core.types import CASES
from ffnmem.neurons import cards, read_cards
from ffnmem.scanning import Store, open_store
from ffnmem.scanning import store as stores
from ffnmem.show.notebook import FAINT

from ..helpers import refuses
from ..neurons.gated import made, scanned
from .hostile import HOSTILE
from .page import Page

PLACES = [(1, 5), (0, 63), (1, 0)]
LAST = ["Where these numbers come from"]


def page_of(store: Store, places: Any, out: Path, **asked: Any) -> Page:
    return Page(fm.pages.page(read_cards(store, places, **asked), out / "page.html", top=20).read_text("utf-8"))


def test_page_shows_each_neuron(tiny_store: Store, tmp_path: Path) -> None:
    page = page_of(tiny_store, PLACES, tmp_path)
    of = f"of {tiny_store.model}"
    assert page.headings == [f"3 neurons {of}", *(f"Neuron {n} {of}" for n in ("1.5", "0.63", "1.0")), *LAST]
    head, *rows = page.listed[0][2]
    assert [cell.text for cell in head][:3] == ["neuron", "fires at", "fires"], "what it fires at is said first"
    assert [row[0].text for row in rows] == ["1.5", "0.63", "1.0"]
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a"]
    assert links == [f"#{attrs['id']}" for tag, attrs in page.tags if tag == "section" and "id" in attrs]
    for layer, column in PLACES:
        assert f"mean {tiny_store.stats(layer, column).iloc[0]['mean']:.3f}"[:-1] in page.words
    assert tiny_store.fingerprint in page.words


def test_cards_have_the_words_that_were_found(tiny_store: Store, tiny: fm.Model, tmp_path: Path) -> None:
    store = open_store(tiny_store.folder, tiny)
    found = fm.describe(store, PLACES[:2], lambda _question: f"fires at {HOSTILE.splitlines()[0]}", shown=4)
    path = fm.pages.page(found.on(read_cards(store, PLACES)), tmp_path / "page.html")
    page = Page(path.read_text("utf-8"))
    assert page.words.count("described asfires at <script>alert(1)") == 2, "the third was not described"
    _, *rows = page.listed[0][2]
    assert [any(cell.text.startswith("fires at <script>") for cell in row) for row in rows] == [True, True, False]
    assert "alert(1)</script>" not in path.read_text("utf-8")
    other = replace(found, provenance={**found.provenance, "fingerprint": "f" * 12})
    with refuses(InputError, ValueError, "f" * 12, store.fingerprint):
        other.on(read_cards(store, PLACES))


def test_page_of_one_neuron_has_its_examples(tiny_store: Store, tmp_path: Path) -> None:
    page = page_of(tiny_store, [(1, 5)], tmp_path)
    one = tiny_store.neuron(1, 5, kind=("top", "quantile"))
    assert page.headings == ["Neuron 1.5 of " + tiny_store.model, *LAST]
    rows = [row for rows in page.below("Neuron 1.5 of " + tiny_store.model) for row in rows]
    shown = one.examples.drop_duplicates(["sequence", "position"])
    assert [row[-2].values[0] for row in rows] == shown["coefficient"].tolist(), "each example once"
    assert len([tag for tag, _ in page.tags if tag == "mark"]) == len(shown)
    counts = re.findall(r": ([\d,]+) tokens?, ", " ".join(page.titles))
    assert sum(int(count.replace(",", "")) for count in counts) == one.stats["count"]
    assert page.words.index("Fires most strongly at") < page.words.index("promotes")
    assert "How often each coefficient occurs" in page.words


def test_a_gated_page_shows_each_case_with_gate_and_linear_part(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    gated = scanned(made("llama"), tmp_path_factory.mktemp("gated") / "store")
    page = page_of(gated, [(0, 3)], tmp_path)
    one = gated.neuron(0, 3, kind=(*CASES, "quantile"), k=None)
    (_, *cases), *examples = page.below(one.title)
    assert [row[0].text for row in cases] == list(CASES)
    assert [row[1].values[0] for row in cases] == [case["share"] for case in one.cases]
    shown = [row for rows in examples for row in rows if row[-1].text]
    unique = one.examples.drop_duplicates(["sequence", "position"])
    columns = [unique[name].tolist() for name in ("coefficient", "gate", "linear")]
    assert sorted([cell.values[0] for cell in row[-4:-1]] for row in shown) == sorted(
        map(list, zip(*columns, strict=True))
    )
    assert "| coefficient | gate | linear | context |" in read_cards(gated, [(0, 3)]).to_markdown()


def test_every_token_is_shaded(tiny_store: Store, tmp_path: Path) -> None:
    """Each an element with its number, and the whole sequence where it is asked for."""
    page = page_of(tiny_store, [(1, 5)], tmp_path, context=2)
    one = tiny_store.neuron(1, 5, kind=("top", "quantile"), context=2, shade=True)
    shown = [example for group in one.groups() for example in group.examples()]
    around = [example.shades for example in shown if example.shades is not None]
    assert len(around) == len(shown)
    every = [s for one in around for s in (*one.further_before, *one.before, *one.after, *one.further_after)]
    tokens = [attrs for tag, attrs in page.tags if tag == "i" and "title" in attrs]
    assert [attrs["title"] for attrs in tokens] == [shade.note for shade in every]
    for attrs, shade in zip(tokens, every, strict=True):
        seen = shade.strength >= FAINT
        assert attrs.get("style") == (f"--a:{shade.strength:g}" if seen else None)
        assert attrs.get("class") == ("fm-n" if seen and shade.negative else None)
    further = sum(attrs.get("class") == "fm-further" for _, attrs in page.tags)
    assert further == sum(bool(some) for one in around for some in (one.further_before, one.further_after)) > 0
    boxes = [attrs for tag, attrs in page.tags if tag == "input"]
    assert [(box["type"], box["aria-label"]) for box in boxes] == [("checkbox", "wider context")]
    marks = [attrs["title"] for tag, attrs in page.tags if tag == "mark"]
    assert marks == [example.note for example in shown]


def test_pages_without_shades(tiny_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning says why."""
    bare = open_store(tiny_store.folder)

    def shaded(store: Store, **asked: bool) -> bool:
        return any(tag == "i" for tag, _ in page_of(store, PLACES, tmp_path, **asked).tags)

    with pytest.warns(FfnmemWarning, match="not shaded.*need the model"):
        assert not shaded(bare)
    with refuses(ModelError, ValueError, "every token", bare.model):
        shaded(bare, shade=True)
    with fm.intervene(tiny_store.read_model(), {(1, 5): 0.0}), pytest.warns(FfnmemWarning, match="intervention"):
        assert not shaded(tiny_store)
    monkeypatch.setattr(stores, "SHADED", 2)
    assert not shaded(tiny_store), "many take long"
    assert shaded(tiny_store, shade=True)
    monkeypatch.setattr(cards, "MOST_SHADED", 2)
    with refuses(InputError, ValueError, "3 neurons", "2"):
        shaded(tiny_store, shade=True)


def test_examples_are_the_stores(tiny_store: Store) -> None:
    found = read_cards(tiny_store, [*PLACES, (-1, -64)], kind=["top", "random"], k=2, context=1)
    expected = [tiny_store.examples(*place, kind=["top", "random"], k=2, context=1) for place in PLACES]
    pd.testing.assert_frame_equal(found.to_frame(), pd.concat(expected, ignore_index=True))
    assert found.to_frame(1).equals(found.to_frame()), "all of several kinds"


def test_a_list_of_neurons(tiny_store: Store) -> None:
    """The highest first, of all layers or of one, with what they fire at and promote."""
    found = fm.neurons.list_neurons(tiny_store, layers=1, k=4)
    expected = tiny_store.stats(1).nlargest(4, "kurtosis")
    assert found.neurons["neuron"].tolist() == expected["neuron"].tolist()
    shown = found.to_frame(derived=True)
    for row in shown.itertuples():
        (side,) = tiny_store.neuron(row.layer, row.neuron).sides
        assert row.fires_at == [text for text, _ in side.fires_at[:8]]
        assert row.promotes == [text for text, _ in side.promotes[:8]]
        assert row.largest == side.extreme
    assert len(fm.neurons.list_neurons(tiny_store, by="firing_rate", k=None).neurons) == 128


def test_a_card_stays_small(tiny_store: Store, tmp_path: Path) -> None:
    """As many as a page takes must stay below 20 MB."""
    bare = open_store(tiny_store.folder)
    for store, most in ((bare, cards.MOST), (tiny_store, cards.MOST_SHADED)):
        sizes = []
        for n in (1, 2):
            found = read_cards(store, PLACES[:n], shade=store is tiny_store)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(stores, "SHADED", 0)
                sizes.append(fm.pages.page(found, tmp_path / f"{n}.html").stat().st_size)
        assert most * (sizes[1] - sizes[0]) < 20e6


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        ({"neurons": []}, InputError, ("name a neuron at least",)),
        ({"neurons": [(1,)]}, InputError, ("(1,)", "(3, 17)")),
        ({"kind": ["best"]}, InputError, ("kind", "'best'", "'top'")),
        ({"context": -1}, InputError, ("context", "-1")),
        ({"neurons": [(0, 64)]}, OutOfRangeError, ("neuron 64", "0 to 63")),
        ({"neurons": [(n // 64, n % 64) for n in range(128)]}, InputError, ("128 neurons", "100")),
    ],
)
def test_mistakes(
    given: dict[str, Any],
    kind: type[Exception],
    says: tuple[str, ...],
    tiny_store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cards, "MOST", 100)
    with refuses(kind, Exception, *says):
        read_cards(tiny_store, **{"neurons": PLACES, **given})
