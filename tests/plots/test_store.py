from dataclasses import replace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

import ffnmem as fm
from ffnmem.core.number_text import format_probability
from ffnmem.plots.attribution import ADDS, TAKES
from ffnmem.plots.firing import BARS
from ffnmem.scanning import Store
from ffnmem.scanning.store import RATES

from ..helpers import draw_whole


def bars(ax: Axes) -> list[Any]:
    return list(ax.patches)


def test_histogram_is_a_density(tiny_store: Store) -> None:
    """Area over a linear height is a count: a bar's top times its width."""
    neuron = tiny_store.neuron(1, 5)
    ax = fm.plots.histogram(neuron)
    tops = [(bar.get_y() + bar.get_height()) * bar.get_width() for bar in bars(ax)]
    found = [b for b in neuron.bins(BARS) if b.count]
    assert tops == pytest.approx([b.count for b in found])
    assert sum(tops) == pytest.approx(neuron.stats["count"])
    assert [bar.get_x() for bar in bars(ax)] == pytest.approx([b.low for b in found])
    assert {to_hex(bar.get_facecolor()).upper() for bar in bars(ax) if bar.get_x() < 0} == {TAKES}
    assert {to_hex(bar.get_facecolor()).upper() for bar in bars(ax) if bar.get_x() >= 0} == {ADDS}
    assert ax.get_yscale() == "log"
    assert all(bar.get_height() > 0 for bar in bars(ax))
    assert f"{format_probability(neuron.stats['firing_rate'])} of {neuron.stats['count']:,} tokens" in ax.get_title(
        loc="left"
    )
    draw_whole(ax)


def test_histogram_says_dead_and_rare(tiny_store: Store) -> None:
    neuron = tiny_store.neuron(0, 0)
    dead = replace(neuron, stats={**neuron.stats, "dead": True, "firing_rate": 0.0})
    assert f"dead in {neuron.stats['count']:,} tokens" in fm.plots.histogram(dead).get_title(loc="left")
    rare = replace(neuron, stats={**neuron.stats, "firing_rate": 1e-5})
    assert "fires at 0.001% of" in fm.plots.histogram(rare).get_title(loc="left")


def test_firing_rates_are_the_quantiles(tiny_store: Store) -> None:
    ax = fm.plots.firing_rates(tiny_store)
    rows = Store.to_frame(tiny_store)
    wide, narrow = bars(ax)[: tiny_store.n_layers], bars(ax)[tiny_store.n_layers :]
    for drawn, (low, high) in ((wide, (RATES[0], RATES[4])), (narrow, (RATES[1], RATES[3]))):
        assert [bar.get_y() for bar in drawn] == pytest.approx(rows[low].tolist())
        assert [bar.get_y() + bar.get_height() for bar in drawn] == pytest.approx(rows[high].tolist())
    (lines,) = [c for c in ax.collections if c.get_label() == "median"]
    assert [segment[0][1] for segment in lines.get_segments()] == pytest.approx(rows[RATES[2]].tolist())  # type: ignore[attr-defined]
    assert ax.get_ylim()[0] == 0


def test_dead_neurons_are_counted(tiny_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    stats = tiny_store.stats()
    stats["dead"] = stats["neuron"] < 3 + stats["layer"]
    monkeypatch.setattr(Store, "stats", lambda store: stats)
    ax = fm.plots.dead(tiny_store)
    assert [bar.get_height() for bar in bars(ax)] == [3, 4]
    assert "7 of 128 neurons" in ax.get_title(loc="left")
    assert not ax.texts
    stats["dead"] = False
    none = fm.plots.dead(tiny_store)
    assert [text.get_text() for text in none.texts] == ["every neuron fired"]


def test_they_draw_on_given_axes(tiny_store: Store) -> None:
    """Without opening a figure of their own."""
    _, axes = plt.subplots(1, 3)
    before = plt.get_fignums()
    assert fm.plots.histogram(tiny_store.neuron(0, 0), axes[0]) is axes[0]
    assert fm.plots.firing_rates(tiny_store, axes[1]) is axes[1]
    assert fm.plots.dead(tiny_store, axes[2]) is axes[2]
    assert plt.get_fignums() == before
    assert np.all([bool(ax.get_xlabel()) and bool(ax.get_ylabel()) for ax in axes])
