"""What notebooks show of a geometry."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.reports.geometry import ALIGNED, PAIRS, cosine_rows, geometry_html, side_rows
from ffnmem.semantics.geometry import Geometry
from tests.semantics.gated import GATED, made

from .page import Page


@pytest.fixture(scope="module", params=["gpt2", *GATED])
def found(request: pytest.FixtureRequest, tokenizer: Any) -> Geometry:
    return fm.geometry(made(request.param, tokenizer), threshold=0.5)


def test_numbers_and_provenance(found: Geometry) -> None:
    page = Page(found._repr_html_())
    heads = [place for place, row in enumerate(page.tables["fm-table"]) if row[0].text in ("layer", "by")]
    sides, layers, pairs = (
        page.tables["fm-table"][start + 1 : end] for start, end in zip(heads, [*heads[1:], None], strict=True)
    )
    names, gated = [f"{side}s" for side in found.sides], int("gate" in found.sides)
    assert [(row[0].text, row[1].text) for row in sides] == [(str(n), name) for n in (0, 1) for name in names]
    for row, expected in zip(sides, side_rows(found), strict=True):
        assert row[2].text == f"{expected.rms:.3f}"
        assert row[7].text == expected.pair
        assert row[10].text == f"{expected.capacity:.1%}"
    beyond = [(name, value) for line in found.layers.to_dict("records") for name, value in shares(found, line)]
    for row, (name, share) in zip(layers, beyond, strict=True):
        assert row[4 + gated].text == f"{share:.1%}"
        assert not gated or row[1].text == ALIGNED[name]
    assert f"in {found.dimensions} dimensions" in page.words
    assert found.duplicates is not None
    assert len(pairs) == (found.duplicates["rank"] <= PAIRS).sum() < len(found.duplicates)
    assert f"{found.duplicate_total('value'):,} by values" in page.words
    assert (f"{found.duplicate_total('gate'):,} by gates" in page.words) == bool(gated)
    best = found.duplicates.iloc[0]
    cosines = [best[f"{side}_cosine"] for side in found.sides]
    assert [cell.text for cell in pairs[0]][4:] == [f"{cosine:+.3f}".replace("-", "−") for cosine in cosines]
    assert found.provenance.fingerprint in page.words


def shares(found: Geometry, line: dict[Hashable, Any]) -> list[tuple[str, float]]:
    return [(name, line[f"{name}_beyond"]) for name in found.alignments]


def test_cosine_rows_are_the_tables(found: Geometry) -> None:
    for name in found.alignments:
        second, row = cosine_rows(found, name)[1], found.layers.iloc[1]
        assert (second.layer, second.of) == (1, ALIGNED[name])
        assert (second.median, second.low, second.high) == tuple(row[f"{name}_{part}"] for part in ("q50", "q5", "q95"))
        assert (second.chance_low, second.above) == (row[f"{name}_null_low"], row[f"{name}_strengthening"])


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
