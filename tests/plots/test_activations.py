"""The picture of the activations."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes

from ffnmem.core.errors import InputError
from ffnmem.ffn.activations import ACTIVATIONS, curves, swish
from ffnmem.plots import activations

from ..helpers import refuses


def drawn(ax: Axes) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """x and y of the curves, by their names."""
    curves_of = [line for line in ax.lines if not str(line.get_label()).startswith("_")]
    return {str(line.get_label()): (np.asarray(line.get_xdata()), np.asarray(line.get_ydata())) for line in curves_of}


def test_curves_are_the_functions() -> None:
    """A picture of another function would teach it."""
    values, gradients = activations(beta=3)
    for one in curves(beta=3):
        x, y = drawn(values)[one.title]
        np.testing.assert_array_equal(y, one.value(torch.from_numpy(x)).numpy())
        x, y = drawn(gradients)[one.title]
        expected = one.gradient(torch.from_numpy(x)).numpy()
        there = ~np.isnan(y)
        np.testing.assert_array_equal(y[there], expected[there])
        assert (~there).sum() == (one.name == "relu")


def test_relus_gradient_jumps() -> None:
    """A line up at 0 would show gradients between 0 and 1, which ReLU never has."""
    _, gradients = activations(["relu"])
    x, y = drawn(gradients)["ReLU"]
    gap = np.flatnonzero(np.isnan(y))
    assert len(gap) == 1
    assert (y[: gap[0]] == 0).all()
    assert (y[gap[0] + 1 :] == 1).all()
    assert 0 < x[gap[0]] < 0.01


def test_told_apart_without_colour() -> None:
    """In grey print only the dashes are left."""
    values, gradients = activations()
    for ax in (values, gradients):
        lines = [line for line in ax.lines if str(line.get_label()) in drawn(ax)]
        assert len({str(line._dash_pattern) for line in lines}) == len(lines) == 8  # type: ignore[attr-defined]
        assert len({str(line.get_color()) for line in lines}) == len(lines)
        assert ax.get_xlabel()
        assert ax.get_ylabel()
        assert ax.get_title(loc="left")
    legend = values.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [one.title for one in curves()]


def test_on_given_axes() -> None:
    mine = plt.figure().subplots(1, 2)
    found = activations(["swish", "gelu_new"], 1.5, mine, limit=2)
    assert found == tuple(mine)
    assert list(drawn(found[0])) == [swish(1.5).title, ACTIVATIONS["gelu_tanh"].title]
    assert found[0].get_xlim() == found[1].get_xlim() == (-2, 2)


def test_mistakes() -> None:
    with refuses(InputError, ValueError, "'mish'"):
        activations(["mish"])
    with refuses(InputError, ValueError, "limit", "0"):
        activations(limit=0)
    with refuses(InputError, ValueError, "two", "1"):
        activations(axes=[plt.figure().add_subplot()])
