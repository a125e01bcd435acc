"""Counts of verdicts, and which neurons are the clearest."""

from __future__ import annotations

import pandas as pd
import pytest

from ffnmem.errors import InputError
from ffnmem.semantics.tallying import clearest, verdict_counts
from tests.helpers import refuses

ROWS = [
    (0, 0, "positive", 30, "monosemantic", 1.0, 1.0, 0.3),
    (0, 1, "positive", 30, "monosemantic", 1.0, 1.2, 0.9),
    (0, 2, "positive", 30, "monosemantic", 1.0, 1.0, 0.6),
    (1, 0, "positive", 30, "polysemantic", 2.0, 4.0, 0.1),
    (1, 1, "positive", 30, "polysemantic", 5.0, 9.0, 0.1),
    (1, 2, "positive", 9, "unclear", 1.0, 2.0, 0.1),
    (1, 2, "negative", 39, "unclear", 1.0, 2.0, 0.1),
]


@pytest.fixture
def table() -> pd.DataFrame:
    columns = ["layer", "neuron", "sign", "examples", "verdict", "meanings_low", "meanings_high", "ms_low"]
    return pd.DataFrame(ROWS, columns=columns)


def test_counts(table: pd.DataFrame) -> None:
    counts = verdict_counts(table)
    assert counts.columns.tolist() == [
        "layer",
        "sign",
        "neurons",
        "monosemantic",
        "polysemantic",
        "unclear",
        "dead",
    ]
    assert counts.to_numpy().tolist() == [
        [0, "positive", 3, 3, 0, 0, 0],
        [1, "positive", 3, 0, 2, 1, 0],
        [1, "negative", 1, 0, 0, 1, 0],
    ]


def test_the_clearest_come_first(table: pd.DataFrame) -> None:
    """By the end of the interval that is nearer to the other verdict."""
    assert clearest(table, "monosemantic")["neuron"].tolist() == [2, 0, 1]
    assert clearest(table, "polysemantic")["neuron"].tolist() == [1, 0]
    assert clearest(table, "unclear")["sign"].tolist() == ["negative", "positive"]
    assert clearest(table, "monosemantic", 1)["neuron"].tolist() == [2]
    assert not len(clearest(table, "dead"))


def test_mistakes(table: pd.DataFrame) -> None:
    with refuses(InputError, ValueError, "verdict", "'odd'", "'unclear'"):
        clearest(table, "odd")
    with refuses(InputError, ValueError, "top", "0"):
        clearest(table, "dead", 0)
    with refuses(InputError, ValueError, "meanings_low", "polysemanticity"):
        verdict_counts(table.drop(columns="meanings_low"))
