"""``ffnmem intervene``: before and after, and how the text goes on."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.cli.intervene import read_changes
from ffnmem.interventions.intervening import compare_predictions
from ffnmem.models.answers import generate

from .running import PROMPT, data, mistake, run, table

CHANGES = ["--set", "0.3=2,1.all=0", "--scale", "0.5=-1.5", "--add", "1.7=+.5", "--add", "1.8=1e-1"]
ASKED = {
    (0, 3): fm.interventions.Set(2.0),
    (1, None): fm.interventions.Set(0.0),
    (0, 5): fm.interventions.Scale(-1.5),
    (1, 7): fm.interventions.Add(0.5),
    (1, 8): fm.interventions.Add(0.1),
}


@pytest.fixture
def asked(tiny_folder: Path) -> list[Any]:
    return ["intervene", PROMPT, "--model", tiny_folder, *CHANGES]


def expected(tiny: fm.Model, position: int = -1, top: int = 10, **options: Any) -> pd.DataFrame:
    before = fm.capture(tiny, PROMPT)
    with fm.intervene(tiny, ASKED, **options):
        return compare_predictions(before, fm.capture(tiny, PROMPT), position, top)


def test_json_is_the_librarys(asked: list[Any], tiny: fm.Model) -> None:
    found = data(*asked, "--top", 4, "--position", 5, "--at", 1, "--at", -4)
    assert found["predictions"] == expected(tiny, 5, 4, positions=[1, -4]).to_dict("records")
    assert found["position"] == 5
    assert "0.3 = 2" in found["interventions"]
    assert "at position 1, -4" in found["interventions"]
    assert "generated" not in found


def test_csv_is_the_predictions(asked: list[Any], tiny: fm.Model) -> None:
    result = run(*asked, "--csv")
    assert result.stderr == ""
    pd.testing.assert_frame_equal(
        pd.read_csv(io.StringIO(result.stdout), keep_default_na=False), expected(tiny), check_exact=False
    )


def test_generation(asked: list[Any], tiny: fm.Model) -> None:
    """Both ways, with the same seed."""
    found = data(*asked, "--generate", 6, "--temperature", 2, "--seed", 3)["generated"]
    tokens = tiny.tokenize(PROMPT)
    before = generate(tiny, tokens, 6, temperature=2.0, seed=3)
    with fm.intervene(tiny, ASKED):
        after = generate(tiny, tokens, 6, temperature=2.0, seed=3)
    assert (found["before"]["token_ids"], found["after"]["token_ids"]) == (before, after)
    assert found["after"]["text"] == tiny.tokenizer.decode(after)
    assert found["after"]["tokens"] == tiny.token_strings(after)
    assert data(*asked, "--generate", 2, "--at", 0)["generated"]["before"]["token_ids"] == generate(tiny, tokens, 2)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_table(asked: list[Any], tiny: fm.Model, width: int) -> None:
    out = table(*asked, "--top", 5, "--generate", 3, width=width)
    for label in ("prompt", "after", "changed", "before"):
        assert f"\n{label} " in f"\n{out}"
    assert "the text goes on" in out
    assert "every neuron of layer 1 = 0" in " ".join(out.split())
    assert len(expected(tiny, top=5)) == 5


def test_tokens_are_no_markup(tiny_folder: Path) -> None:
    out = table("intervene", "[red]x\x1b[31m", "--model", tiny_folder, "--set", "0.1=0", "--generate", 2)
    assert "[ r e d ] x" in out
    assert "\x1b" not in out


def test_changes_are_read_whole() -> None:
    assert read_changes({"set": ["3.17=0, 4.all=-1e2"], "scale": ["1.2=.5"]}) == {
        (3, 17): fm.interventions.Set(0.0),
        (4, None): fm.interventions.Set(-100.0),
        (1, 2): fm.interventions.Scale(0.5),
    }


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ([], ("nothing is changed", "--set 3.17=0")),
        (["--set", "0.3"], ("--set '0.3'", "LAYER.NEURON=NUMBER")),
        (["--add", "0.3=nan"], ("--add '0.3=nan'",)),
        (["--set", "0.3=1e999"], ("inf",)),
        (["--set", "0.3=1", "--scale", "0.3=2"], ("0.3", "twice")),
        (["--set", "2.0=1"], ("layer 2", "0 to 1")),
        (["--set", "0.64=1"], ("neuron 64", "0 to 63")),
        (["--set", "0.3=1", "--at", "20"], ("position 20", "never reached")),
        (["--set", "0.3=1", "--at", "99"], ("position 99", "0 to 31")),
        (["--set", "0.3=1", "--position", "99"], ("position 99",)),
        (["--set", "0.3=1", "--temperature", "1"], ("--generate",)),
        (["--set", "0.3=1", "--generate", "3", "--seed", "1"], ("--temperature",)),
        (["--set", "0.3=1", "--generate", "40"], ("40 new ones", "at most")),
    ],
)
def test_mistakes(tiny_folder: Path, options: list[str], named: tuple[str, ...]) -> None:
    mistake("intervene", PROMPT, "--model", tiny_folder, *options, named=named)
