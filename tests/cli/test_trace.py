"""``ffnmem trace``: the library's traces, of one prompt and of many facts."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.cli.options import ModelChoice

from .running import PROMPT, data, mistake, run, table

ONE = ("trace", PROMPT, "--subject", "Eiffel Tower", "--samples", 2, "--noise", 1.0)
MANY = ("trace", "--facts", "atlas", "--relation", "landmark.city", "--limit", 2, "--samples", 2)


@pytest.fixture
def on_atlas(atlas: fm.Model, monkeypatch: pytest.MonkeyPatch) -> fm.Model:
    """Commands get the model that is loaded already."""
    monkeypatch.setattr(ModelChoice, "load", lambda choice: atlas)
    return atlas


def test_one_prompt(tiny: fm.Model, tiny_folder: Path) -> None:
    """The library's numbers, with the options that were given."""
    mine = fm.trace_fact(tiny, PROMPT, "Eiffel Tower", samples=2, noise=1.0, kinds=("ffn",), window=1, severed=("ffn",))
    found = data(*ONE, "--model", tiny_folder, "--kind", "ffn", "--window", 1, "--severed", "ffn", "--full")
    assert found["scores"] == mine.to_dict()["scores"]
    assert (
        data(*ONE, "--model", tiny_folder, "--kind", "ffn", "--window", 1, "--severed", "ffn")["best"]
        == mine.brief()["best"]
    )
    text = run(*ONE, "--model", tiny_folder, "--kind", "ffn", "--window", 1, "--severed", "ffn", "--csv").stdout
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(text)), mine.to_frame(), check_dtype=False)
    out = table(*ONE, "--model", tiny_folder, width=80)
    for part in ("·Tower*", "FFN of one layer", "with noise on the subject (*)", "<|endoftext|>"):
        assert part in " ".join(out.split())


def test_many_facts(on_atlas: fm.Model, tmp_path: Path) -> None:
    """The groups' means; a folder goes on where it was, and a figure is drawn."""
    found = data(*MANY, "-o", tmp_path / "traces")
    assert found["facts"] == 2
    assert {row["group"] for row in found["groups"]} >= {"last subject", "last token"}
    assert len(data(*MANY, "-o", tmp_path / "traces", "--full")["facts"]) == 2
    out = table(*MANY, "-o", tmp_path / "traces", "--plot", tmp_path / "t.png")
    assert "2 facts, 0 skipped" in " ".join(out.split())
    assert (tmp_path / "t.png").stat().st_size > 10_000
    text = run(*MANY, "-o", tmp_path / "traces", "--csv").stdout
    assert list(pd.read_csv(io.StringIO(text)).columns) == ["kind", "group", "layer", "mean", "low", "high", "n"]
    mistake(*MANY[:-1], 3, "-o", tmp_path / "traces", named=("samples", "another folder"))


def test_figure_of_one(tiny_folder: Path, tmp_path: Path) -> None:
    result = run(*ONE, "--model", tiny_folder, "--plot", tmp_path / "one.svg")
    assert result.stderr == f"ffnmem: wrote {tmp_path / 'one.svg'}\n"
    assert "<svg" in (tmp_path / "one.svg").read_text("utf-8")


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ([], ["PROMPT", "--facts"]),
        ([PROMPT, "--facts", "atlas"], ["PROMPT", "--facts"]),
        ([PROMPT], ["--subject"]),
        ([PROMPT, "--subject", "Colosseum"], ["'Colosseum'", PROMPT]),
        ([PROMPT, "--subject", "Eiffel Tower", "--limit", "3"], ["--limit", "PROMPT"]),
        ([PROMPT, "--subject", "Eiffel Tower", "-o", "x"], ["--out", "PROMPT"]),
        (["--facts", "atlas", "--subject", "Paris"], ["--subject", "--facts"]),
        (["--facts", "atlas", "--target", "Paris"], ["--target", "--facts"]),
        ([PROMPT, "--subject", "Eiffel Tower", "--noise", "-1"], ["noise", "-1"]),
        ([PROMPT, "--subject", "Eiffel Tower", "--target", "zzz"], ["does not know"]),
        ([PROMPT, "--subject", "Eiffel Tower", "--plot", "x.gif"], ["x.gif", ".png"]),
    ],
    ids=lambda value: " ".join(value)[-50:],
)
def test_mistakes(
    args: list[str], named: list[str], tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mistake("trace", *args, "--model", tiny_folder, named=tuple(named))
    assert not list(tmp_path.iterdir())
