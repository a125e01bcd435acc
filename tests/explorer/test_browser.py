"""Journeys in a real browser: from the first click to the result, a reload, keys, a server that is gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import ffnmem as fm
from ffnmem.explorer.views import Explorer

from .conftest import opened, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SIZES = ((1280, "light"), (390, "dark"))


@pytest.fixture(scope="module")
def site(tiny: fm.Model) -> Iterator[str]:
    with served(Explorer(tiny)) as address:
        yield address


def test_from_a_text_to_what_is_said_without_some_neurons(browser: Browser, site: str) -> None:
    page = opened(browser, site)
    page.get_by_label("Which memories wrote an answer?").fill('The <b>"x"</b>')
    page.keyboard.press("Enter")
    page.locator(".fm-tiles th a").nth(2).click()
    page.wait_for_url("**position=2**")
    page.locator(".fm-grid td a").first.click()
    page.wait_for_url("**layer=1&at=0**")
    page.locator("input[name=changes]").nth(0).check()
    page.get_by_role("button", name="Switch the ticked neurons off").click()
    page.wait_for_url("**/intervene?**")
    assert page.locator("#continuations tbody tr").count() == 2
    shared = page.locator("main").inner_text()
    page.reload()
    assert page.locator("main").inner_text() == shared
    assert page.complaints == []
    page.context.close()


def test_everything_is_reached_by_keys(browser: Browser, site: str) -> None:
    page = opened(browser, f"{site}/project?neurons=1.3")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    page.keyboard.press("]")
    page.wait_for_url("**/project?neurons=1.4")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "neurons"
    page.goto(f"{site}/report?prompt=The")
    page.locator(".fm-grid td a").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**layer=0&at=0*")
    page.get_by_role("button", name="coefficient").first.click()
    cells = page.locator("#firings [data-name=coefficient] data")
    shown = [float(one) for one in cells.evaluate_all("cells => cells.map(cell => cell.value)")]
    assert shown == sorted(shown, reverse=True)
    assert page.complaints == []
    page.context.close()


def test_a_server_that_is_gone_is_told_of(browser: Browser, tiny: fm.Model) -> None:
    with served(Explorer(tiny)) as address:
        page = opened(browser, f"{address}/project?neurons=0.0")
        assert page.locator("#lost").is_hidden()
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_selector("#lost:not([hidden])")
    assert "does not answer" in page.locator("#lost").inner_text()
    page.context.close()


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_nothing_is_wider_than_the_screen(browser: Browser, site: str, width: int, scheme: str) -> None:
    page = opened(browser, site, width, scheme)
    for where in (
        "/",
        "/report?prompt=The%20Eiffel",
        "/project?neurons=1.3",
        "/token?tokens=%20is",
        "/trace",
        "/roles?go=1",
    ):
        page.goto(site + where)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), where
    assert page.complaints == []
    page.context.close()
