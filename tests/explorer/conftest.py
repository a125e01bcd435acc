"""The explorer of a tiny model, asked without a browser, and a browser for what only it can show."""

from __future__ import annotations

import html
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from starlette.testclient import TestClient

import ffnmem as fm
from ffnmem.explorer.jobs import Jobs
from ffnmem.explorer.server import app, listening_at, server
from ffnmem.explorer.views import Explorer

from ..pages.conftest import browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["browser"]

BASE = "http://127.0.0.1:8765"


@contextmanager
def asking(explorer: Explorer) -> Iterator[TestClient]:
    """A client of an explorer's pages."""
    jobs = Jobs()
    try:
        yield TestClient(app(explorer, jobs), base_url=BASE, raise_server_exceptions=False)
    finally:
        jobs.close()


@contextmanager
def served(explorer: Explorer) -> Iterator[str]:
    """The address of an explorer that listens."""
    jobs = Jobs()
    with listening_at(0) as socket:
        running = server(explorer, jobs)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [socket]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{socket.getsockname()[1]}"
        finally:
            running.should_exit = True
            thread.join(30)
            jobs.close()


def opened(browser: Browser, where: str, width: int = 1280, scheme: str = "light") -> Page:
    """A page in a context of its own, with a list of its ``complaints``."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(20_000)
    page = context.new_page()
    page.complaints = []
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("console", lambda line: page.complaints.append(line.text) if line.type == "error" else None)
    page.goto(where)
    return page


def mistake(client: TestClient, where: str) -> str:
    """The one line with which an address is refused; its form is there, to be put right."""
    found = client.get(where)
    assert found.status_code == 422, found.text[-600:]
    (line,) = re.findall(r'role="alert"><b>(.*?)</b>', found.text, re.DOTALL)
    assert "\n" not in line
    assert "<form" in found.text
    return html.unescape(line)


@pytest.fixture(scope="module")
def client(tiny: fm.Model) -> Iterator[TestClient]:
    with asking(Explorer(tiny)) as found:
        yield found


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait for their results: what waits is tested by itself."""
    monkeypatch.setattr("ffnmem.explorer.server.PROMPTLY", 60.0)
