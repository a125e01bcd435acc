"""``ffnmem silence``: the library's numbers, of one prompt and of many facts."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.cli.options import ModelChoice
from ffnmem.scanning import Store

from .running import PROMPT, data, mistake, run, table

ONE = ("silence", PROMPT, "--subject", "Eiffel Tower")
MANY = ("silence", "--facts", "atlas", "--relation", "landmark.city", "--limit", 2)


@pytest.fixture
def on_atlas(atlas: fm.Model, monkeypatch: pytest.MonkeyPatch) -> fm.Model:
    """Commands get the model that is loaded already."""
    monkeypatch.setattr(ModelChoice, "load", lambda choice: atlas)
    return atlas


def test_one_prompt(tiny: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    mine = fm.tracing.silence_fact(tiny, PROMPT, "Eiffel Tower", kinds=("ffn", "attention"), window=1)
    asked = (*ONE, "--model", tiny_folder, "--kind", "ffn", "--kind", "attention", "--window", 1)
    assert data(*asked, "--full")["scores"] == mine.to_dict()["scores"]
    assert data(*asked)["worst"] == mine.brief()["worst"]
    text = run(*asked, "--csv").stdout
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(text)), mine.to_frame(), check_dtype=False)
    out = " ".join(table(*asked, "--plot", tmp_path / "one.png", width=80).split())
    for part in ("·Tower*", "without FFN of one layer", "writes nothing", "whole prompt"):
        assert part in out
    assert (tmp_path / "one.png").stat().st_size > 10_000


def test_many_facts_that_the_model_knows(on_atlas: fm.Model, tmp_path: Path) -> None:
    """--limit counts those that are known: it would else be a smaller number that nobody asked for."""
    found = run(*MANY, "--known", "--json", "--plot", tmp_path / "many.png")
    assert "of these are drawn" in found.stderr
    assert json.loads(found.stdout)["facts"] == 2
    assert (tmp_path / "many.png").stat().st_size > 10_000
    text = run(*MANY, "--csv").stdout
    columns = ["kind", "group", "layer", "loss", "low", "high", "share", "share_low", "share_high", "n"]
    assert list(pd.read_csv(io.StringIO(text)).columns) == columns


def test_the_mean_over_a_store(tiny: fm.Model, tiny_store: Store, tiny_folder: Path) -> None:
    mine = fm.tracing.silence_fact(tiny, PROMPT, "Eiffel Tower", mean=tiny_store)
    found = data(*ONE, "--model", tiny_folder, "--mean", tiny_store.folder, "--full")
    assert found["scores"] == mine.to_dict()["scores"]
    assert found["replaced_by"] == "mean over a store"


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ([], ["PROMPT", "--facts"]),
        ([PROMPT, "--facts", "atlas"], ["PROMPT", "--facts"]),
        ([PROMPT], ["--subject"]),
        ([PROMPT, "--subject", "Colosseum"], ["'Colosseum'", PROMPT]),
        ([PROMPT, "--subject", "Eiffel Tower", "--known"], ["--known", "PROMPT"]),
        ([PROMPT, "--subject", "Eiffel Tower", "--seed", "3"], ["--seed", "PROMPT"]),
        ([PROMPT, "--subject", "Eiffel Tower", "--mean", "nosuch"], ["nosuch"]),
        (["--facts", "atlas", "--subject", "Paris"], ["--subject", "--facts"]),
    ],
    ids=lambda value: " ".join(value)[-50:],
)
def test_mistakes(args: list[str], named: list[str], tiny_folder: Path) -> None:
    mistake("silence", *args, "--model", tiny_folder, named=named)
