"""``ffnmem project`` of a whole model, of a token, and in a file."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.vocabulary import read_projection

from .running import data, run


@pytest.fixture(scope="module")
def file(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("projection") / "values.parquet"
    run("project", "all", "--out", out, "--model", tiny_folder, "--top", 3)
    return out


def csv(*args: object) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(run(*args, "--csv").stdout), keep_default_na=False)


def test_all_is_the_librarys(tiny: fm.Model, file: Path) -> None:
    """The command would write another table than the library."""
    expected = fm.project(tiny, k=3)
    found = read_projection(file)
    for column in expected.columns:
        assert found[column].tolist() == expected[column].tolist()


def test_all_says_what_it_wrote(tiny: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    """The path by itself on a line, so that it can be copied; the counts are those of the file."""
    out = tmp_path / "one layer.parquet"
    asked = ["project", "all", "--layer", 1, "--out", out, "--model", tiny_folder, "--top", 2, "--side", "value"]
    shown = run(*asked)
    assert shown.stdout.splitlines()[:3] == [f"model  {tiny_folder}", "", str(out)]
    assert "64 neurons, value, 2 + 2 tokens: 256 rows" in shown.stdout
    assert shown.stderr == ""
    rows = read_projection(out)
    assert set(rows["layer"]) == {1}
    found = data(*asked)
    assert found["rows"] == len(rows) == 256
    assert found["neurons"] == 64
    assert found["bytes"] == out.stat().st_size
    assert found["provenance"]["basis"] == "folded"
    assert csv(*asked).iloc[0].to_dict() == {name: found[name] for name in ("file", "neurons", "rows", "bytes")}
