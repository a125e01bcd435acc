"""Means of metrics over records and their intervals, against numpy; scores, their tables, and what is shown of them."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.core.json_values import plain
from ffnmem.evaluation import METRICS, Scores, metrics
from ffnmem.evaluation.metrics import NUMBERS, check_metrics, harmonic, summarise
from ffnmem.evaluation.scores import score_tables
from ffnmem.facts.fact import KINDS

from ..helpers import allclose, printed, refuses

DRAWS = 200


@pytest.fixture(scope="module")
def cases() -> pd.DataFrame:
    generator = np.random.default_rng(5)
    values = generator.random((30, 4))
    values[::7, 2] = np.nan
    return pd.DataFrame(values, columns=["ES", "PS", "NS", "NKL"])


def by_hand(values: np.ndarray, seed: int) -> np.ndarray:
    """Records picked one draw after the other."""
    picked = np.random.default_rng(seed).integers(0, len(values), (DRAWS, len(values)))
    return np.stack([np.nanmean(values[rows], axis=0) for rows in picked])


@pytest.mark.parametrize("at_once", [metrics.AT_ONCE, 100])
def test_equals_numpy(cases: pd.DataFrame, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws of metrics rather than of records, NaN counted as zero, blocks that draw the same records again; S is the
    harmonic mean of the means, not the mean of harmonic means, and so are its draws."""
    monkeypatch.setattr(metrics, "AT_ONCE", at_once)
    values = cases.to_numpy()
    table = summarise(cases, list(cases), DRAWS, 3).set_index("metric")
    assert list(table.index) == ["S", "ES", "PS", "NS", "NKL"]
    means, draws, times = np.nanmean(values, axis=0), by_hand(values, 3), np.array([100, 100, 100, 100, 1])
    both = [np.column_stack([3 / (1 / some[..., :3]).sum(-1), some]) for some in (means[None], draws)]
    assert allclose(table["mean"], both[0][0] * times, 1e-12)
    assert allclose(table[["low", "high"]].T, np.quantile(both[1], (0.025, 0.975), axis=0) * times, 1e-12)
    assert list(table["n"]) == [25, 30, 30, 25, 30]


def test_harmonic() -> None:
    """One score of zero makes S zero, one that is missing makes it missing; ROME on GPT-2 XL as its paper has it."""
    assert list(harmonic(np.array([[0.0, 1.0, 1.0], [0.5, 1.0, 1.0]]))) == [0.0, 0.75]
    assert np.isnan(harmonic(np.array([np.nan, 0.0, 1.0])))
    assert allclose(harmonic(np.array([100.0, 96.4, 75.4])), 89.2, 1e-3)


def test_missing() -> None:
    """A metric without records, or an interval of one, must say so."""
    table = summarise(pd.DataFrame({"ES": [np.nan, 1.0], "PS": [np.nan, np.nan]}), ["ES", "PS"], 50, 0)
    assert list(table["n"]) == [1, 0]
    assert table["mean"].iloc[0] == 100.0
    assert table[["low", "high"]].isna().all(axis=None)
    assert np.isnan(table["mean"].iloc[1])
    assert summarise(pd.DataFrame(), [], 50, 0).empty


def test_differences(cases: pd.DataFrame) -> None:
    """Records of one side only would make a difference out of what was left out; unpaired draws a wide interval."""
    other = cases - 0.1
    other.loc[3, "ES"] = np.nan
    table = summarise(cases, list(cases), DRAWS, 1, minus=other).set_index("metric")
    for name in ("ES", "PS", "NS"):
        assert allclose(table.loc[name, ["mean", "low", "high"]].astype(float), [10.0] * 3, 1e-9)
    assert list(table["n"]) == [25, 29, 30, 25, 30]
    assert table.loc["S", "low"] < table.loc["S", "mean"] < table.loc["S", "high"]


def test_scores_by_the_first_token_and_the_whole_string_have_their_own_mean() -> None:
    """S of another variant, or of parts that were not measured."""
    cases = pd.DataFrame({"ES": [1.0, 1.0], "PS": [1.0, 1.0], "NS": [1.0, 0.0], "ES_sum": [1.0, 1.0]})
    cases = cases.assign(PS_sum=[0.5, 0.5], NS_sum=[0.5, 0.5])
    means = summarise(cases, list(cases), 10, 0).set_index("metric")["mean"]
    assert allclose(means["S"], 75.0, 1e-9)
    assert allclose(means["S_sum"], 60.0, 1e-9)
    assert "S_first" not in means


def test_choice() -> None:
    """An order that depends on how they were asked for, or S without its parts, would make other tables."""
    assert check_metrics(["NS", "ES"]) == ("ES", "NS")
    assert check_metrics("S") == ("ES", "PS", "NS")
    assert check_metrics(None) == tuple(name for name, metric in METRICS.items() if not metric.written)
    assert check_metrics(None, True) == tuple(METRICS)
    for wrong, named in ((["ESS"], "NS_plus"), ([], "metrics")):
        with refuses(InputError, ValueError, named):
            check_metrics(wrong)


def test_every_kind_of_probe_has_a_metric() -> None:
    assert {metric.asks for metric in METRICS.values()} >= set(KINDS)


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
    with refuses(InputError, ValueError, "'alphaedit'", "'memit'"):
        scores.of("alphaedit")


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
    # What the table shows and the file lacks would have to be typed off.
    assert [row for row in found["means"] if row["editor"] != "(unedited)"] == plain(scores.summary)
    assert [row["metric"] for row in found["means"] if row["editor"] == "(unedited)"] == ["ES"]
    rome = scores.summary.query("editor == 'rome'").set_index("metric")["mean"]
    assert scores.verdict.startswith(f"With rome, the new target is likelier than the true one after {rome['ES']:.1f}%")
    assert scores.verdict.endswith("1 edit not made or not reached.")
    five = Scores(pd.concat([scores.of("rome").assign(editor=f"e{i}") for i in range(5)]), {}, scores.provenance)
    assert five.verdict == f"Of 5 editors e0 has the best score S, {rome['S']:.1f}."
    lines = printed(scores.sheet(full=True))
    at = lines.index("Scores, in percent")
    assert lines[at + 1].split()[:3] == ["editor", "n", "S"]
    for part in ("\n(unedited)", "\nrome", "\nBy relation", "NKL"):
        assert part in "\n".join(lines)
    assert "By relation" not in "\n".join(printed(scores.sheet()))
    means = scores.relations.query("editor == 'memit' and relation == 'r0'").set_index("metric")["mean"]
    (row,) = [line.split() for line in lines if line.split()[:2] == ["r0", "memit"]]
    assert row[2:5] == ["1", f"{means['S']:.1f}", f"{means['ES']:.1f}"]


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
    (table,) = score_tables(frame, "editor", (tuple(SHOWN), "scores", "of each"), (("EM",), "nothing", "")).values()
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
    (table,) = score_tables(frame, "layer", (("ES", "NS_plus"), "", "")).values()
    assert printed(table)[0].split() == ["layer", "n", "ES", "NS+"]
    assert ["2", "1", "–", "3.0"] in [line.split() for line in printed(table)]


def test_too_few_for_an_interval(scores: Scores) -> None:
    """Draws of two facts gave an interval as of two hundred."""
    two = Scores(scores.cases[scores.cases["id"].isin(list(scores.of()["id"])[:2])], {}, scores.provenance, draws=50)
    five = pd.concat([scores.of().assign(id=f"{i}") for i in range(2)]).head(5)
    note = "no interval over fewer than 5 facts"
    assert two.summary["mean"].notna().any()
    assert two.summary[["low", "high"]].isna().all(axis=None)
    assert note in " ".join(printed(two.sheet()))
    rest = Scores(five, {}, scores.provenance, draws=50)
    assert rest.summary.set_index("metric").loc["ES", ["low", "high"]].notna().all()
    assert note not in " ".join(printed(rest.sheet()))
