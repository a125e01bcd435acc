"""The explorer of a tiny model, asked without a browser, and a browser for what only it can show."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from starlette.testclient import TestClient

import ffnmem as fm
from ffnmem.explorer.jobs import Jobs
from ffnmem.explorer.server import Listening, app, listening_at
from ffnmem.explorer.views import Explorer
from ffnmem.scanning.store import Store

from ..pages.conftest import browser

__all__ = ["browser"]

PORT = 8765
BASE = f"http://127.0.0.1:{PORT}"


@contextmanager
def asking(explorer: Explorer) -> Iterator[TestClient]:
    """A client of an explorer's pages."""
    jobs = Jobs()
    try:
        yield TestClient(app(explorer, PORT, jobs), base_url=BASE, raise_server_exceptions=False)
    finally:
        jobs.close()


@contextmanager
def served(explorer: Explorer) -> Iterator[tuple[str, Listening]]:
    """An explorer that listens; its address and its server."""
    started, jobs = threading.Event(), Jobs()
    with listening_at("127.0.0.1", 0) as socket:
        port = socket.getsockname()[1]
        server = Listening(explorer, port, jobs, started.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
        thread.start()
        try:
            assert started.wait(30)
            yield f"http://127.0.0.1:{port}", server
        finally:
            server.should_exit = True
            thread.join(30)
            jobs.close()


@pytest.fixture(scope="module")
def client(tiny: fm.Model) -> Iterator[TestClient]:
    with asking(Explorer(tiny)) as found:
        yield found


@pytest.fixture(scope="module")
def store_client(tiny: fm.Model, tiny_store: Store) -> Iterator[TestClient]:
    with asking(Explorer(tiny, fm.open_store(tiny_store.folder, model=tiny))) as found:
        yield found


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait for their views: what waits is tested by itself."""
    monkeypatch.setattr("ffnmem.explorer.server.PROMPTLY", 60.0)
