"""Tables that are wider than their place: they scroll in themselves, say so, and can be reached by keyboard."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ffnmem.pages.rendering import render

from ..helpers import REPOSITORY

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PAGES = (
    "pages/templates/site_page.html",
    "show/templates/sheet.html",
)


@pytest.mark.parametrize("name", PAGES)
def test_every_box_says_that_it_scrolls(name: str) -> None:
    """A reader without a pointer could not scroll it, and one who does not see it would not know."""
    text = (REPOSITORY / "ffnmem" / name).read_text("utf-8")
    boxes = [part.partition(">")[0] for part in re.split(r'<div class="(?:box(?! map)|fm-wide-box)', text)[1:]]
    assert boxes
    for box in boxes:
        assert "{{ box(block) }}" in box or ('tabindex="0" role="region"' in box and "scrolls" in box), box


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1400, "dark")])
def test_more_shows_at_the_edge(browser: Browser, tmp_path: Path, width: int, scheme: str) -> None:
    """Tables were cut at the edge of a phone, and at 1,400 pixels, as if that were all of them."""
    styles = render("page_styles.css")
    cells = "".join(f"<td>{'x' * 12}</td>" for _ in range(40))
    body = "<div class='box' id='{}'><table><tr>{}</tr></table></div>"
    page = browser.new_page(viewport={"width": width, "height": 300}, color_scheme=scheme)  # type: ignore[arg-type]
    page.set_content(
        f"<style>{styles}</style><body class='ffnmem'><main>{body.format('wide', cells)}"
        f"{body.format('narrow', '<td>x')}</main>"
    )
    assert page.evaluate("document.documentElement.scrollWidth") == width
    for place, ends in (("wide", (False, True)), ("narrow", (False, False))):
        picture = page.locator(f"#{place}").screenshot()
        assert shades(picture) == ends, place
    page.evaluate("document.getElementById('wide').scrollLeft = 1e6")
    assert shades(page.locator("#wide").screenshot()) == (True, False)
    page.close()


def shades(picture: bytes) -> tuple[bool, bool]:
    """Whether a box is shaded at its left and at its right end, below its text and above its corners."""
    import io

    import matplotlib.image
    import numpy as np

    pixels = np.asarray(matplotlib.image.imread(io.BytesIO(picture), format="png"))[-9, :, :3]
    middle = pixels[pixels.shape[0] // 2]
    return tuple(bool(np.abs(pixels[i] - middle).max() > 0.05) for i in (3, -4))  # type: ignore[return-value]
