"""``ffnmem project``: memories by name, of a whole model, of a token, and in a file."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.number_text import decimals, format_number
from ffnmem.vocabulary import read_projection

from .running import data, run, table


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


def test_table(tiny: fm.Model, tiny_folder: Path) -> None:
    """Both ends of both rankings, each under its neuron's name."""
    out = table("project", "1.5,0.7", "--model", tiny_folder, "--top", 2)
    assert [line.split(":")[0] for line in out.splitlines() if ": what" in line] == [
        "1.5 value",
        "1.5 key",
        "0.7 value",
        "0.7 key",
    ]
    for _, rows in fm.project(tiny, 0, 7, k=2).groupby("side"):
        for score in rows["score"]:
            assert format_number(score, decimals(rows["score"]), sign=True) in out
    assert "basis folded" in out


def test_needs_no_beginning_of_sequence_token(tiny_hf: object, tokenizer: object, tmp_path: Path) -> None:
    """Nothing is read, so a tokenizer without that token must not matter."""
    plain = copy.deepcopy(tokenizer)
    plain.bos_token = None  # type: ignore[attr-defined]
    tiny_hf.save_pretrained(tmp_path)  # type: ignore[attr-defined]
    plain.save_pretrained(tmp_path)  # type: ignore[attr-defined]
    assert run("project", "0.1", "--model", tmp_path, "--csv").stdout
