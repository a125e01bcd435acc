"""``ffnmem causal``: every firing's worth, and whether a few are enough."""

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
    return ["causal", PROMPT, "--target", " Paris", "--foil", " Rome", "--model", tiny_folder]


def test_scores_are_the_librarys(asked: list[Any], tiny: fm.Model) -> None:
    expected = fm.causal_scores(fm.capture(tiny, PROMPT), " Paris", " Rome", "relp")
    found = data(*asked, "--rule", "relp", "--top", 4)
    assert found["firings"] == expected.to_dict(4)["firings"]
    assert found["completeness_error"] < 1e-4
    result = run(*asked, "--rule", "relp", "--top", 6, "--csv")
    assert result.stderr == ""
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(result.stdout)), expected.top(6))
    out = table(*asked, "--top", 3)
    assert "attribution patching" in out
    assert "fired at" in out


def test_the_curve(asked: list[Any], tiny: fm.Model, tmp_path: Path) -> None:
    expected = fm.faithfulness(fm.capture(tiny, PROMPT), " Paris", " Rome")
    figure = tmp_path / "curve.svg"
    asked[:1] = ["causal", "faithfulness"]
    result = run(*asked, "--csv", "--plot", figure)
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(result.stdout)), expected.curve)
    assert figure.read_text().count("<svg") == 1
    assert data(*asked)["cpr"] == pytest.approx(expected.cpr)
    assert "without them" in table(*asked, "--recorded")


def test_the_smallest_set(asked: list[Any], tiny: fm.Model) -> None:
    expected = fm.minimal_circuit(fm.capture(tiny, PROMPT), " Paris", " Rome", faithfulness=0.8)
    asked[:1] = ["causal", "minimal", "--share", ".8"]
    found = data(*asked)
    assert found["size"] == len(expected.firings)
    assert found["firings"] == expected.to_dict()["firings"]
    assert "no single one can be left out" in " ".join(table(*asked).split())


def test_a_store_of_means(asked: list[Any], tiny: fm.Model, tiny_store: fm.scanning.Store) -> None:
    found = data(*asked, "--mean", tiny_store.folder)
    expected = fm.causal_scores(fm.capture(tiny, PROMPT), " Paris", " Rome", mean=tiny_store)
    assert found["reference"].startswith("mean over a store (")
    assert found["firings"][0]["score"] == pytest.approx(float(expected.top(1)["score"].item()))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--recorded"], "--recorded"),
        (["--follow-attention"], "--follow-attention"),
        (["--rule", "lrp"], "lrp"),
    ],
)
def test_mistakes(asked: list[Any], options: list[str], named: str) -> None:
    mistake(*asked, *options, named=(named,))
    mistake("causal", "minimal", *asked[1:], "--share", "0", named=("--share",))
