"""What is shown of scores."""

from __future__ import annotations

import math

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.json_values import plain
from ffnmem.evaluation import Scores
from ffnmem.evaluation.scores import digits_of, figure, score_tables, span

from ..helpers import printed
from .test_scores import made_scores


@pytest.fixture(scope="module")
def scores(tiny: fm.Model) -> Scores:
    return made_scores(tiny)


def test_line(scores: Scores) -> None:
    """A repr that does not say what failed, or fills a screen."""
    found = repr(scores)
    assert "\n" not in found
    assert all(word in found for word in ("rome S", "memit S", "4 facts", "1 failures"))


def test_sheet(scores: Scores) -> None:
    """Each editor beside the unedited model; a metric nobody measured is no column; text of a fact is only text."""
    lines = printed(scores.sheet(relations=True, kept="runs/a"))
    assert lines[0] == "scores, in percent"
    assert lines[1].split()[:3] == ["editor", "n", "S"]
    text = "\n".join(lines)
    for part in ("\n(unedited)", "\nrome", "\nby relation", "1 edit was not made", "kept in  runs/a", "NKL"):
        assert part in text
    html = scores._repr_html_()
    assert "too &lt;large&gt;" in html
    assert "by relation" not in html


def test_the_unedited_model_is_in_the_data(scores: Scores) -> None:
    """What the table shows and the file lacks would have to be typed off."""
    found = scores.to_dict()["summary"]
    assert [row for row in found if row["editor"] != "(unedited)"] == plain(scores.summary)
    assert [row["metric"] for row in found if row["editor"] == "(unedited)"] == ["ES"]
    assert list(found[0]) == list(scores.summary)


def test_brief(scores: Scores) -> None:
    assert set(scores.to_dict()) - set(scores.brief()) == {"cases", "relations"}


@pytest.mark.parametrize(
    ("name", "value", "fine", "text"),
    [
        ("ES", 98.75, True, "98.8"),
        ("ES", 98.75, False, "99"),
        ("NKL", 0.926, True, "0.93"),
        ("change", 0.1234, True, "0.123"),
        ("drift_kl", 0.000123, True, "1.2e-04"),
        ("drift_kl", 0.0, True, "0"),
        ("drift_perplexity", 1.00047, True, "1.0005"),
        ("drift_perplexity", 31556197.1, True, "3.2e+07"),
        ("ES", math.inf, True, "–"),
    ],
)
def test_digits(name: str, value: float, fine: bool, text: str) -> None:
    """As many as mean something, and never so many that a table breaks."""
    assert digits_of(name, value, fine) == text


def test_how_many_facts() -> None:
    """Not all facts have neighbours: one number would claim so."""
    assert (span([3, 3]), span([1200, 900]), span([])) == ("3", "900–1,200", "–")


def summary(**means: float) -> pd.DataFrame:
    rows = [("rome", name, mean, mean - 1, mean + 1, 5) for name, mean in means.items()]
    return pd.DataFrame(rows, columns=["editor", "metric", "mean", "low", "high", "n"])


def test_figures() -> None:
    rows = summary(ES=98.0, PS=math.nan).set_index("metric")
    assert [[span.text for span in line] for line in figure(rows, "ES")] == [["98.0"], ["97–99"]]
    assert figure(rows, "PS") == figure(rows, "NS")
    assert figure(rows, "PS")[0][0].text == "–"


def test_only_what_was_measured() -> None:
    (table,) = score_tables(
        summary(ES=98.0, PS=math.nan), "editor", (("ES", "PS", "NS"), "scores", "of each"), (("NKL",), "nothing", "")
    )
    assert [column.name for column in table.columns] == ["editor", "n", "ES"]
    assert (table.title, table.caption) == ("scores", "of each")


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
