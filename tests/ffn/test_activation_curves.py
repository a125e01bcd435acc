"""Tables of activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from ffnmem.core.errors import InputError
from ffnmem.ffn.activations import ACTIVATIONS, POINTS, activation_table, curves, swish

from ..helpers import refuses

VALUES = {
    "relu": (0, 0, 0, 0, 0.5, 1, 2),
    "gelu": (-0.046, -0.159, -0.154, 0, 0.346, 0.841, 1.954),
    "silu": (-0.238, -0.269, -0.189, 0, 0.311, 0.731, 1.762),
}
GRADIENTS = {
    "relu": (0, 0, 0, 0, 1, 1, 1),
    "gelu": (-0.085, -0.083, 0.133, 0.5, 0.867, 1.083, 1.085),
    "silu": (-0.091, 0.072, 0.260, 0.5, 0.740, 0.928, 1.091),
}


def test_table_has_the_reference_values() -> None:
    """The known figures, to the three decimals in which they are known; half a unit more for GELU(2) = 1.95449997."""
    frame = activation_table()
    for column, known in (("value", VALUES), ("gradient", GRADIENTS)):
        for name, expected in known.items():
            rows = frame[frame["name"] == name]
            assert rows["x"].tolist() == [-2, -1, -0.5, 0, 0.5, 1, 2] == list(POINTS)
            assert rows[column].tolist() == pytest.approx(expected, abs=5.1e-4), (name, column)


def test_all_in_order_with_the_swish_after_silu() -> None:
    """An activation that the table forgets is one that nobody compares."""
    names = [one.name for one in curves()]
    assert names == ["relu", "gelu", "gelu_tanh", "silu", "swish", "relu2", "sigmoid", "identity"]
    assert [name for name in names if name != "swish"] == list(ACTIVATIONS)
    frame = activation_table(beta=3)
    assert list(dict.fromkeys(frame["name"])) == names
    assert set(frame.loc[frame["name"] == "swish", "beta"]) == {3.0}
    assert frame.loc[frame["name"] != "swish", "beta"].isna().all()


def test_names_are_ours_and_hugging_faces() -> None:
    assert [one.name for one in curves(["gelu_new", "relu"])] == ["gelu_tanh", "relu"]
    assert curves(["swish"], 4) == [swish(4)]
    assert curves("silu") == [ACTIVATIONS["silu"]]
    assert curves(["gelu", "gelu_python", "gelu"]) == [ACTIVATIONS["gelu"]]
    assert [one.beta for one in curves(["quick_gelu", "swish"], 2)] == [1.702, 2.0]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: curves(["mish"]), ("'mish'", "gelu")),
        (lambda: curves([]), ("no activation", "relu")),
        (lambda: curves(beta=-1), ("beta", "-1")),
        (lambda: activation_table(at=[math.inf]), ("finite",)),
        (lambda: activation_table(at=[]), ("at least one",)),
    ],
)
def test_mistakes(call: Callable[[], Any], named: tuple[str, ...]) -> None:
    with refuses(InputError, ValueError, *named):
        call()
