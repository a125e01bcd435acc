"""``ffnmem project``: memories by name, of a whole model, of a token, and in a file."""

from __future__ import annotations

import copy
from pathlib import Path

import ffnmem as fm
from ffnmem.vocabulary import read_projection

from .running import csv, data, run


def test_all_says_what_it_wrote(tiny: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    """The path by itself on a line, so that it can be copied; the counts are those of the file."""
    out = tmp_path / "one layer.parquet"
    asked = ["project", "all", "--layer", 1, "--out", out, "--model", tiny_folder, "--top", 2, "--side", "value"]
    shown = run(*asked)
    assert shown.stdout.splitlines()[:3] == [f"model  {tiny_folder}", "", str(out)]
    assert "64 neurons, value, 2 + 2 tokens: 256 rows" in shown.stdout
    assert shown.stderr == ""
    rows = read_projection(out)
    expected = fm.project(tiny, 1, k=2, side="value")
    for column in expected.columns:
        assert rows[column].tolist() == expected[column].tolist()
    found = data(*asked)
    assert found["rows"] == len(rows) == 256
    assert found["neurons"] == 64
    assert found["bytes"] == out.stat().st_size
    assert found["provenance"]["basis"] == "folded"
    assert csv(*asked).iloc[0].to_dict() == {name: found[name] for name in ("file", "neurons", "rows", "bytes")}


def test_needs_no_beginning_of_sequence_token(tiny_hf: object, tokenizer: object, tmp_path: Path) -> None:
    """Nothing is read, so a tokenizer without that token must not matter."""
    plain = copy.deepcopy(tokenizer)
    plain.bos_token = None  # type: ignore[attr-defined]
    tiny_hf.save_pretrained(tmp_path)  # type: ignore[attr-defined]
    plain.save_pretrained(tmp_path)  # type: ignore[attr-defined]
    assert run("project", "0.1", "--model", tmp_path, "--csv").stdout
