"""Counts of verdicts, and which neurons are the clearest."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.core.types import VERDICTS
from ffnmem.neurons import Meanings
from ffnmem.neurons.survey import MEANINGS, Survey, clearest, count_table, neuron_table, verdict_counts
from ffnmem.scanning import Store, open_store

from ..helpers import printed, refuses

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
    assert counts.columns.tolist() == ["layer", "sign", "neurons", *VERDICTS]
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
    assert not len(clearest(table, "inactive"))


def test_mistakes(table: pd.DataFrame) -> None:
    with refuses(InputError, ValueError, "verdict", "'odd'", "'unclear'"):
        clearest(table, "odd")
    with refuses(InputError, ValueError, "top", "0"):
        clearest(table, "inactive", 0)
    with refuses(InputError, ValueError, "meanings_low", "polysemanticity"):
        verdict_counts(table.drop(columns="meanings_low"))


@pytest.fixture(scope="module")
def store(tiny: fm.Model, tiny_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    found = open_store(shutil.copytree(tiny_store.folder, tmp_path_factory.mktemp("tables") / "tiny"))
    fm.polysemanticity(found, tiny, sign="both", draws=20)
    return found


def many(found: Meanings, n: int) -> Meanings:
    columns = {"meaning": np.arange(n), "share": 1 / n, "examples": 2, "strongest": 1.0, "tokens": "x"}
    rows = found.estimates.copy()
    rows.loc[0, ["value", "low", "high"]] = [5.0, 4.0, 6.0]
    triggers = tuple((f" t{i}",) for i in range(n))
    return replace(found, table=pd.DataFrame(columns), triggers=triggers, estimates=rows)


def test_counts_by_layer_and_why_some_are_unclear(store: Store) -> None:
    shown = count_table(fm.polysemanticity(store, sign="both", draws=20))
    for layer in (0, 1):
        (row,) = (row for row in shown.rows if row[:2] == (str(layer), "positive"))
        assert row[2] == 64
        dead = int(store.stats(layer)["dead"].sum())
        assert row[-1] == (f"{dead:,} {dead / 64:>4.0%}" if dead else None)
    assert shown.rows[-1][:3] == ("all", None, 256)
    assert "fewer than 8 examples" in shown.caption


def test_a_row_a_meaning(store: Store) -> None:
    found = many(fm.meanings(store, 1, 5), MEANINGS + 2)
    lines = [line.split() for line in printed(neuron_table("polysemantic", [found]), 80)]
    first = next(i for i, line in enumerate(lines) if line[:1] == ["1.5"])
    assert lines[first] == ["1.5", "5.00", "4.00", "to", "6.00", "12", "17%", "·t0"]
    assert lines[first + 1] == ["17%", "·t1"]
    assert lines[first + MEANINGS] == ["33%", "in", "2", "more"]
    rows = found.estimates.assign(value=np.nan, low=np.nan, high=np.nan)
    none = replace(found, table=found.table.iloc[:0], triggers=(), estimates=rows)
    assert ["1.5", "–", "0"] in [line.split() for line in printed(neuron_table("inactive", [none]))]


def test_a_survey_lists_by_verdict(store: Store) -> None:
    frame = fm.polysemanticity(store, draws=20)
    listed = clearest(frame, "unclear", 2)
    found = [fm.meanings(store, row.layer, row.neuron) for row in listed.itertuples()]
    survey = Survey(frame, listed, found)
    assert "the clearest unclear neurons" in printed(survey.sheet())
    assert [one["verdict"] for one in survey.to_dict()["neurons"]] == ["unclear"] * 2
    assert any("no neuron to list" in line for line in printed(Survey(frame, frame.iloc[:0], []).sheet()))
    assert f"{len(frame)} neurons: " in repr(survey)
