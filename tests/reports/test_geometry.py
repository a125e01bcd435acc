"""What notebooks show of a geometry."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ffnmem as fm
from ffnmem.reports.geometry import PAIRS, geometry_html, side_rows
from ffnmem.semantics.geometry import Geometry

from .page import Page


@pytest.fixture(scope="module")
def found(tiny: fm.Model) -> Geometry:
    return fm.geometry(tiny, threshold=0.5)


def test_numbers_and_provenance(found: Geometry) -> None:
    page = Page(found._repr_html_())
    heads = [place for place, row in enumerate(page.tables["fm-table"]) if row[0].text in ("layer", "by")]
    sides, layers, pairs = (
        page.tables["fm-table"][start + 1 : end] for start, end in zip(heads, [*heads[1:], None], strict=True)
    )
    assert [(row[0].text, row[1].text) for row in sides] == [(str(n), s) for n in (0, 1) for s in ("keys", "values")]
    for row, expected in zip(sides, side_rows(found), strict=True):
        assert row[2].text == f"{expected.rms:.3f}"
        assert row[7].text == expected.pair
        assert row[10].text == f"{expected.capacity:.1%}"
    for row, beyond in zip(layers, found.layers["io_beyond"], strict=True):
        assert row[4].text == f"{beyond:.1%}"
    assert found.duplicates is not None
    assert len(pairs) == (found.duplicates["rank"] <= PAIRS).sum() < len(found.duplicates)
    assert f"{found.duplicate_total('value'):,} by values" in page.words
    assert found.provenance.fingerprint in page.words


def test_rows_are_the_tables(found: Geometry) -> None:
    first = side_rows(found)[0]
    row = found.layers.iloc[0]
    assert (first.layer, first.side) == (0, "keys")
    assert first.chance == row["key_matched_q999"]
    assert first.chance_largest == abs(row["key_matched_max"])
    assert first.random_rank == row["key_isotropic_entropy_rank"]
    assert first.pair == f"{row['key_max_neuron']:.0f}, {row['key_max_other']:.0f}"


def test_without_duplicates_and_with_a_hostile_name(found: Geometry) -> None:
    provenance = replace(found.provenance, model="<script>alert(1)</script>")
    html = geometry_html(replace(found, duplicates=None, duplicate_counts=None, threshold=None, provenance=provenance))
    assert "<script" not in html
    assert "Near-duplicate" not in html
    none = found.duplicates.iloc[:0] if found.duplicates is not None else None
    assert "Near-duplicate" in geometry_html(replace(found, duplicates=none))
