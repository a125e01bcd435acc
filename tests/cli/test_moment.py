"""``ffnmem moment``: the library's second moments, in a file."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.cli.options import ModelChoice

from ..scanning.texts import tiny_texts
from .running import run, table


@pytest.fixture
def arguments(tmp_path: Path, tiny_folder: Path) -> tuple[object, ...]:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(tiny_texts()), "utf-8")
    return ("moment", corpus, "--model", tiny_folder, "--context", 16)


def test_the_librarys(arguments: tuple[object, ...], tiny: fm.Model, tmp_path: Path) -> None:
    """Every way of printing says what the library's table says, and the file is the library's."""
    mine = fm.editing.second_moment(tiny, arguments[1], context=16)
    found = data_of(*arguments, "-o", tmp_path / "a.safetensors")
    assert [row["rank"] for row in found["layers"]] == mine.to_frame()["rank"].tolist()
    assert fm.editing.SecondMoment.load(tmp_path / "a.safetensors").count == mine.count
    text = run(*arguments, "-o", tmp_path / "a.safetensors", "--csv").stdout
    assert list(pd.read_csv(io.StringIO(text)).columns) == list(mine.to_frame().columns)
    out = table(*arguments, "-o", tmp_path / "b.safetensors", "--tokens", 20, "--layer", 1)
    assert "second moment" in out
    assert fm.editing.SecondMoment.load(tmp_path / "b.safetensors").layers == (1,)
    assert (tmp_path / "b.safetensors").stat().st_size < (tmp_path / "a.safetensors").stat().st_size


def data_of(*args: object) -> dict[str, list[dict[str, float]]]:
    """The JSON of a command that says on standard error what it wrote."""
    result = run(*args, "--json")
    assert result.stderr.startswith("ffnmem: wrote ")
    found: dict[str, list[dict[str, float]]] = json.loads(result.stdout)
    return found


def test_atlas_by_default(atlas: fm.Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A text of nobody's choice but the one that ships."""
    asked: list[object] = []

    def second_moment(model: fm.Model, corpus: object, out: str, **_options: object) -> fm.editing.SecondMoment:
        asked.append(corpus)
        return fm.editing.SecondMoment.load("data/atlas/second_moments.safetensors")

    monkeypatch.setattr(ModelChoice, "load", lambda choice: atlas)
    monkeypatch.setattr(fm.editing, "second_moment", second_moment)
    found = data_of("moment", "-o", tmp_path / "x")
    assert asked == ["atlas"]
    assert len(found["layers"]) == atlas.n_layers
