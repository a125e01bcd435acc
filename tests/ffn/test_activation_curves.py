"""What the table and the figure of the activations share."""

from __future__ import annotations

import math

import pytest

from ffnmem.core.errors import InputError
from ffnmem.ffn.activations import ACTIVATIONS, LOOKS, POINTS, activation_table, curves, swish

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


def test_every_activation_has_a_look_of_its_own() -> None:
    """Two curves of one colour, or one pattern of dashes, could not be told apart, or not in grey."""
    assert set(LOOKS) == {one.name for one in curves()}
    for field in ("light", "dark", "dashes"):
        assert len({getattr(look, field) for look in LOOKS.values()}) == len(LOOKS)


@pytest.mark.parametrize(("field", "ground"), [("light", "#ffffff"), ("dark", "#181c21")])
def test_colours_stand_out(field: str, ground: str) -> None:
    """Below a contrast of 3 (WCAG 1.4.11) a line is hard to see."""
    for name, look in LOOKS.items():
        light, dark = sorted((luminance(getattr(look, field)), luminance(ground)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3, name


def luminance(colour: str) -> float:
    """Relative luminance by WCAG 2."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_mistakes() -> None:
    with refuses(InputError, ValueError, "'mish'", "gelu"):
        curves(["mish"])
    with refuses(InputError, ValueError, "no activation", "relu"):
        curves([])
    with refuses(InputError, ValueError, "beta", "-1"):
        curves(beta=-1)
    with refuses(InputError, ValueError, "finite"):
        activation_table(at=[math.inf])
    with refuses(InputError, ValueError, "at least one"):
        activation_table(at=[])
