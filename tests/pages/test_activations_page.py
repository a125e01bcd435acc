"""The explorer of activation functions in a browser: what a reader sees and can do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ffnmem.ffn.activations import POINTS, activation_table, curves, swish
from ffnmem.pages import activations

from ..ffn.test_activation_curves import GRADIENTS, VALUES

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

READ = "row => [row.dataset.name, ...[...row.querySelectorAll('data')].map(d => [d.textContent, d.value])]"
NAMES = [one.name for one in curves()]
ALL = f"show={','.join(NAMES)}"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return activations(tmp_path_factory.mktemp("page") / "activations.html").as_uri()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext, address: str) -> Iterator[Page]:
    """The page with nothing done to it; whatever it logs or asks the network for fails the test."""
    said: list[str] = []
    asked: list[str] = []
    opened = context.new_page()
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(address)
    yield opened
    assert said == []
    assert {url.partition("#")[0] for url in asked} == {address}


def readings(page: Page) -> dict[str, tuple[float, float]]:
    """f and f′ as the table shows them, of each activation shown; the exact numbers beside them are checked too."""
    rows: list[list[Any]] = page.locator("#reading tbody tr:visible").evaluate_all(f"rows => rows.map({READ})")
    found = {}
    for name, *cells in rows:
        shown = [float(text.replace("−", "-")) for text, _ in cells]
        assert all(len(text.partition(".")[2]) == 4 for text, _ in cells)
        assert shown == pytest.approx([float(exact) for _, exact in cells], abs=5.01e-5)
        found[name] = (shown[0], shown[1])
    return found


def type_into(page: Page, field: str, value: float) -> None:
    page.locator(f"#{field}").fill(str(value))


def check(page: Page, x: float, beta: float = 2.0) -> None:
    """What is shown is what Python says, to four decimals."""
    frame = activation_table([x], beta=beta).set_index("name")
    for name, (y, slope) in readings(page).items():
        assert y == pytest.approx(frame.loc[name, "value"], abs=5.01e-5), (name, x, beta)
        assert slope == pytest.approx(frame.loc[name, "gradient"], abs=5.01e-5), (name, x, beta)


def drawn(page: Page) -> list[str]:
    """The names of the curves in the first plot."""
    return page.locator("#value path.curve").evaluate_all(
        "paths => paths.map(p => p.getAttribute('class').split('-')[1])"
    )


def x_of(page: Page) -> float:
    return float(page.locator("#plots").get_attribute("aria-valuenow") or "nan")


def test_reference_values(page: Page, address: str) -> None:
    """The line at each of the known points, against the known figures and against Python."""
    page.goto(f"{address}#{ALL}")
    page.reload()
    for index, x in enumerate(POINTS):
        type_into(page, "x", x)
        found = readings(page)
        assert list(found) == NAMES
        for name in VALUES:
            assert found[name] == pytest.approx((VALUES[name][index], GRADIENTS[name][index]), abs=5.6e-4)
        check(page, x)
        assert page.locator("#reading caption").inner_text() == f"At x = {x:.2f}".replace("-", "−")


def test_script_computes_what_python_does(page: Page) -> None:
    """The script has its own erf; 1e-12 is what double precision leaves, far below what four decimals would show."""
    x = [i / 16 for i in range(-160, 161)] + [-37.5, -26.0, 1e-9, -1e-9, 40.0]
    points = torch.tensor(x, dtype=torch.float64)
    for one in curves(beta=2.5):
        for kind in ("value", "gradient"):
            found = page.evaluate("([n, k, x]) => x.map(v => activations[k](n, v, 2.5))", [one.name, kind, x])
            expected = getattr(one, kind)(points)
            torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), expected, rtol=1e-12, atol=1e-14)
    erf = page.evaluate(
        "x => x.map(v => 2 * activations.value('gelu', v * Math.SQRT2) / (v * Math.SQRT2) - 1)", x[:160]
    )
    assert erf == pytest.approx([math.erf(v) for v in x[:160]], abs=1e-14)
    assert page.evaluate("activations.names") == NAMES


@pytest.mark.parametrize(("beta", "says"), [(0, "a line"), (1, "SiLU"), (10, "at most 0.028 away from ReLU")])
def test_beta(page: Page, beta: int, says: str) -> None:
    """At 0 a line, at 1 SiLU, at 10 nearly ReLU; by the field, and the slider goes with it."""
    for x in POINTS:
        type_into(page, "x", x)
        type_into(page, "beta", beta)
        y, slope = readings(page)["swish"]
        at = torch.tensor(x, dtype=torch.float64)
        assert y == pytest.approx(float(swish(beta).value(at)), abs=5.01e-5)
        assert slope == pytest.approx(float(swish(beta).gradient(at)), abs=5.01e-5)
    assert page.locator("#slider").input_value() == str(beta)
    assert page.locator("#chip-swish").inner_text() == f"Swish (β = {beta})"
    assert says in page.locator("#beta-says").inner_text()


def test_slider(page: Page) -> None:
    page.locator("#slider").focus()
    page.keyboard.press("End")
    assert page.locator("#beta").input_value() == "10"
    check(page, -1, 10)
    page.keyboard.press("Home")
    check(page, -1, 0)
    page.keyboard.press("ArrowRight")
    check(page, -1, 0.1)


def test_toggle(page: Page) -> None:
    """Off: neither a curve nor a row; on again: both."""
    before = drawn(page)
    assert before == list(readings(page)) == ["relu", "gelu", "gelu_tanh", "silu", "swish"]
    page.get_by_role("checkbox", name="SiLU").focus()
    page.keyboard.press("Space")
    assert drawn(page) == list(readings(page)) == ["relu", "gelu", "gelu_tanh", "swish"]
    page.keyboard.press("Space")
    assert drawn(page) == list(readings(page)) == before
    for box in page.get_by_role("checkbox").all():
        box.set_checked(False)
    assert drawn(page) == []
    assert page.locator("#none").is_visible()


def test_keyboard(page: Page) -> None:
    page.locator("#plots").focus()
    for key, x in (
        ("ArrowRight", -0.9),
        ("ArrowLeft", -1.0),
        ("Shift+ArrowRight", 0.0),
        ("ArrowUp", 0.1),
        ("ArrowDown", 0.0),
        ("PageUp", 1.0),
        ("End", 3.0),
        ("ArrowRight", 3.0),
        ("Home", -3.0),
    ):
        page.keyboard.press(key)
        assert x_of(page) == x, key
        check(page, x)
    said = "At x = −3.00. ReLU: 0.0000, gradient 0.0000; GELU: −0.0040"
    page.locator("#said", has_text=said).wait_for(state="attached")


@pytest.mark.parametrize("plot", ["value", "gradient"])
def test_pointer(page: Page, plot: str) -> None:
    """Click and drag, also beyond the edge, and with either plot."""
    box = page.locator(f"#{plot}").bounding_box()
    assert box is not None
    left, width = box["x"] + 42, box["width"] - 54
    height = box["y"] + box["height"] / 2
    page.mouse.click(left + width / 2, height)
    assert x_of(page) == pytest.approx(0, abs=0.01)
    page.mouse.down()
    page.mouse.move(left + 0.75 * width, height, steps=4)
    assert x_of(page) == pytest.approx(1.5, abs=0.011)
    check(page, x_of(page))
    page.mouse.move(left + 1.2 * width, height)
    assert x_of(page) == 3
    page.mouse.up()
    page.mouse.move(left, height)
    assert x_of(page) == 3
    assert page.locator(f"#{plot} circle.dot").count() == 5


def test_touch(browser: Browser, address: str) -> None:
    phone = browser.new_context(viewport={"width": 360, "height": 780}, has_touch=True, is_mobile=True)
    page = phone.new_page()
    page.goto(address)
    box = page.locator("#value").bounding_box()
    assert box is not None
    page.touchscreen.tap(box["x"] + 42 + (box["width"] - 54) * 5 / 6, box["y"] + 80)
    assert x_of(page) == pytest.approx(2, abs=0.03)
    phone.close()


def test_view_ranges(page: Page) -> None:
    """The view grows to hold a typed x, and holds the line when it shrinks."""
    type_into(page, "x", 8.25)
    assert page.locator("input[name=range]:checked").get_attribute("value") == "10"
    check(page, 8.25)
    page.get_by_text("±6").click()
    assert x_of(page) == 6
    labels = page.locator("#value .grid text").all_inner_texts()
    assert {"−6", "6"} <= set(page.locator("#value .grid text").all_text_contents()), labels
    type_into(page, "x", 11)
    assert x_of(page) == 6
    page.locator("#x").blur()
    assert page.locator("#x").input_value() == "6"


def test_view_can_be_shared(page: Page, address: str) -> None:
    type_into(page, "x", 0.25)
    type_into(page, "beta", 4.5)
    page.get_by_text("±6").click()
    page.get_by_role("checkbox", name="ReLU²").check()
    page.wait_for_url("**#x=0.25&beta=4.5&range=6&show=relu,gelu,gelu_tanh,silu,swish,relu2")
    shared = page.url
    shown = readings(page)
    page.get_by_role("button", name="reset").click()
    page.wait_for_url("**#x=-1&**")
    page.goto("about:blank")
    page.goto(shared)
    assert readings(page) == shown
    check(page, 0.25, 4.5)
    page.evaluate("location.hash = '#x=no&beta=-3&range=7&show=gelu,mish'")
    page.locator("#reading caption", has_text="At x = −1.00").wait_for()
    assert list(readings(page)) == ["gelu"]
    check(page, -1)


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_no_sideways_scrolling(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    for box in page.get_by_role("checkbox").all():
        box.check()
    type_into(page, "beta", 99.875)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    wide = "[...document.querySelectorAll('.box')].filter(box => box.scrollWidth > box.clientWidth).length"
    assert page.evaluate(wide) == 0
    plot = page.locator("#value").bounding_box()
    assert plot is not None
    assert 0 <= plot["x"] < plot["x"] + plot["width"] <= width


def test_without_scripts(browser: Browser, address: str) -> None:
    """The still drawing and the tables, and no control that would do nothing."""
    plain = browser.new_context(java_script_enabled=False, viewport={"width": 360, "height": 800})
    page = plain.new_page()
    page.goto(address)
    assert page.locator(".still svg").count() == 2
    assert page.locator(".still svg").first.is_visible()
    assert page.get_by_text("−0.1587").is_visible()
    assert not page.locator("#explorer").is_visible()
    plain.close()
