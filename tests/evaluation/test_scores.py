"""Scores: their tables, and what is shown of them."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.core.json_values import plain
from ffnmem.evaluation import Scores
from ffnmem.evaluation.metrics import NUMBERS
from ffnmem.evaluation.scores import score_tables

from ..helpers import allclose, printed, refuses


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
    """A mean over editors, or over facts that failed; a slice must say how many facts are in it."""
    assert (scores.editors, scores.metrics) == (("rome", "memit"), ("ES", "PS", "NS", "NKL"))
    assert list(scores.summary) == ["editor", "metric", "mean", "low", "high", "n"]
    for editor, n in (("rome", 4), ("memit", 3)):
        rows = scores.summary[scores.summary["editor"] == editor].set_index("metric")
        assert allclose(rows.loc["ES", "mean"], 100 * scores.of(editor)["ES"].mean(), 1e-12)
        assert rows.loc["NKL", "mean"] == pytest.approx(scores.of(editor)["NKL"].mean())
        assert rows.loc["S", "n"] == rows.loc["ES", "n"] == n
    assert list(scores.relations)[:3] == ["editor", "relation", "metric"]
    only = scores.relations.query("editor == 'memit' and relation == 'r0' and metric == 'ES'")
    assert list(only["n"]) == [1]
    assert only["low"].isna().all()
    failure = {"editor": "memit", "id": "f2", "subject": "<b>x</b>", "target": "b", "failure": "too <large>"}
    assert scores.failures.to_dict("records") == [failure]
    with refuses(InputError, ValueError, "'emmet'", "'memit'"):
        scores.of("emmet")


def test_versus(scores: Scores) -> None:
    """Facts that one editor failed at must not count for the other."""
    a, b = scores.of("rome")["ES"].drop(2), scores.of("memit")["ES"].drop(2)
    table = scores.versus("rome", "memit").set_index("metric")
    assert allclose(table.loc["ES", "mean"], 100 * (a.mean() - b.mean()), 1e-12)
    assert table.loc["ES", "n"] == 3
    assert allclose(scores.versus("rome", "rome")["mean"].dropna(), np.zeros(5), 1e-15)


def test_what_is_shown(scores: Scores) -> None:
    """What JSON cannot hold would break the command line; a metric nobody measured is no column."""
    found = scores.to_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert {*found} - {*scores.brief()} == {"cases", "relations", "transcripts"}
    # What the table shows and the file lacks would have to be typed off.
    assert [row for row in found["summary"] if row["editor"] != "(unedited)"] == plain(scores.summary)
    assert [row["metric"] for row in found["summary"] if row["editor"] == "(unedited)"] == ["ES"]
    assert all(word in repr(scores) for word in ("rome S", "memit S", "4 facts", "1 failure)"))
    lines = printed(scores.sheet(relations=True, kept="runs/a"))
    assert lines[0] == "scores, in percent"
    assert lines[1].split()[:3] == ["editor", "n", "S"]
    for part in ("\n(unedited)", "\nrome", "\nby relation", "1 edit was not made", "kept in  runs/a", "NKL"):
        assert part in "\n".join(lines)
    assert "by relation" not in "\n".join(printed(scores.sheet()))


SHOWN = {
    "ES": (98.75, "98.8", "98–100"),
    "NKL": (0.926, "0.93", "-0.1–1.9"),
    "change": (0.1234, "0.123", "-0.88–1.12"),
    "drift_kl": (0.000123, "1.2e-04", "-1e+00–1e+00"),
    "drift_perplexity": (31556197.1, "3.2e+07", "3e+07–3e+07"),
    "PS": (math.nan, "", ""),
    "NS": (math.inf, "–", ""),
}


def test_digits_and_counts() -> None:
    """As many digits as mean something; only what was measured; how many facts, for not all have neighbours."""
    rows = [("rome", name, mean, mean - 1, mean + 1, 900 + 300 * (name == "ES")) for name, (mean, *_) in SHOWN.items()]
    frame = pd.DataFrame(rows, columns=["editor", "metric", "mean", "low", "high", "n"])
    (table,) = score_tables(frame, "editor", (tuple(SHOWN), "scores", "of each"), (("EM",), "nothing", ""))
    measured = [name for name in SHOWN if name != "PS"]
    heads = ["ES", "NKL", "‖ΔW‖/‖W‖", "drift KL", "perplexity ×", "NS"]
    assert [column.name for column in table.columns] == ["editor", "n", *heads]
    assert (table.title, table.caption) == ("scores", "of each")
    editor, n, *cells = table.rows[0]
    assert (editor, n) == ("rome", "900–1,200")
    for name, cell in zip(measured, cells, strict=True):
        texts = ["".join(span.text for span in line) for line in cell]
        assert texts == list(filter(None, SHOWN[name][1:])), name


def test_a_missing_metric_shifts_no_other() -> None:
    frame = pd.DataFrame(
        [(1, "ES", 1.0), (1, "NS_plus", math.nan), (2, "ES", math.nan), (2, "NS_plus", 3.0)],
        columns=["layer", "metric", "mean"],
    ).assign(low=math.nan, high=math.nan, n=1)
    (table,) = score_tables(frame, "layer", (("ES", "NS_plus"), "", ""))
    assert printed(table)[0].split() == ["layer", "n", "ES", "NS+"]
    assert ["2", "1", "–", "3.0"] in [line.split() for line in printed(table)]


def test_too_few_for_an_interval(scores: Scores) -> None:
    """Draws of two facts gave an interval as of two hundred."""
    two = Scores(scores.cases[scores.cases["id"].isin(list(scores.of()["id"])[:2])], {}, scores.provenance, draws=50)
    many = pd.concat([scores.of().assign(id=f"{i}") for i in range(3)])
    note = "no interval over fewer than 5 facts"
    assert two.summary["mean"].notna().any()
    assert two.summary[["low", "high"]].isna().all(axis=None)
    assert note in " ".join(printed(two.sheet()))
    rest = Scores(many, {}, scores.provenance, draws=50)
    assert rest.summary.set_index("metric").loc["ES", ["low", "high"]].notna().all()
    assert note not in " ".join(printed(rest.sheet()))
