"""Scores: their tables."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.evaluation import Scores
from ffnmem.evaluation.metrics import NUMBERS

from ..helpers import allclose, refuses


def made_scores(model: fm.Model) -> Scores:
    """Two editors of four facts, one of which the second could not edit."""
    generator = np.random.default_rng(0)
    rows = []
    for i in range(4):
        for editor in ("rome", "memit"):
            failed = editor == "memit" and i == 2
            about = {"editor": editor, "id": f"f{i}", "relation": f"r{i % 2}", "subject": "<b>x</b>"}
            row: dict[str, object] = {**about, "target_true": "a", "target": "b"}
            row |= dict.fromkeys(("ES", "PS", "NS", "NKL", "ES_before", *NUMBERS), np.nan)
            if not failed:
                row |= dict(zip(("ES", "PS", "NS", "NKL"), generator.random(4), strict=True))
            rows.append({**row, "unasked": 0, "failure": "too <large>" if failed else ""})
    return Scores(pd.DataFrame(rows), {"metrics": ["ES"]}, model.provenance(), draws=50, seed=1)


def test_summary(scores: Scores) -> None:
    """A mean over editors, or over facts that failed."""
    assert scores.editors == ("rome", "memit")
    assert scores.metrics == ("ES", "PS", "NS", "NKL")
    assert list(scores.summary) == ["editor", "metric", "mean", "low", "high", "n"]
    for editor, n in (("rome", 4), ("memit", 3)):
        rows = scores.summary[scores.summary["editor"] == editor].set_index("metric")
        assert allclose(rows.loc["ES", "mean"], 100 * scores.of(editor)["ES"].mean(), 1e-12)
        assert rows.loc["NKL", "mean"] == pytest.approx(scores.of(editor)["NKL"].mean())
        assert rows.loc["S", "n"] == rows.loc["ES", "n"] == n


def test_relations(scores: Scores) -> None:
    """A slice must say how many facts are in it."""
    rows = scores.relations
    assert list(rows)[:3] == ["editor", "relation", "metric"]
    only = rows[(rows["editor"] == "memit") & (rows["relation"] == "r0") & (rows["metric"] == "ES")]
    assert list(only["n"]) == [1]
    assert only["low"].isna().all()


def test_failures(scores: Scores) -> None:
    """A fact that was not edited must be found with its reason."""
    assert scores.failures.to_dict("records") == [
        {"editor": "memit", "id": "f2", "subject": "<b>x</b>", "target": "b", "failure": "too <large>"}
    ]


def test_versus(scores: Scores) -> None:
    """Facts that one editor failed at must not count for the other."""
    a, b = scores.of("rome")["ES"].drop(2), scores.of("memit")["ES"].drop(2)
    table = scores.versus("rome", "memit").set_index("metric")
    assert allclose(table.loc["ES", "mean"], 100 * (a.mean() - b.mean()), 1e-12)
    assert table.loc["ES", "n"] == 3
    assert allclose(scores.versus("rome", "rome")["mean"].dropna(), np.zeros(5), 1e-15)


def test_plain_values(scores: Scores) -> None:
    """What JSON cannot hold would break the command line; a frame that is shared could be changed."""
    found = scores.to_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    frame = scores.to_frame()
    frame.loc[0, "ES"] = -1.0
    assert scores.cases.loc[0, "ES"] >= 0
    assert frame.attrs["provenance"]["model"] == scores.provenance.model


def test_refuses(scores: Scores) -> None:
    """An editor that is not here has no scores."""
    with refuses(InputError, ValueError, "'emmet'", "'memit'"):
        scores.of("emmet")
