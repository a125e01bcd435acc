"""What takes longer than all the rest is left out: commands' figures are not rendered, which ``tests/plots`` does, and
helps read each source once."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from docstring_parser.attrdoc import AttributeDocstrings
from matplotlib.figure import Figure


@pytest.fixture(autouse=True, scope="package")
def sources_read_once() -> Iterator[None]:
    """Most of what a help takes is the reading of the same sources again."""
    read = AttributeDocstrings.get_attr_docs
    kept = cache(lambda kind: read(AttributeDocstrings(), kind))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AttributeDocstrings, "get_attr_docs", lambda _, kind: kept(kind))
        yield


@pytest.fixture
def rendered() -> None:
    """Of a test that reads a picture's file: it is rendered."""


@pytest.fixture(autouse=True)
def unrendered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of a picture its file holds what it says of itself, and the texts of its panels."""

    def save(figure: Figure, file: io.BytesIO, metadata: dict[str, str], **_: Any) -> None:
        texts = [text for ax in figure.axes for text in (ax.get_title(loc="left"), ax.get_xlabel(), ax.get_ylabel())]
        file.write("\n".join(["<svg", *(f"<dc:title>{made_by}" for made_by in metadata.values()), *texts]).encode())

    if "rendered" not in request.fixturenames:
        monkeypatch.setattr(Figure, "savefig", save)
