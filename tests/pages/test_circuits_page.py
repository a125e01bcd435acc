"""The page of a circuit in a browser: what a reader sees and can do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import ffnmem as fm
from ffnmem.prompts.circuits import PRUNED, Circuit
from ffnmem.scanning import Store

from ..helpers import PROMPT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def circuit(tiny: fm.Model) -> Circuit:
    return fm.circuit(fm.capture(tiny, PROMPT), " Paris", " Rome", nodes=40)


@pytest.fixture(scope="module")
def address(circuit: Circuit, tiny_store: Store, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("page") / "circuit.html"
    return fm.pages.circuit(circuit, out, tiny_store, cards=2).as_uri()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """The page with nothing done to it; whatever it logs or asks the network for fails the test."""
    said: list[str] = []
    asked: list[str] = []
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(address)
    yield opened
    assert said == []
    assert {url.partition("#")[0] for url in asked} == {address}
    opened.close()


def titles(page: Page) -> list[str]:
    return [" ".join(text.split()) for text in page.locator(".panel h3").all_inner_texts()]


def name_of(circuit: Circuit, i: int) -> str:
    """What a panel's title begins with, of a firing."""
    return str(circuit.nodes["id"][i]).partition("@")[0]


def shown(page: Page, caption: str) -> list[tuple[str, float]]:
    """The rows of a panel's tables of edges: names with tokens, and weights."""
    tables = page.locator(".panel").first.locator(".wire", has_text=caption)
    rows = [row.split("\t") for row in tables.locator("tr").all_inner_texts()]
    return [(" ".join(name.split()), float(weight.replace("−", "-"))) for name, weight in rows]


def test_the_answer_is_shown_first(page: Page, circuit: Circuit) -> None:
    assert titles(page) == ["answer ·Paris"]
    rows = shown(page, "reads most from")
    assert sum(weight for _, weight in rows) == pytest.approx(
        circuit.logit, abs=0.01
    )  # the rest of the edges has a row of its own
    assert f"{circuit.logit:+.3f} = {circuit.logit:+.3f}".replace("-", "−") in page.locator(".panel dl").inner_text()


def test_pointing_shows_a_node_and_pinning_keeps_it(page: Page, circuit: Circuit) -> None:
    nodes = page.locator("a.node")
    nodes.nth(1).hover()
    assert titles(page)[0].split()[0] == name_of(circuit, 1)
    one = circuit.nodes["id"][1]
    rows = shown(page, "reads most from")
    into = circuit.edges[circuit.edges["target"] == one]
    assert sum(weight for _, weight in rows) == pytest.approx(into["weight"].sum(), abs=0.01)
    out = circuit.edges[circuit.edges["source"] == one]
    assert sum(weight for _, weight in shown(page, "is read most by")) == pytest.approx(out["weight"].sum(), abs=0.01)
    assert page.locator(".panel .seen tr").count() == 3  # of the card's examples
    drawn = page.locator("#near path").evaluate_all("paths => paths.map(p => p.getAttribute('d')).join('')")
    assert drawn.count("M") == (into["source"] != PRUNED).sum() + len(out) <= 80
    nodes.nth(1).click()
    nodes.nth(2).click()
    page.mouse.move(5, 5)
    assert [title.split()[0] for title in titles(page)] == [name_of(circuit, 2), name_of(circuit, 1)]
    page.keyboard.press("Escape")
    assert titles(page) == ["answer ·Paris"]
    assert page.url.endswith(".html")  # the link to the table is for those without scripts


def test_keyboard(page: Page, circuit: Circuit) -> None:
    page.locator("input[name=by]").first.focus()
    page.keyboard.press("Tab")
    assert titles(page) == ["answer ·Paris"]
    page.keyboard.press("ArrowDown")
    (first,) = titles(page)
    highest = circuit.firings["layer"].max()
    assert first.startswith(f"{highest}.")
    page.keyboard.press("Enter")
    assert page.locator("a.node.pinned").get_attribute("aria-pressed") == "true"
    page.keyboard.press("ArrowLeft")
    assert len(titles(page)) == 2
    assert titles(page)[1] == first
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    assert page.locator("a.node.pinned").count() == 0
    page.keyboard.press("Tab")  # the graph is one stop
    assert page.locator("a.node:focus").count() == 0


def test_the_slider_takes_none_to_all(page: Page, circuit: Circuit) -> None:
    count = int((circuit.edges["source"] != PRUNED).sum())
    slider, drawn = page.locator("#count"), "paths => paths.map(p => p.getAttribute('d')).join('')"
    slider.focus()
    for key, expected in (("Home", 0), ("End", count)):
        page.keyboard.press(key)
        assert page.locator("#counted").inner_text() == f"{expected} of {count}"
        assert page.locator("#edges path").evaluate_all(drawn).count("M") == expected
    slider.fill("300")
    page.locator("input[value=weight]").check()
    few = int(page.locator("#counted").inner_text().split()[0])
    assert page.locator("#edges path").evaluate_all(drawn).count("M") == few < count
    largest = page.evaluate("document.querySelector('#edges .w8').getAttribute('d')")
    assert largest.count("M") >= 1


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_fits_the_screen(browser: Browser, address: str, width: int, dark: bool) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light")
    page.goto(address)
    page.locator("a.node").nth(1).click()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    # Asked for in one go: panels are made anew when the page moves under the pointer.
    top, screen = page.evaluate("document.querySelector('.panel').getBoundingClientRect().y"), 800
    assert 0 <= top < screen  # in sight of the node, on a phone at the screen's foot
    page.close()


def test_without_scripts_it_can_be_read(browser: Browser, address: str, circuit: Circuit) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.goto(address)
    assert page.locator(".nodes tbody tr").count() == len(circuit.nodes)
    assert page.locator("#edges path[d^=M]").count() > 0
    assert not page.locator("#settings").is_visible()
    assert not page.locator("#hint").is_visible()
    page.close()
