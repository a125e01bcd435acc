"""``ffnmem explore``: what it opens, and what it says where it cannot."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.cli.explore import ASKED
from ffnmem.scanning.store import Store

from ..helpers import REPOSITORY
from .running import mistake, run


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would be served, in place of a server."""
    found: list[Any] = []

    def serve(explorer: Any, *, port: int, ready: Any) -> None:
        found.append((explorer, port))
        ready(f"http://127.0.0.1:{port}/")

    monkeypatch.setattr("ffnmem.explorer.server.serve", serve)
    monkeypatch.setattr("webbrowser.open", lambda address: found.append(address))
    return found


def test_it_opens_the_embedded_model_with_its_facts(served: list[Any]) -> None:
    done = run("explore", "--port", "9001")
    assert done.stdout == "http://127.0.0.1:9001/\n"
    assert "Ctrl-C ends it" in done.stderr
    (explorer, port), opened = served
    assert (explorer.model.name, len(explorer.facts), explorer.store, port) == ("atlas", 3993, None, 9001)
    assert opened == "http://127.0.0.1:9001/"


def test_a_store_says_which_model(served: list[Any], tiny_store: Store, tiny_folder: Path) -> None:
    run("explore", "--store", tiny_store.folder, "--model", tiny_folder, "--no-browser")
    ((explorer, _),) = served
    assert explorer.store is not None
    assert explorer.facts == ()  # of random weights: it answers none
    mistake("explore", "--store", tiny_store.folder, "--model", "atlas", named=("atlas",))


def test_begins_with_what_the_model_answers(served: list[Any]) -> None:
    """Another model would begin with thousands of facts of atlas, most of which it does not know, or with none."""
    run("explore", "--model", REPOSITORY / "data" / "atlas", "--no-browser")
    explorer = served[0][0]
    assert 20 < len(explorer.facts) <= ASKED
    assert len(fm.facts.filter_known(explorer.model, explorer.facts)) == len(explorer.facts)
    assert explorer.model.name in explorer.source


def test_without_the_extra_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name in ("starlette", "uvicorn"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    mistake("explore", named=("the explorer needs starlette and uvicorn: pip install 'ffnmem[explorer]'",))
