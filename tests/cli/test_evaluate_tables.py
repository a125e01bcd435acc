"""What the terminal shows of scores."""

from __future__ import annotations

import pandas as pd
import pytest

from ffnmem.cli.evaluate_tables import figure, score_table, span, written


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
    ],
)
def test_digits(name: str, value: float, fine: bool, text: str) -> None:
    """As many as mean something, and never so many that a table breaks."""
    assert written(name, value, fine) == text


def test_how_many_facts() -> None:
    """Not all facts have neighbours: one number would claim so."""
    assert (span([3, 3]), span([1200, 900]), span([])) == ("3", "900–1,200", "–")


def summary(**means: float) -> pd.DataFrame:
    rows = [("rome", name, mean, mean - 1, mean + 1, 5) for name, mean in means.items()]
    return pd.DataFrame(rows, columns=["editor", "metric", "mean", "low", "high", "n"])


def test_figures() -> None:
    rows = summary(ES=98.0, PS=float("nan")).set_index("metric")
    assert figure(rows, "ES").plain == "98.0\n97–99"
    assert figure(rows, "PS").plain == figure(rows, "NS").plain == "–"


def test_only_what_was_measured() -> None:
    table = score_table(summary(ES=98.0, PS=float("nan")), "editor", ("ES", "PS", "NS"), "scores")
    assert table is not None
    assert [str(column.header) for column in table.columns] == ["editor", "n", "ES"]
    assert score_table(summary(PS=float("nan")), "editor", ("PS",), "scores") is None
