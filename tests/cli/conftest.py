"""What commands draw is not rendered, which takes longer than all the rest: ``tests/plots`` does that."""

from __future__ import annotations

import io
from typing import Any

import pytest
from matplotlib.figure import Figure


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
