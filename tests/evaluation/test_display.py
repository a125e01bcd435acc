"""What is shown of scores."""

from __future__ import annotations

import math

import pandas as pd

from ffnmem.evaluation import Scores
from ffnmem.evaluation.display import curve_html, figure, summary_html


def test_line(scores: Scores) -> None:
    """A repr that does not say what failed, or fills a screen."""
    found = repr(scores)
    assert "\n" not in found
    assert all(word in found for word in ("rome S", "memit S", "4 facts", "1 failures"))


def test_html(scores: Scores) -> None:
    """Text of a fact that a page would run; a metric nobody measured as a column."""
    found = scores._repr_html_()
    assert "too &lt;large&gt;" in found
    assert "<b>" not in found
    assert "loss" not in found
    assert "NKL" in found


def test_figure() -> None:
    """Small numbers that would round to nothing; a missing one that looks like zero."""
    assert figure("ES", 91.26, 80.04, 95.0) == '91.3 <span class="fm-soft">(80.0 to 95.0)</span>'
    assert figure("drift_kl", 0.0042, math.nan, math.nan) == "0.004"
    assert figure("ES", math.nan, math.nan, math.nan) == "–"


def test_tables() -> None:
    """A row whose first metric is missing must not shift the others."""
    frame = pd.DataFrame(
        [(1, "ES", 1.0), (1, "NS_plus", math.nan), (2, "ES", math.nan), (2, "NS_plus", 3.0)],
        columns=["layer", "metric", "mean"],
    ).assign(low=math.nan, high=math.nan, n=1)
    found = summary_html(frame, "layer")
    assert "<th>layer</th><th>ES</th><th>NS+</th>" in found
    assert "<th>2</th><td>–</td><td>3.0</td>" in found
    assert "&lt;i&gt;" in curve_html("<i>", frame, "layer", {"a": 1})
