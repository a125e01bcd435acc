"""Meanings on a terminal."""

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
from ffnmem.cli.meaning_tables import headline, meanings_table, measures_table
from ffnmem.reports.meanings import meanings_card
from ffnmem.scanning import Store, open_store
from ffnmem.scanning.contexts import Window
from ffnmem.semantics.meanings import Meanings
from tests.reports.hostile import HOSTILE, UNSEEN


@pytest.fixture(scope="module")
def found(tiny: fm.Model, tiny_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Meanings:
    store = open_store(shutil.copytree(tiny_store.folder, tmp_path_factory.mktemp("meanings") / "tiny"))
    return fm.meanings(store, 1, 5, tiny, draws=20)


def printed(found: Meanings, width: int = 80, listed: int = 5) -> str:
    out = Console(file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False)
    out.print(meanings_table(meanings_card(found, listed), out))
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert max(cell_len(line) for line in text.splitlines()) <= width
    return str(text)


def two(found: Meanings) -> Meanings:
    """Two meanings, 75% and 25%, an example each."""
    table = pd.DataFrame(
        {"meaning": [0, 1], "share": [0.75, 0.25], "examples": [1, 1], "strongest": [3.0, 1.0], "tokens": "x"}
    )
    rows = pd.concat([found.examples.head(1)] * 2, ignore_index=True)
    rows = rows.assign(meaning=[0, 1], rank=1, activation=[3.0, 1.0])
    return replace(found, table=table, examples=rows, windows=found.windows[:1] * 2, triggers=((" one",), (" two",)))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_shares_tokens_and_contexts(found: Meanings, width: int) -> None:
    lines = printed(two(found), width).splitlines()
    assert lines[0].startswith(found.verdict.capitalize())
    assert [line.split()[:2] for line in lines[2::2]] == [["75%", "·one"], ["25%", "·two"]]
    assert [line.split()[0] for line in lines[3::2]] == ["3.000", "1.000"]
    assert all(line.count("«") == 1 for line in lines[3::2])


def test_what_is_hidden_is_said(found: Meanings) -> None:
    assert "and 1 more with 25% of the activation" in printed(two(found), listed=1)


def test_headline(found: Meanings) -> None:
    rows = found.estimates.copy()
    rows.loc[0, ["value", "low", "high"]] = [2.0, 1.5, 3.0]
    said = headline(meanings_card(replace(two(found), estimates=rows, verdict="polysemantic", why=""))).plain
    assert said == "Polysemantic: 2.00 meanings, 95% 1.50 to 3.00\n2 examples, alike ones together"
    rows.loc[0, "value"] = np.nan
    none = replace(found, table=found.table.iloc[:0], estimates=rows, verdict="dead", why="", sign="negative")
    assert headline(meanings_card(none)).plain == "Dead where its coefficient is negative\nno examples"


def test_measures(found: Meanings) -> None:
    table = measures_table(found)
    assert [str(cell) for cell in table.columns[0].cells] == ["meanings", "clusters", "ms", "trigger tokens"]
    assert str(next(iter(table.columns[1].cells))) in (f"{found.number[0]:.2f}", "–")


def test_hostile_text_cannot_move_the_cursor(found: Meanings) -> None:
    plain = two(found)
    window = Window((HOSTILE, HOSTILE, HOSTILE), 1, True, True)
    hostile = printed(replace(plain, windows=(window,) * 2, triggers=((HOSTILE,),) * 2))
    assert not set(UNSEEN) & set(hostile)
    assert len(hostile.splitlines()) == len(printed(plain).splitlines())
