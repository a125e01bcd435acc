"""Pictures of roles draw the numbers of the table."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.neurons.role_assignment import ROLES, role_counts
from ffnmem.plots import percentiles, roles
from ffnmem.plots.neuron_kinds import ROLE_COLOURS
from ffnmem.scanning import Store


@pytest.fixture(scope="module")
def frame(tiny: fm.Model, tiny_store: Store) -> pd.DataFrame:
    return fm.roles(tiny, tiny_store, n_sequences=None)


def heights(ax: Axes) -> dict[str, list[float]]:
    """What is stacked, by the legend's names."""
    return {str(c.get_label()): [bar.get_height() for bar in c] for c in ax.containers}


def test_every_role_has_a_colour_of_its_own() -> None:
    assert list(ROLE_COLOURS) == [role.name for role in ROLES]
    assert len(set(ROLE_COLOURS.values())) == len(ROLES)


def test_bars_are_shares_of_primary_roles(frame: pd.DataFrame, tiny: fm.Model) -> None:
    ax = roles(frame)
    counts = role_counts(frame)
    drawn = heights(ax)
    assert drawn
    for role in ROLES:
        share = (counts[role.name] / tiny.d_mlp).tolist()
        assert drawn.get(role.name, [0.0, 0.0]) == pytest.approx(share)
    tops = np.sum(list(drawn.values()), axis=0)
    assert tops == pytest.approx(1 - counts["none"] / tiny.d_mlp)
    assert ax.get_ylim()[1] >= tops.max()
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == list(drawn)[::-1]
    assert f"{int((frame['role'] != 'none').sum())} of 128" in ax.get_title(loc="left")


def test_no_role_at_all_is_said(tiny: fm.Model) -> None:
    ax = roles(fm.roles(tiny, kurtosis=1e9, partition=1e9, io=1.0, null_share=1.0))
    assert not ax.containers
    assert "no neuron" in ax.texts[0].get_text()


def test_bands_are_quantiles(frame: pd.DataFrame) -> None:
    own = plt.figure().add_subplot()
    ax = percentiles(frame, "io_cosine", own, threshold=0.4)
    assert ax is own
    median = ax.lines[0]
    assert median.get_ydata() == pytest.approx(frame.groupby("layer")["io_cosine"].median().to_numpy())
    assert [line.get_ydata()[0] for line in ax.lines[1:]] == [0.4, -0.4]  # type: ignore[index]
    band = ax.collections[0].get_paths()[0].vertices
    wide = frame.groupby("layer")["io_cosine"].quantile([0.01, 0.99])
    assert sorted(set(np.round(np.asarray(band)[:, 1], 9))) == pytest.approx(sorted(np.round(wide, 9)))


def test_a_threshold_of_one_sign_is_one_line(frame: pd.DataFrame) -> None:
    ax = percentiles(frame, "cosine_kurtosis", threshold=10.0)
    assert [line.get_ydata()[0] for line in ax.lines[1:]] == [10.0]  # type: ignore[index]
    assert "cosine kurtosis" in ax.get_title(loc="left")


def test_another_table_is_refused() -> None:
    with pytest.raises(InputError, match=r"a table of fm\.roles"):
        roles(pd.DataFrame({"layer": [0], "neuron": [0]}))
