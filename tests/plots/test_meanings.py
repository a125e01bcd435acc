"""Pictures of meanings and of verdicts."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import Rectangle

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.neurons import Meanings
from ffnmem.plots.neuron_kinds import LABEL, tokens_line
from ffnmem.scanning import Store, open_store

from ..helpers import draw_whole, refuses


@pytest.fixture(scope="module")
def found(tiny: fm.Model, tiny_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Meanings:
    store = open_store(shutil.copytree(tiny_store.folder, tmp_path_factory.mktemp("plots") / "tiny"))
    return fm.meanings(store, 1, 5, tiny, draws=20)


def made(found: Meanings, sizes: list[int]) -> Meanings:
    """Meanings of these sizes, with the cosines of their numbers."""
    n = sum(sizes)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    similarity = np.where(labels[:, None] == labels, 0.5, -0.1).astype(np.float32)
    np.fill_diagonal(similarity, 1.0)
    columns = {"meaning": range(len(sizes)), "share": [s / n for s in sizes], "examples": sizes}
    table = pd.DataFrame({**columns, "strongest": 1.0, "tokens": "x"})
    triggers = tuple((f" token{i}", "$x$") for i in range(len(sizes)))
    return replace(found, table=table, triggers=triggers, similarity=similarity)


def test_heat_map_is_the_similarity(found: Meanings) -> None:
    ax = fm.plots.meanings(found)
    drawn = np.ma.filled(ax.images[0].get_array(), np.nan)
    assert found.similarity is not None
    off = ~np.eye(len(drawn), dtype=bool)
    np.testing.assert_array_equal(drawn[off], found.similarity[off])
    low, high = ax.images[0].get_clim()
    assert low == -high
    assert f"Neuron 1.5 of {found.store.model}" in ax.get_title(loc="left")
    assert found.verdict in ax.get_title(loc="left")
    draw_whole(ax)
    mine = plt.figure().add_subplot()
    assert fm.plots.meanings(found, mine) is mine


def test_lines_and_labels_stand_at_the_meanings(found: Meanings) -> None:
    ax = fm.plots.meanings(made(found, [10, 6, 4]))
    edges = [line.get_ydata()[0] for line in ax.lines if list(line.get_xdata()) == [0, 1]]  # type: ignore[index]
    assert edges == [9.5, 15.5]
    assert ax.get_yticks().tolist() == [4.5, 12.5, 17.5]
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "50%  ·token0 $x$",
        "30%  ·token1 $x$",
        "20%  ·token2 $x$",
    ]
    draw_whole(ax)


def test_labels_do_not_overlap(found: Meanings) -> None:
    ticks = fm.plots.meanings(made(found, [20, *[1] * 60])).get_yticks()
    assert len(ticks) < 25
    assert np.diff(ticks).min() >= 3


def test_one_example_and_long_tokens(found: Meanings) -> None:
    assert len(fm.plots.meanings(made(found, [1])).images[0].get_array()) == 1  # type: ignore[arg-type]
    assert len(tokens_line(("x" * 99, "y"))) == LABEL
    assert tokens_line(("a", "x" * 99)) == "a"


def test_without_similarity_or_examples(found: Meanings) -> None:
    with refuses(InputError, ValueError, "1.5", "give the model"):
        fm.plots.meanings(replace(found, similarity=None))
    with refuses(InputError, ValueError, "1.5", "no examples"):
        fm.plots.meanings(replace(found, table=found.table.iloc[:0], similarity=None))


def verdicts(signs: list[str]) -> pd.DataFrame:
    rows = [
        (layer, neuron, sign, verdict, 9, 1.0, 1.0, 1.0)
        for sign in signs
        for layer in (0, 3)
        for neuron, verdict in enumerate(["monosemantic", "polysemantic", "polysemantic", "unclear"])
    ]
    columns = ["layer", "neuron", "sign", "verdict", "examples", "meanings_low", "meanings_high", "ms_low"]
    return pd.DataFrame(rows, columns=columns)


def test_verdict_bars_are_shares() -> None:
    ax = fm.plots.verdicts(verdicts(["positive"]))
    heights = {bars.get_label(): [bar.get_height() for bar in bars] for bars in ax.containers}  # type: ignore[attr-defined]
    assert heights == {
        "monosemantic": [0.25, 0.25],
        "polysemantic": [0.5, 0.5],
        "unclear": [0.25, 0.25],
        "inactive": [0, 0],
    }
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "3"]
    assert "8 neurons" in ax.get_title(loc="left")
    mine = plt.figure().add_subplot()
    assert fm.plots.verdicts(verdicts(["positive"]), mine) is mine


def test_both_signs_stand_side_by_side() -> None:
    ax = fm.plots.verdicts(verdicts(["positive", "negative"]))
    bars = sorted({(p.get_x(), p.get_x() + p.get_width()) for p in ax.patches if isinstance(p, Rectangle)})
    assert len(bars) == 4
    assert all(a[1] < b[0] for a, b in pairwise(bars))


def test_another_table() -> None:
    with refuses(InputError, ValueError, "polysemanticity"):
        fm.plots.verdicts(pd.DataFrame({"layer": [0]}))
