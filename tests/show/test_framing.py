"""What notebooks show looks the same in every page, and changes nothing of the page around it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest

from ffnmem.show.notebook import RESET, ROOT, framed, html, styles

from ..examples import Examples
from . import hosts
from .framed import Framed

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_table() -> None:
    """Text from files runs in notebooks if it is not escaped; rows beyond the limit are counted."""
    frame = pd.DataFrame({"<token>": ["<b>", " Rome", "x"], "loss": [-0.123456, np.nan, 2.0], "n": [1, 2, 3]})
    shown = body(Framed(frame), 2)
    assert "&lt;b&gt;" in shown
    assert "&lt;token&gt;" in shown
    assert "−0.1235" in shown
    assert "1 more" in shown
    assert "more" not in body(Framed(frame))
    assert "<table" not in body(Framed(frame.head(0)))


def body(result: Framed, top: int | None = None) -> str:
    """A result as HTML, without the styles."""
    return html(result.sheet(top)).partition("</style>")[2]


def test_every_rule_is_below_the_frame() -> None:
    """A rule without the frame's selector would style the page around it."""
    plain = re.sub(r"@media[^{]*\{", "", styles())
    selectors = [one for rule in re.findall(r"([^{}]+)\{", plain) for one in rule.split(", ")]
    assert len(selectors) > 40
    assert [one for one in selectors if not one.strip().startswith(ROOT)] == []
    assert styles().startswith(RESET)


SHOWN = ("Neuron", "Capture", "Attribution", "PathAttribution", "Ablation", "Edit", "Anatomy")


@pytest.fixture(scope="module")
def shown(examples: Examples) -> dict[str, str]:
    return {name: getattr(examples, name)._repr_html_() for name in SHOWN} | {"Store": examples.store._repr_html_()}


@pytest.mark.parametrize("styles", [hosts.JUPYTERLAB, hosts.HOSTILE], ids=["jupyterlab", "hostile"])
def test_no_page_reaches_in(browser: Browser, shown: dict[str, str], styles: str) -> None:
    """JupyterLab floated every `dt` of the neuron card: its numbers stood in a heap."""
    page = browser.new_page(viewport={"width": 1000, "height": 900})
    for name, display in shown.items():
        page.set_content(hosts.hosted(display, hosts.NOTHING))
        roots = page.locator(".ffnmem")
        alone = [roots.nth(i).evaluate(hosts.BOXES) for i in range(roots.count())]
        assert sum(map(len, alone)) > 5
        page.set_content(hosts.hosted(display, styles))
        assert [roots.nth(i).evaluate(hosts.BOXES) for i in range(roots.count())] == alone, name
    page.close()


def test_no_page_is_reached(browser: Browser, shown: dict[str, str]) -> None:
    """The styles of a result would change the notebook's own tables and texts."""
    page = browser.new_page(viewport={"width": 1000, "height": 900})
    page.set_content(hosts.hosted("<div></div>", hosts.JUPYTERLAB))
    around = [page.locator(place).evaluate(hosts.BOXES) for place in ("#before", "#after")]
    for name, display in shown.items():
        page.set_content(hosts.hosted(display, hosts.JUPYTERLAB))
        assert [page.locator(place).evaluate(hosts.BOXES) for place in ("#before", "#after")] == around, name
    page.close()


def test_framed_twice_is_two_frames() -> None:
    """What is put together of two results must not nest their styles."""
    assert framed("a").count('class="ffnmem"') == 1
