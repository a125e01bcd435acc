"""The whole protocol on a tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure as Canvas

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.scanning import Store
from ffnmem.studies import Study, geva2021

from ..helpers import draw_whole, refuses
from .made import SMALL

FEW: dict[str, Any] = SMALL["geva2021"]


@pytest.fixture(scope="module")
def found(tiny: fm.Model, tiny_store: Store) -> Study:
    return geva2021.study(tiny, tiny_store, seed=2, **FEW)


def test_summary_is_taken_from_the_tables(found: Study) -> None:
    summary = found.table("summary").set_index("layer")
    changes = found.table("changes").set_index(["layer", "removed"])["change"]
    updates = found.table("updates").set_index(["layer", "measure", "share"])["needed_50"]
    for layer in range(2):
        row = summary.loc[layer]
        for name in ("first", "random", "last"):
            assert row[f"without_{name}"] == changes[layer, name]
        for share in (0.5, 0.8, 0.95):
            assert row[f"updates_{100 * share:.0f}"] == updates[layer, "output", share]
        assert row["agreement"] == found.table("agreement")["agreement"][layer]
        assert row["zero_agreement"] == found.table("composition")["zero_agreement"][layer]
        assert row["match"] == found.table("refinement")["match"][layer]
        assert row[[f"case_{c}" for c in ("residual", "agreement", "composition", "ffn")]].sum() == pytest.approx(1)
    above = (found.table("confident")["layer"] == 1).sum()
    assert f": {above} in layers 1 to 1, " in found.found["confident values"]  # of two layers the upper one
    composition = found.table("composition")
    agrees = composition["positions"] * (1 - composition["zero_agreement"])
    for name, says in (("frequent_share", "predict"), ("short_share", "have a prefix")):
        share = np.average(composition[name].fillna(0), weights=agrees)
        assert f"{share:.0%} {says}" in found.found["where memories agree"]


def test_the_same_call_gives_the_same(found: Study, tiny: fm.Model, tiny_store: Store) -> None:
    again = geva2021.study(tiny, tiny_store, seed=2, **FEW)
    for mine, theirs in zip(again.tables, found.tables, strict=True):
        pd.testing.assert_frame_equal(mine.frame, theirs.frame)
    other = geva2021.study(tiny, tiny_store, seed=3, **FEW)
    assert not other.table("refinement").equals(found.table("refinement"))
    # Of all keys, and so without a choice:
    names = ["layer", "keys", "agreement", "rank_50"]
    pd.testing.assert_frame_equal(other.table("agreement")[names], found.table("agreement")[names])


def test_basis_is_what_it_says(found: Study, tiny: fm.Model, tiny_store: Store) -> None:
    raw = geva2021.study(tiny, tiny_store, seed=2, basis="raw", **FEW)
    assert raw.provenance["basis"] == "raw"
    assert not raw.table("agreement").equals(found.table("agreement"))
    assert raw.table("changes").equals(found.table("changes"))
    residual = ["layer", "match", "probability"]  # read through the final norm, whatever the basis
    pd.testing.assert_frame_equal(raw.table("refinement")[residual], found.table("refinement")[residual])


def scanned(tiny: fm.Model, folder: Path, texts: list[str], context: int) -> Store:
    (folder / "corpus.txt").write_text("\n\n".join(texts), "utf-8")
    return fm.scan(tiny, folder / "corpus.txt", folder / "store", k=2, context=context)


@pytest.mark.parametrize(
    ("texts", "context", "named"),
    [
        (["The city of Paris is in France"], 32, ("1 sequence with text", "more text")),
        (["a", "b"] * 4, 32, ("longest sequence", "1 token,", "3")),
        (["The city of Paris is in France"] * 3, 3, ("longest sequence", "2 tokens,", "longer context")),
    ],
)
def test_a_corpus_too_small(
    texts: list[str], context: int, named: tuple[str, ...], tiny: fm.Model, tmp_path: Path
) -> None:
    """One line that says what is too small and what would do, before the work."""
    store = scanned(tiny, tmp_path, texts, context)
    with refuses(InputError, ValueError, *named, str(store.folder)):
        geva2021.study(tiny, store, **FEW)


def test_as_small_as_can_be(tiny: fm.Model, tmp_path: Path) -> None:
    """A few sequences of three tokens: every table is there, and every figure can be drawn."""
    store = scanned(tiny, tmp_path, ["The city of", "of city The"], 4)
    found = geva2021.study(tiny, store, keys=64, prefixes=2)
    assert set(found.table("composition")["positions"]) == {len(store.sequences)}
    assert len(store.sequences) <= 3
    for figure in found.figures:
        draw_whole(figure.draw(found, Canvas().add_subplot()))


def test_one_position_and_more_than_there_is(tiny: fm.Model, tiny_store: Store) -> None:
    """One is given without the numbers that take two; of all, the tables say how many there are."""
    composition = geva2021.study(tiny, tiny_store, **{**FEW, "n_sequences": 1}).table("composition")
    assert composition[["zero_agreement_shuffled", "active_low"]].isna().all(axis=None)
    assert composition["active"].notna().all()
    found = geva2021.study(tiny, tiny_store, keys=1000, prefixes=99, n_sequences=10**6, updates=10**6)
    count = len(tiny_store.sequences)
    assert set(found.table("changes")["drawn"]) == {64}
    assert found.table("composition")["positions"].tolist() == [count] * 2
    assert set(found.table("updates")["positions"]) == {found.settings["positions"]} == {count}


def test_gated_models(gated: fm.Model, gated_store: Store) -> None:
    """Every table of a model with gates and RMSNorm, whose last layer still ends in the model's own answer."""
    found = geva2021.study(gated, gated_store, seed=2, **FEW)
    composition, refinement = found.table("composition"), found.table("refinement")
    assert (composition["active_share"].between(0.2, 0.8)).all()  # both signs, half of each by chance
    assert (composition["zero_agreement"] <= composition["zero_agreement_active"]).all()
    assert refinement[["residual", "agreement", "composition", "ffn"]].sum(axis=1).tolist() == pytest.approx([1, 1])
    assert found.table("changes")["keys"].sum() > 0
    assert found.table("summary").notna().all().all()
