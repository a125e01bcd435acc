"""``ffnmem anatomy``: tables, data and a figure, of a config alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ffnmem.cli.options import ModelChoice
from ffnmem.models import anatomy

from ..helpers import printed
from .running import run, table


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(ModelChoice, "load", refuse)
    monkeypatch.setattr("ffnmem.models.loading.read_checkpoint", refuse)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """Llama 7B, of which the config is all there is."""
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}), "utf-8")
    return folder


@pytest.mark.parametrize("width", [80, 120])
def test_the_sheet_is_printed(llama: Path, width: int) -> None:
    out = table("anatomy", llama, width=width)
    assert [line.rstrip() for line in out.splitlines()] == printed(anatomy(llama).sheet(), width)
    words = " ".join(out.split())
    assert "6,738,415,616 100.0%" in words
    assert "16,384, a multiple of 256, this one has +0.8%" in words
    assert "…" not in out


def test_atlas_is_the_default() -> None:
    assert run("anatomy").stdout == run("anatomy", "atlas").stdout
    assert "6,344,704" in table("anatomy")
