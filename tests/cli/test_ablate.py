"""``ffnmem ablate``: the library's own numbers, in three forms."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ffnmem as fm

from .running import PROMPT, data, mistake, run, table


@pytest.fixture
def asked(tiny_folder: Path) -> list[Any]:
    return ["ablate", PROMPT, "--model", tiny_folder, "--target", " Paris"]


@pytest.fixture(scope="module")
def capture(tiny: fm.Model) -> fm.prompts.Capture:
    return fm.capture(tiny, PROMPT)


def without_name(found: dict[str, Any]) -> dict[str, Any]:
    """The same weights were loaded from another place."""
    return {**found, "provenance": {k: v for k, v in found["provenance"].items() if k != "model"}}


@pytest.mark.parametrize("how", ["zero", "mean"])
def test_json_is_the_librarys(asked: list[Any], capture: fm.prompts.Capture, how: str) -> None:
    """The command line would say something else than the notebook."""
    options = ["--foil", " Rome", "--neurons", "1.5,0.3", "--neurons", "0.60", "--at", 2, "--at", -1, "--how", how]
    neurons = [(1, 5), (0, 3), (0, 60)]
    expected = fm.ablate(capture, " Paris", " Rome", neurons=neurons, how=how, positions=[2, -1])
    assert without_name(data(*asked, *options)) == without_name(expected.to_dict())


def test_csv_is_the_neurons(asked: list[Any], capture: fm.prompts.Capture) -> None:
    result = run(*asked, "--top", 9, "--position", 4, "--csv")
    assert result.stderr == ""
    expected = fm.ablate(capture, " Paris", position=4, top=9).neurons
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(result.stdout)), expected)


def test_integrated_gradients_choose(asked: list[Any], capture: fm.prompts.Capture) -> None:
    found = data(*asked, "--attribution", "integrated-gradients", "--top", 6)["neurons"]
    expected = fm.interventions.knowledge_neurons(capture, " Paris").top(6)
    wanted = {(row.layer, row.neuron): row.attribution for row in expected.itertuples()}
    assert {(row["layer"], row["neuron"]): row["attribution"] for row in found} == pytest.approx(wanted)
    effects = fm.ablate(capture, " Paris", neurons=list(wanted)).neurons
    assert [row["logit"] for row in found] == effects["logit"].tolist()
    assert "attribution" in table(*asked, "--attribution", "integrated-gradients", "--top", 6)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_table(asked: list[Any], capture: fm.prompts.Capture, width: int) -> None:
    """Every part that the manual promises, in the width there is."""
    out = table(*asked, "--foil", " Rome", "--top", 5, width=width)
    expected = fm.ablate(capture, " Paris", " Rome", top=5)
    for label in ("prompt", "after", "target", "foil", "logit", "removed", "agree"):
        assert f"\n{label} " in f"\n{out}"
    lines = [line.split() for line in out.splitlines()]
    for row in expected.neurons.itertuples():
        (line,) = (line for line in lines if line[:1] == [f"{row.layer}.{row.neuron}"])
        assert float(line[1].replace("−", "-")) == pytest.approx(row.peak, abs=0.01)
        assert line[2] == str(row.peak_position)
    assert f"{expected.logit:.3f}" in out
    assert f"{expected.opposite} of 5 have opposite" in " ".join(out.split())


def test_tokens_are_no_markup(tiny_folder: Path) -> None:
    out = table("ablate", "[red]x[/blue]\x1b[31m\n", "--model", tiny_folder, "--top", 2)
    assert "[ r e d ] x" in out
    assert "\x1b" not in out


def test_plot_beside_data(asked: list[Any], tmp_path: Path) -> None:
    result = run(*asked, "--top", 3, "--csv", "--plot", tmp_path / "plot.svg")
    assert result.stdout == run(*asked, "--top", 3, "--csv").stdout
    assert result.stderr == f"ffnmem: wrote {tmp_path / 'plot.svg'}\n"
    assert "<svg" in (tmp_path / "plot.svg").read_text("utf-8")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--neurons", "2.0"], ("layer 2", "0 to 1")),
        (["--neurons", "0.64"], ("neuron 64", "0 to 63")),
        (["--neurons", "x"], ("'x'",)),
        (["--at", "99"], ("position 99",)),
        (["--position", "2", "--at", "3"], ("position 3", "right of")),
        (["--plot", "a.txt"], (".png",)),
        (["--attribution", "integrated-gradients", "--foil", " Rome"], ("--foil", "integrated-gradients")),
    ],
)
def test_mistakes(asked: list[Any], options: list[str], named: tuple[str, ...]) -> None:
    mistake(*asked, *options, named=named)
    mistake("ablate", PROMPT, "--model", asked[3], "--target", " Parisian", named=("' Parisian'", "--first-token"))
