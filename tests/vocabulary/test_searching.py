"""Words in projections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError

from ..helpers import refuses


@pytest.fixture(scope="module")
def table(tiny: fm.Model) -> pd.DataFrame:
    return fm.project(tiny, k=20)


def test_finds_what_a_plain_filter_finds(tiny: fm.Model, table: pd.DataFrame, tmp_path: Path) -> None:
    """File and table alike: every row with the text in its token, whatever its case, and no other."""
    out = fm.project(tiny, k=20, out=tmp_path / "values.parquet")
    expected = table[table["token"].astype(str).str.lower().str.contains("the", regex=False)]
    assert set(expected["token"]) >= {"The", " the"}
    for source in (table, fm.project(tiny, 0, k=20), out, str(out)):
        found = fm.vocabulary.search_projection(source, "tHE")
        if not isinstance(source, pd.DataFrame) or source is table:
            assert len(found) == len(expected)
            assert sorted(found["score"]) == sorted(expected["score"])
        assert found["token"].str.lower().str.contains("the").all()
        assert found.attrs["provenance"] == table.attrs["provenance"]


def test_best_rank_first(table: pd.DataFrame) -> None:
    """The strongest at the top, so that a limit cuts the weakest."""
    found = fm.vocabulary.search_projection(table, "a")
    assert found["rank"].is_monotonic_increasing
    first = found[found["rank"] == found["rank"].iloc[0]]
    assert first["score"].abs().is_monotonic_decreasing
    pd.testing.assert_frame_equal(fm.vocabulary.search_projection(table, "a", limit=7), found.head(7))


def test_exact_side_and_sign(table: pd.DataFrame) -> None:
    """Its leading space and its case count."""
    assert set(fm.vocabulary.search_projection(table, " the", exact=True)["token"]) == {" the"}
    assert fm.vocabulary.search_projection(table, " THE", exact=True).empty
    found = fm.vocabulary.search_projection(table, "a", side="key", sign="suppressed")
    assert set(zip(found["side"], found["sign"], strict=True)) == {("key", "suppressed")}


def test_letters_beyond_ascii_and_signs(table: pd.DataFrame) -> None:
    """The text is a text, not a pattern; É is é."""
    frame = table.head(3).assign(token=["École", "a.b", "ab"])
    assert fm.vocabulary.search_projection(frame, "école")["token"].tolist() == ["École"]
    assert fm.vocabulary.search_projection(frame, "A.B")["token"].tolist() == ["a.b"]
    assert fm.vocabulary.search_projection(frame, "(").empty


def test_what_cannot_be_searched(table: pd.DataFrame) -> None:
    cut = table.drop(columns=["token_id", "score"])
    refused: list[tuple[pd.DataFrame, str, dict[str, Any], str]] = [
        (table, "", {}, "empty"),
        (cut, "a", {}, "column token_id, score"),
        (table, "a", {"side": "both"}, "'both'"),
        (table, "a", {"sign": "up"}, "'up'"),
        (table, "a", {"limit": 0}, "limit"),
    ]
    for source, text, options, named in refused:
        with refuses(InputError, ValueError, named):
            fm.vocabulary.search_projection(source, text, **options)
