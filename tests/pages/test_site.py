"""A site of every neuron: its pages, what they lead to, and its search, opened from disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError
from ffnmem.pages import neuron_site as site_module
from ffnmem.scanning import Store

from ..editing.edits import EIFFEL, made
from ..helpers import PROMPT
from .hostile import HOSTILE
from .page import Page as Read

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def folder(tiny_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fm.pages.site(tiny_store, tmp_path_factory.mktemp("site") / "site").parent


def read(path: Path) -> Read:
    return Read(path.read_text("utf-8"))


def links(path: Path) -> list[Path]:
    return [(path.parent / attrs["href"]).resolve() for tag, attrs in read(path).tags if tag == "a"]


def test_every_neuron_has_a_page_and_no_link_is_dead(folder: Path, tiny_store: Store) -> None:
    cards = sorted(folder.glob("[0-9]/[0-9]*.html"))
    assert len(cards) == len(tiny_store.stats())
    for path in (*cards[::9], folder / "index.html", *folder.glob("*/index.html")):
        assert all(linked.exists() for linked in links(path)), path
    rows = read(folder / "1" / "index.html").listed[0][2][1:]
    assert [row[0].text for row in rows] == [f"1.{neuron}" for neuron in range(tiny_store.d_mlp(1))]


def test_one_leads_to_the_next_across_layers(folder: Path, tiny_store: Store) -> None:
    path, seen = folder / "0" / "0.html", 0
    while True:
        seen += 1
        tags = read(path).tags
        following = [attrs["href"] for tag, attrs in tags if attrs.get("rel") == "next"]
        if not following:
            break
        after = (path.parent / following[0]).resolve()
        back = next(attrs["href"] for _, attrs in read(after).tags if attrs.get("rel") == "prev")
        assert (after.parent / back).resolve() == path.resolve()
        path = after
    assert seen == len(tiny_store.stats())
    for layer, others in ((0, {"next": "../1/index.html"}), (1, {"prev": "../0/index.html"})):
        tags = read(folder / str(layer) / "index.html").tags
        assert {attrs["rel"]: attrs["href"] for _, attrs in tags if attrs.get("rel") in ("prev", "next")} == others


def test_a_page_has_the_neurons_numbers(folder: Path, tiny_store: Store) -> None:
    page = read(folder / "1" / "5.html")
    one = tiny_store.neuron(1, 5, kind="top")
    values = [float(attrs["value"]) for tag, attrs in page.tags if tag == "data"]
    assert {float(coefficient) for coefficient in one.examples["coefficient"][: site_module.TOP]} <= set(values)
    assert f"{one.stats['mean']:.3f}"[:-1] in page.words
    assert f"Neuron 1.5 of {tiny_store.model}" in page.titles[0]


def test_the_first_page_names_neurons_that_say_what_follows(
    folder: Path, tiny_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The readable ones, each of which leads to its page."""
    monkeypatch.setattr("ffnmem.neurons.readable.WIDE", 1)
    monkeypatch.setattr("ffnmem.neurons.readable.LEVEL", 2.0)
    found = fm.neurons.find_readable(tiny_store).neurons
    page = Read(site_module.index_html(tiny_store, folder))
    (_, *rows), *_ = page.below("Neurons worth opening")
    assert [row[0].text for row in rows] == [f"{row.layer}.{row.neuron}" for row in found.itertuples()]
    assert {f"{row.layer}/{row.neuron}.html" for row in found.itertuples()} <= {
        attrs["href"] for tag, attrs in page.tags if tag == "a"
    }


def test_a_stopped_one_goes_on(
    tiny_store: Store, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer is there whole or not at all; the layers that are there are not written again."""
    written = site_module.write_layer

    def stops(store: Store, layer: int, room: Path, *rest: object) -> None:
        (room / "0.html").write_text("half")
        if layer == 1:
            raise KeyboardInterrupt
        written(store, layer, room, *rest)  # type: ignore[arg-type]

    out = tmp_path / "site"
    monkeypatch.setattr(site_module, "write_layer", stops)
    with pytest.raises(KeyboardInterrupt):
        fm.pages.site(tiny_store, out)
    assert not (out / "index.html").exists()
    assert not (out / "1").exists()
    with pytest.raises(FileError, match="not finished"):
        fm.pages.page(fm.report(fm.capture(tiny_store.read_model(), PROMPT)), tmp_path / "a.html", site=out)
    before = (out / "0" / "0.html").stat().st_mtime_ns
    monkeypatch.setattr(site_module, "write_layer", written)
    fm.pages.site(tiny_store, out)
    assert (out / "0" / "0.html").stat().st_mtime_ns == before
    for path in sorted(folder.rglob("*.html")):
        assert (out / path.relative_to(folder)).read_bytes() == path.read_bytes()
    assert not list(out.glob(".ffnmem*"))


def test_other_folders_are_refused(tiny_store: Store, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    with pytest.raises(FileError, match=r"other things in it \(mine.txt\)"):
        fm.pages.site(tiny_store, other)
    with pytest.raises(FileError, match="holds the site with context 12, not 3"):
        fm.pages.site(tiny_store, folder, context=3)


def test_pages_lead_to_the_site(tiny: fm.Model, atlas: fm.Model, folder: Path, tmp_path: Path) -> None:
    """Of a prompt, an edit and a circuit, wherever they lie; a neuron of another model leads nowhere."""
    path = tmp_path / "sub" / "report.html"
    path.parent.mkdir()
    capture = fm.capture(tiny, PROMPT)
    report, edit = fm.report(capture), fm.evaluation.edit_effects(made(tiny, fact=EIFFEL), tiny)
    for result in (edit, fm.circuit(capture, ["0.5@3", "1.7"]), report):
        found = links(fm.pages.page(result, path, site=folder, top=5))
        assert found
        assert all(one.exists() for one in found)
    first = read(path).below("Neurons")[0][1][0].text
    assert (folder / first.replace(".", "/", 1)).with_name(f"{first.split('.')[1]}.html").resolve() in found
    assert links(fm.pages.page(report, tmp_path / "plain.html", top=5)) == []
    with pytest.raises(InputError, match="is a site of"):
        fm.pages.page(fm.report(fm.capture(atlas, PROMPT)), path, site=folder)
    with pytest.raises(FileError, match="no site of neurons"):
        fm.pages.page(report, path, site=tmp_path)


@pytest.fixture
def page(browser: Browser, folder: Path) -> Iterator[Page]:
    said: list[str] = []
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.goto((folder / "index.html").as_uri())
    yield opened
    assert said == []
    opened.close()


def test_search_finds_tokens_and_names(page: Page, tiny_store: Store) -> None:
    token = tiny_store.neuron(1, 5).tokens("promoted")[0]
    page.locator("#q").fill(token.strip().upper())
    page.locator("#found a").first.wait_for()
    found = page.locator("#found tbody th").all_inner_texts()
    assert len(found) > 1
    assert all(token.strip().lower() in text.lower() for text in page.locator("#found tbody tr").all_inner_texts())
    low = tiny_store.neuron(1, 5).tokens("suppressed")[0]
    page.locator("#q").fill("nothing is called so")
    page.get_by_text("0 neurons").wait_for()
    page.locator("#q").fill(low.strip())
    row = page.locator("#found tbody tr").filter(has=page.get_by_role("link", name="1.5", exact=True))
    row.wait_for()
    assert row.locator("td").nth(1).inner_text() == "value suppresses"
    assert low.strip() in row.locator("td").nth(2).inner_text()
    page.locator("#q").fill("1.5")
    page.locator("#found tbody tr").nth(1).wait_for(state="detached")
    page.keyboard.press("Enter")
    page.wait_for_url("**/1/5.html")
    assert page.locator("h1").inner_text() == f"Neuron 1.5 of {tiny_store.model}"


def test_hostile_tokens_are_found_as_text(browser: Browser, folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "site"
    shutil.copytree(folder, copy)
    rows = json.dumps([[[[HOSTILE, "evil"]], [HOSTILE], 0.5]])
    (copy / "0" / "search.js").write_text(f"ffnmemNeurons(0,{rows});")
    page = browser.new_page()
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    page.goto((copy / "index.html").as_uri())
    page.locator("#q").fill("evil")
    page.locator("#found a").first.wait_for()
    assert page.locator("#found img, #found script").count() == 0
    assert "<script>alert(1)" in page.locator("#found").inner_text()
    page.close()
