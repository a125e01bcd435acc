import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

import ffnmem as fm
from ffnmem.core.errors import FfnmemWarning, InputError, ModelError, OutOfRangeError
from ffnmem.core.types import CASES
from ffnmem.pages import neuron_pages
from ffnmem.scanning import Store, open_store
from ffnmem.show.notebook import FAINT

from ..helpers import refuses
from ..neurons.gated import made, scanned
from .hostile import HOSTILE
from .page import Page

PLACES = [(1, 5), (0, 63), (1, 0)]


def read(path: Path) -> str:
    return path.read_text("utf-8")


def test_page_shows_each_neuron(tiny_store: Store, tmp_path: Path) -> None:
    path = fm.pages.neurons(tiny_store, PLACES, tmp_path / "page.html")
    page = Page(read(path))
    assert page.headings == ["3 neurons of " + tiny_store.model, "Neuron 1.5", "Neuron 0.63", "Neuron 1.0", *LAST]
    _, *rows = page.listed[0][2]
    assert [row[0].text for row in rows] == ["1.5", "0.63", "1.0"]
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a"]
    assert links == [f"#{attrs['id']}" for tag, attrs in page.tags if tag == "section" and "id" in attrs]
    for layer, column in PLACES:
        assert f"mean {tiny_store.stats(layer, column).iloc[0]['mean']:.3f}"[:-1] in page.words
    assert tiny_store.fingerprint in page.words


LAST = ["Where these numbers come from"]


@pytest.fixture(scope="module")
def descriptions(tiny_store: Store, tiny: fm.Model) -> fm.describing.Descriptions:
    store = open_store(tiny_store.folder, tiny)
    return fm.describe(store, PLACES[:2], lambda _question: f"fires at {HOSTILE.splitlines()[0]}", shown=4)


def test_cards_have_the_words_that_were_found(
    tiny_store: Store, descriptions: fm.describing.Descriptions, tmp_path: Path
) -> None:
    path = fm.pages.neurons(tiny_store, PLACES, tmp_path / "page.html", descriptions=descriptions)
    page = Page(read(path))
    assert page.words.count("described asfires at <script>alert(1)") == 2, "the third was not described"
    _, *rows = page.listed[0][2]
    assert [row[-1].text.startswith("fires at <script>") for row in rows] == [True, True, False]
    assert "described by" in page.words
    assert "alert(1)</script>" not in read(path)
    found = read(fm.pages.neurons(tiny_store, PLACES, tmp_path / "cards.md", descriptions=descriptions))
    assert found.count("described as") == 2
    assert "described by" in found
    assert "described as" not in read(fm.pages.neurons(tiny_store, PLACES, tmp_path / "page.html"))


def test_descriptions_that_fit_no_card_are_refused(
    tiny_store: Store, descriptions: fm.describing.Descriptions, tmp_path: Path
) -> None:
    with refuses(InputError, ValueError, "descriptions", ".html", ".csv"):
        fm.pages.neurons(tiny_store, PLACES, tmp_path / "cards.csv", descriptions=descriptions)
    other = replace(descriptions, provenance={**descriptions.provenance, "fingerprint": "f" * 12})
    with refuses(InputError, ValueError, "f" * 12, tiny_store.fingerprint):
        fm.pages.neurons(tiny_store, PLACES, tmp_path / "page.html", descriptions=other)
    assert not list(tmp_path.iterdir())


def test_page_of_one_neuron_has_its_examples(tiny_store: Store, tmp_path: Path) -> None:
    page = Page(read(fm.pages.neurons(tiny_store, [(1, 5)], tmp_path / "page.html")))
    one = tiny_store.neuron(1, 5, kind=("top", "quantile"))
    assert page.headings == ["Neuron 1.5 of " + tiny_store.model, "Neuron 1.5", *LAST]
    rows = [row for rows in page.below("Neuron 1.5") for row in rows]
    shown = one.examples.drop_duplicates(["sequence", "position"])
    assert [row[-2].values[0] for row in rows] == shown["coefficient"].tolist(), "each example once"
    assert len([tag for tag, _ in page.tags if tag == "mark"]) == len(shown)
    counts = re.findall(r": ([\d,]+) tokens?, ", " ".join(page.titles))
    assert sum(int(count.replace(",", "")) for count in counts) == one.stats["count"]


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return scanned(made("llama"), tmp_path_factory.mktemp("gated") / "store")


def test_a_gated_page_shows_each_case_with_gate_and_linear_part(gated: Store, tmp_path: Path) -> None:
    page = Page(read(fm.pages.neurons(gated, [(0, 3)], tmp_path / "page.html")))
    one = gated.neuron(0, 3, kind=(*CASES, "quantile"), k=None)
    (_, *cases), *examples = page.below("Neuron 0.3")
    assert [row[0].text for row in cases] == list(CASES)
    assert [row[1].values[0] for row in cases] == [case["share"] for case in one.cases]
    shown = [row for rows in examples for row in rows if row[-1].text]
    unique = one.examples.drop_duplicates(["sequence", "position"])
    columns = [unique[name].tolist() for name in ("coefficient", "gate", "linear")]
    assert sorted([cell.values[0] for cell in row[-4:-1]] for row in shown) == sorted(
        map(list, zip(*columns, strict=True))
    )
    markdown = read(fm.pages.neurons(gated, [(0, 3)], tmp_path / "page.md"))
    assert "| coefficient | gate | linear | context |" in markdown


def test_every_token_is_shaded(tiny_store: Store, tmp_path: Path) -> None:
    """Each an element with its number, and the whole sequence where it is asked for."""
    page = Page(read(fm.pages.neurons(tiny_store, [(1, 5)], tmp_path / "page.html", context=2)))
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
    """The page says why, unless it was asked for so."""
    out = tmp_path / "page.html"
    bare = open_store(tiny_store.folder)

    def shaded(store: Store, **asked: bool) -> bool:
        return any(tag == "i" for tag, _ in Page(read(fm.pages.neurons(store, PLACES, out, **asked))).tags)

    assert not shaded(bare, shade=False)
    assert "not shaded" not in read(out)
    with pytest.warns(FfnmemWarning, match="not shaded.*need the model"):
        assert not shaded(bare)
    assert f"need the model {bare.model}" in Page(read(out)).words
    with refuses(ModelError, ValueError, "every token", bare.model):
        shaded(bare, shade=True)
    with fm.intervene(tiny_store.read_model(), {(1, 5): 0.0}), pytest.warns(FfnmemWarning, match="intervention"):
        assert not shaded(tiny_store)
    monkeypatch.setattr(neuron_pages, "SHADED", 2)
    assert not shaded(tiny_store)
    assert "more than 2 neurons" in Page(read(out)).words
    assert shaded(tiny_store, shade=True)
    monkeypatch.setattr(neuron_pages, "MOST_SHADED", 2)
    with refuses(InputError, ValueError, "3 neurons", "2"):
        shaded(tiny_store, shade=True)
    with refuses(InputError, ValueError, ".md", ".html"):
        fm.pages.neurons(tiny_store, PLACES, tmp_path / "a.md", shade=True)


def test_examples_tables_are_the_stores(tiny_store: Store, tmp_path: Path) -> None:
    """CSV and Parquet hold exactly the rows of ``Store.examples``, text included."""
    expected = pd.concat([tiny_store.examples(*place) for place in PLACES], ignore_index=True)
    parquet = fm.pages.neurons(tiny_store, PLACES, tmp_path / "rows.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(parquet), expected, check_dtype=False)
    about = json.loads(pq.read_schema(parquet).metadata[b"ffnmem"])
    assert about["provenance"] == tiny_store.provenance
    found = pd.read_csv(fm.pages.neurons(tiny_store, PLACES, tmp_path / "rows.csv"), keep_default_na=False)
    assert list(found.columns) == list(expected.columns)
    assert found["context"].tolist() == expected["context"].tolist()
    assert found["coefficient"].tolist() == expected["coefficient"].tolist()


def test_kinds_and_counts(tiny_store: Store, tmp_path: Path) -> None:
    path = fm.pages.neurons(tiny_store, [(0, 1)], tmp_path / "a.parquet", kind=["random", "random"], k=2, context=1)
    pd.testing.assert_frame_equal(
        pd.read_parquet(path), tiny_store.examples(0, 1, kind="random", k=2, context=1), check_dtype=False
    )
    html = Page(read(fm.pages.neurons(tiny_store, [(0, 1)], tmp_path / "a.html", kind="bottom", k=1)))
    assert [len(rows) for rows in html.below("Neuron 0.1")] == [1]


def test_a_table_of_neurons(tiny_store: Store, tmp_path: Path) -> None:
    """Rows of the stats choose neurons, each once, in their order; negatives count from the end."""
    rows = tiny_store.stats().nlargest(4, "kurtosis")
    calls: list[tuple[int, int]] = []
    path = fm.pages.neurons(
        tiny_store,
        pd.concat([rows, rows]),
        tmp_path / "a.md",
        progress=lambda *at: calls.append(at[1:]),
    )
    names = [f"{row.layer}.{row.neuron}" for row in rows.itertuples()]
    assert re.findall(r"^## Neuron (\S+) of ", read(path).replace("\\.", "."), re.MULTILINE) == names
    assert calls == [(done, 4) for done in range(1, 5)]
    one = fm.pages.neurons(tiny_store, [(-1, -1), (1, 63)], tmp_path / "b.md")
    assert re.findall(r"^## Neuron (\S+) of ", read(one).replace("\\.", "."), re.MULTILINE) == ["1.63"]


def test_too_many_for_a_page(tiny_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neuron_pages, "MOST", 5)
    for suffix in (".html", ".md"):
        with refuses(InputError, ValueError, "64", "5", suffix, ".parquet"):
            fm.pages.neurons(tiny_store, tiny_store.stats(0), tmp_path / f"a{suffix}")
    assert not list(tmp_path.iterdir())
    assert fm.pages.neurons(tiny_store, tiny_store.stats(0).head(6), tmp_path / "a.csv", k=1).is_file()


def test_a_card_stays_small(tiny_store: Store, tmp_path: Path) -> None:
    """As many as a page takes must stay below 20 MB."""
    for shade, most in ((False, neuron_pages.MOST), (True, neuron_pages.MOST_SHADED)):
        one, two = (
            fm.pages.neurons(tiny_store, PLACES[:n], tmp_path / f"{n}.html", shade=shade).stat().st_size for n in (1, 2)
        )
        assert most * (two - one) < 20e6


REFUSED: list[tuple[dict[str, Any], type[Exception], tuple[str, ...]]] = [
    ({"out": "a.pdf"}, InputError, ("a.pdf", ".html", ".parquet")),
    ({"neurons": []}, InputError, ("at least one neuron",)),
    ({"neurons": [(1,)]}, InputError, ("(1,)", "(3, 17)")),
    ({"neurons": pd.DataFrame({"layer": [1]})}, InputError, ("column", "neuron")),
    ({"kind": "best"}, InputError, ("kind", "'best'", "'top'")),
    ({"kind": []}, InputError, ("kind is empty",)),
    ({"context": -1}, InputError, ("context", "-1")),
    ({"neurons": [(0, 64)]}, OutOfRangeError, ("neuron 64", "0 to 63")),
]


@pytest.mark.parametrize(("given", "kind", "says"), REFUSED)
def test_mistakes(
    given: dict[str, Any], kind: type[Exception], says: tuple[str, ...], tiny_store: Store, tmp_path: Path
) -> None:
    asked = {"neurons": PLACES, **given, "out": tmp_path / given.get("out", "a.html")}
    with refuses(kind, Exception, *says):
        fm.pages.neurons(tiny_store, **asked)
    assert not list(tmp_path.iterdir())


def test_a_failure_leaves_the_old_file(tiny_store: Store, tmp_path: Path) -> None:
    for suffix in neuron_pages.FORMATS:
        path = tmp_path / f"a{suffix}"
        path.write_text("old", "utf-8")

        def stop(phase: str, done: int, total: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fm.pages.neurons(tiny_store, PLACES, path, progress=stop)
        assert read(path) == "old"
    assert len(list(tmp_path.iterdir())) == len(neuron_pages.FORMATS)


def test_shaded_pages_are_bounded_by_their_size(
    tiny_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long sequences make a card of any size; unasked it is shown without shades, and asked for it is refused."""
    monkeypatch.setattr(neuron_pages, "LARGEST", 10_000)
    page = Page(read(fm.pages.neurons(tiny_store, PLACES, tmp_path / "page.html")))
    assert "Tokens are not shaded: shaded tokens would make this page" in page.words
    assert not [attrs for tag, attrs in page.tags if tag == "i"]
    with pytest.raises(InputError, match=r"would make this page \d+ MB.*choose fewer neurons"):
        fm.pages.neurons(tiny_store, PLACES, tmp_path / "no.html", shade=True)
    assert not (tmp_path / "no.html").exists()
