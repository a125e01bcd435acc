"""``ffnmem knockout``: the library's numbers, of one prompt and of many facts."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.cli.options import ModelChoice

from .running import PROMPT, data, mistake, run, table

ONE = ("knockout", PROMPT, "--subject", "Eiffel Tower")
MANY = ("knockout", "--facts", "atlas", "--relation", "landmark.city", "--limit", 2)


def test_one_prompt(tiny: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    mine = fm.knockout(tiny, PROMPT, "Eiffel Tower", window=1, positions=[1, -1])
    asked = (*ONE, "--model", tiny_folder, "--window", 1, "--at", 1, "--at", -1)
    assert data(*asked, "--full")["scores"] == mine.to_dict()["scores"]
    assert data(*asked)["worst"] == mine.brief()["worst"]
    text = run(*asked, "--csv").stdout
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(text)), mine.to_frame(), check_dtype=False)
    out = " ".join(table(*asked, "--plot", tmp_path / "one.png", width=80).split())
    for part in ("·Tower*", "without looking at", "whole subject", "chosen"):
        assert part in out
    assert (tmp_path / "one.png").stat().st_size > 10_000


def test_many_facts(atlas: fm.Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ModelChoice, "load", lambda choice: atlas)
    found = run(*MANY, "--known", "--json", "--plot", tmp_path / "many.png")
    assert json.loads(found.stdout)["facts"] == 2
    assert (tmp_path / "many.png").stat().st_size > 10_000
    columns = ["kind", "group", "layer", "share", "low", "high", "loss", "n"]
    assert list(pd.read_csv(io.StringIO(run(*MANY, "--csv").stdout)).columns) == columns


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ([], ["PROMPT", "--facts"]),
        ([PROMPT, "--facts", "atlas"], ["PROMPT", "--facts"]),
        ([PROMPT], ["--subject"]),
        ([PROMPT, "--subject", "Colosseum"], ["'Colosseum'", PROMPT]),
        ([PROMPT, "--subject", "Eiffel Tower", "--at", "99"], ["position 99", "out of range"]),
        ([PROMPT, "--subject", "Eiffel Tower", "--known"], ["--known", "PROMPT"]),
        (["The", "--subject", "The", "--no-prepend-bos"], ["'The'", "one token"]),
        (["--facts", "atlas", "--at", "1"], ["--at", "--facts"]),
    ],
    ids=lambda value: " ".join(value)[-50:],
)
def test_mistakes(args: list[str], named: list[str], tiny_folder: Path) -> None:
    mistake("knockout", *args, "--model", tiny_folder, named=named)
