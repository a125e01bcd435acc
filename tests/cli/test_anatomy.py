"""``ffnmem anatomy``: tables, data and a figure, of a config alone."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.cli.options import ModelChoice
from ffnmem.models import anatomy

from ..helpers import printed
from .running import data, mistake, run, table


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


def test_csv_and_json_are_the_librarys(llama: Path) -> None:
    found = anatomy(llama, context=100)
    read = pd.read_csv(io.StringIO(run("anatomy", llama, "--context", 100, "--csv").stdout))
    pd.testing.assert_frame_equal(read, found.to_frame())
    assert data("anatomy", llama, "--context", 100) == json.loads(json.dumps(found.to_dict()))


def test_plot(llama: Path, tmp_path: Path) -> None:
    run("anatomy", llama, "--plot", tmp_path / "anatomy.png")
    assert (tmp_path / "anatomy.png").read_bytes().startswith(b"\x89PNG")


def test_mistakes(llama: Path, tmp_path: Path) -> None:
    mistake("anatomy", "no-such-model", named=("no-such-model", "atlas"))
    mistake("anatomy", tmp_path, named=(tmp_path, "config.json"))
    mistake("anatomy", llama, "--context", 4096, named=("context 4096", "2048"))
    mistake("anatomy", llama, "--plot", tmp_path / "x.txt", named=("--plot", ".png"))
    mistake("anatomy", "--json", "--csv", named=("--json", "--csv"))
    for family, reason in (("mixtral", "mixture of experts"), ("t5", "encoder-decoder")):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": family}), "utf-8")
        mistake("anatomy", tmp_path, named=(family, reason))


def test_names_from_files_are_shown_as_they_are(tmp_path: Path) -> None:
    """A folder's name could recolour the terminal."""
    folder = tmp_path / "[red]x\x1b[31m"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}), "utf-8")
    out = run("anatomy", folder).stdout
    assert "\x1b" not in out
    assert "[red]x" in out.replace("\n", "")
    assert fm.__version__ in out
