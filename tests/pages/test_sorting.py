"""The tables of pages in a browser: what a click, a key or a word does to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ffnmem as fm
from ffnmem.scanning import Store

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

PLACES = [(1, 5), (0, 63), (1, 0), *((n % 2, 7 * n % 64) for n in range(1, 11))]


@pytest.fixture(scope="module")
def address(tiny_store: Store, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("tables") / "neurons.html"
    return fm.pages.page(fm.neurons.read_cards(tiny_store, PLACES, k=2), out).as_uri()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    said: list[str] = []
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.goto(address)
    yield opened
    assert said == []
    opened.close()


def names(table: Locator) -> list[str]:
    return [name for name in table.locator("tbody th[scope=row]").all_inner_texts() if name]


def test_a_click_sorts_by_value_and_a_third_restores(page: Page, tiny_store: Store) -> None:
    table = page.locator("table.fm-plain").first
    written = [f"{layer}.{neuron}" for layer, neuron in PLACES]
    by_max = sorted(PLACES, key=lambda place: -tiny_store.stats(*place).iloc[0]["max"])
    head = table.locator("th", has_text="largest")
    button = head.locator("button")
    button.click()
    assert head.get_attribute("aria-sort") == "descending"
    assert names(table) == [f"{layer}.{neuron}" for layer, neuron in by_max]
    button.click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert names(table) == [f"{layer}.{neuron}" for layer, neuron in reversed(by_max)]
    button.click()
    assert head.get_attribute("aria-sort") is None
    assert names(table) == written


def test_names_sort_by_layer_and_number_from_the_keyboard(page: Page) -> None:
    """As text 0.11 would stand before 0.3."""
    table = page.locator("table.fm-plain").first
    first = table.locator("thead button").first
    first.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Space")
    assert table.locator("thead th").first.get_attribute("aria-sort") == "ascending"
    assert names(table) == [f"{layer}.{neuron}" for layer, neuron in sorted(PLACES)]
    table.locator("th", has_text="largest").locator("button").click()
    assert table.locator("[aria-sort]").count() == 1


def test_words_filter_rows(page: Page) -> None:
    table, box = page.locator("table.fm-plain").first, page.get_by_role("searchbox").first
    box.fill("1.")
    shown = [row for row in table.locator("tbody tr").all() if row.is_visible()]
    told = page.locator(".fm-tools output").first.inner_text()
    assert 0 < len(shown) < len(PLACES)
    assert told == f"{len(shown)} of {len(PLACES)}"
    box.fill("nothing is called so")
    assert page.locator(".fm-tools output").first.inner_text() == f"0 of {len(PLACES)}"
    box.fill("")
    assert all(row.is_visible() for row in table.locator("tbody tr").all())


def test_without_scripts_the_page_reads_as_it_was_written(browser: Browser, address: str) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.goto(address)
    assert names(page.locator("table.fm-plain").first) == [f"{layer}.{neuron}" for layer, neuron in PLACES]
    assert page.locator("button, input[type=search]").count() == 0
    page.close()


def test_a_list_sorts_where_the_names_are_out_of_sight(browser: Browser, atlas: fm.Model, tmp_path: Path) -> None:
    """On a phone the memories of a report are cards without a head."""
    page = browser.new_page(viewport={"width": 390, "height": 800})
    found = fm.report(fm.capture(atlas, "The Eiffel Tower is located in the city of"))
    page.goto(fm.pages.page(found, tmp_path / "a.html", top=14).as_uri())
    tables = page.locator("table.fm-plain")
    memories = tables.filter(has_text="suppresses")
    order = page.locator(".fm-tools").filter(has=page.get_by_label("filter rows")).get_by_label("sort by").last
    assert memories.locator("thead button").first.get_attribute("tabindex") == "-1"
    order.select_option(label="coefficient ↑")
    found = [
        float(v) for v in memories.locator("[data-name=coefficient] data").evaluate_all("all => all.map(d => d.value)")
    ]
    assert found == sorted(found)
    order.select_option("")
    assert tables.last.locator("button").count() == 0, "each bar begins where the one above it ends"
    page.close()
