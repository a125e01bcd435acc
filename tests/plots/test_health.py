"""Pictures of neuron health: heights that are the table's, and curves that end where gradient does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from ffnmem.core.errors import InputError
from ffnmem.neurons import Dying, NeuronHealth, dying_relu, neuron_health
from ffnmem.plots import activations as plot_activations
from ffnmem.plots import dying as plot_dying
from ffnmem.plots import health as plot_health

from ..helpers import draw_whole, legend_of, refuses
from ..neurons.made import TEXTS, pushed


@pytest.fixture(scope="module")
def health(tokenizer: Any) -> NeuronHealth:
    return neuron_health(pushed("opt", tokenizer, {(0, 3): -1000.0, (1, 5): 1000.0}), TEXTS)


@pytest.fixture(scope="module")
def dying() -> Dying:
    return dying_relu(steps=20)


def test_shares_are_the_tables(health: NeuronHealth) -> None:
    """A bar of another flag than its label."""
    ax = plot_health(health)
    assert legend_of(ax) == ["dead", "stuck", "saturated"]
    for bars, flag in zip(ax.containers, legend_of(ax), strict=True):
        assert [bar.get_height() for bar in bars] == pytest.approx(health.layers[flag].tolist())
    assert f"{health.positions} positions" in ax.get_title(loc="left")
    assert not ax.texts
    draw_whole(ax)


def test_nothing_wrong_is_said(health: NeuronHealth) -> None:
    """An empty picture would look like a broken one."""
    layers = health.layers.assign(dead=0.0, stuck=0.0, saturated=0.0)
    ax = plot_health(replace(health, layers=layers))
    assert [text.get_text() for text in ax.texts] == ["no neuron is dead, stuck or saturated"]
    draw_whole(ax)


def test_flow_is_ranked(health: NeuronHealth) -> None:
    """Curves of other layers, or ones that draw neurons without gradient as if they had some."""
    ax = plot_health(health, "flow")
    assert legend_of(ax) == ["layer 0", "layer 1"]
    for layer, line in enumerate(ax.get_lines()):
        values = health.neurons[health.neurons["layer"] == layer]["flow_pre"].to_numpy()
        y = np.asarray(line.get_ydata(), dtype=float)
        assert np.isnan(y).sum() == (values == 0).sum()
        assert y[~np.isnan(y)].tolist() == sorted(values[values > 0], reverse=True)
    assert ax.get_yscale() == "log"
    draw_whole(ax)


def test_many_layers_have_a_colour_bar(health: NeuronHealth) -> None:
    """A legend of 48 lines hides them."""
    copies = [health.neurons.assign(layer=layer) for layer in range(12)]
    many = replace(health, neurons=pd.concat(copies), layers=pd.concat([health.layers] * 6).assign(layer=range(12)))
    ax = plot_health(many, "flow")
    assert ax.get_legend() is None
    assert isinstance(ax.figure, Figure)
    assert len(ax.figure.axes) == 2
    draw_whole(ax)


def test_dying_is_the_table(dying: Dying) -> None:
    """A line of another activation than its label."""
    for what in ("pushed_dead", "dead", "loss"):
        ax = plot_dying(dying, what)
        assert legend_of(ax) == ["ReLU", "GELU", "SiLU"]
        curves, _ = plot_activations(dying.activations)
        shades = {str(line.get_label()): line.get_color() for line in curves.get_lines()}
        assert all(shades[str(line.get_label())] == line.get_color() for line in ax.get_lines())  # as in its curve
        for name, line in zip(dying.activations, ax.get_lines(), strict=True):
            rows = dying.frame[dying.frame["activation"] == name]
            assert list(line.get_xdata()) == rows["step"].tolist()  # type: ignore[arg-type]
            assert list(line.get_ydata()) == rows[what].tolist()  # type: ignore[arg-type]
        assert len({line.get_marker() for line in ax.get_lines()}) == 3  # colour is not the only mark
        draw_whole(ax)


def test_they_draw_on_given_axes(health: NeuronHealth, dying: Dying) -> None:
    """Without opening a figure of their own."""
    _, axes = plt.subplots(1, 3)
    before = plt.get_fignums()
    assert health.plot("flow", axes[0]) is axes[0]
    assert health.plot(ax=axes[1]) is axes[1]
    assert dying.plot(axes[2]) is axes[2]
    assert plt.get_fignums() == before


def test_mistakes(health: NeuronHealth, dying: Dying) -> None:
    with refuses(InputError, ValueError, "what", "'size'", "'flow'"):
        plot_health(health, "size")
    with refuses(InputError, ValueError, "flow=False"):
        plot_health(replace(health, neurons=health.neurons.drop(columns="flow_pre")), "flow")
    with refuses(InputError, ValueError, "what", "'size'", "'loss'"):
        plot_dying(dying, "size")
    with refuses(InputError, ValueError, "no neuron was pushed"):
        plot_dying(dying_relu(steps=1, share=0.0, activations=["relu"]))
