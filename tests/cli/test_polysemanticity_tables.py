"""The survey on a terminal."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rich.cells import cell_len
from rich.console import Console

import ffnmem as fm
from ffnmem.cli.polysemanticity_tables import MEANINGS, count_table, neuron_table, print_meanings, print_survey
from ffnmem.scanning import Store, open_store
from ffnmem.semantics.meanings import Meanings
from tests.reports.hostile import HOSTILE, UNSEEN


@pytest.fixture(scope="module")
def store(tiny: fm.Model, tiny_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    found = open_store(shutil.copytree(tiny_store.folder, tmp_path_factory.mktemp("tables") / "tiny"))
    fm.polysemanticity(found, tiny, sign="both", draws=20)
    return found


@pytest.fixture(scope="module")
def found(store: Store) -> Meanings:
    return fm.meanings(store, 1, 5)


def console() -> Console:
    return Console(file=io.StringIO(), width=80, highlight=False, markup=False, emoji=False)


def text(out: Console) -> str:
    shown = str(out.file.getvalue())  # type: ignore[attr-defined]
    assert max(cell_len(line) for line in shown.splitlines()) <= 80
    return shown


def many(found: Meanings, n: int) -> Meanings:
    columns = {"meaning": np.arange(n), "share": 1 / n, "examples": 2, "strongest": 1.0, "tokens": "x"}
    triggers = tuple((f" t{i}",) for i in range(n))
    rows = found.estimates.copy()
    rows.loc[0, ["value", "low", "high"]] = [5.0, 4.0, 6.0]
    return replace(found, table=pd.DataFrame(columns), triggers=triggers, estimates=rows)


def test_counts_are_the_tables(store: Store) -> None:
    table = fm.polysemanticity(store, sign="both", draws=20)
    out = console()
    out.print(count_table(table))
    lines = [line.split() for line in text(out).splitlines()]
    for layer in (0, 1):
        dead = int(store.stats(layer)["dead"].sum())
        row = next(line for line in lines if line[:2] == [str(layer), "positive"])
        assert row[2] == "64"
        assert str(dead) in row
    assert any(line[:2] == ["all", "256"] for line in lines)
    assert "fewer than 8 examples" in " ".join(text(out).split())


def test_a_line_a_meaning(found: Meanings) -> None:
    out = console()
    out.print(neuron_table("polysemantic", [many(found, MEANINGS + 2)]))
    lines = [line.split() for line in text(out).splitlines()]
    first = next(i for i, line in enumerate(lines) if line[:1] == ["1.5"])
    assert lines[first] == ["1.5", "5.00", "4.00", "to", "6.00", "12", "17%", "·t0"]
    assert lines[first + 1] == ["17%", "·t1"]
    assert lines[first + MEANINGS] == ["33%", "in", "2", "more"]


def test_a_neuron_without_meanings(found: Meanings) -> None:
    out = console()
    rows = found.estimates.assign(value=np.nan, low=np.nan, high=np.nan)
    out.print(neuron_table("dead", [replace(found, table=found.table.iloc[:0], triggers=(), estimates=rows)]))
    assert ["1.5", "–", "0"] in [line.split() for line in text(out).splitlines()]


def test_nothing_to_list_is_said(store: Store) -> None:
    table = fm.polysemanticity(store, draws=20)
    out = console()
    print_survey(out, table, table.iloc[:0], [])
    assert "no neuron to list" in text(out)


def test_hostile_tokens(found: Meanings) -> None:
    bad = replace(many(found, 1), triggers=((HOSTILE,),))
    out = console()
    out.print(neuron_table("polysemantic", [bad]))
    print_meanings(out, [replace(bad, examples=found.examples.iloc[:0], windows=())])
    assert not set(UNSEEN) & set(text(out))
