"""A browser for the tests that look at pages as readers see them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    program = next((found for found in map(shutil.which, BROWSERS) if found), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on the path")
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=list(QUIET))
        yield started
        started.close()
