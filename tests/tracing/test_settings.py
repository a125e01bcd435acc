"""What a trace can be asked for."""

from __future__ import annotations

import pytest

from ffnmem.core.errors import InputError
from ffnmem.tracing.settings import KINDS, check_kinds, check_noise, check_window

from ..helpers import refuses


@pytest.mark.parametrize(
    ("n_layers", "window"), [(48, 10), (96, 10), (36, 8), (24, 5), (12, 3), (8, 3), (6, 3), (4, 2), (2, 1), (1, 1)]
)
def test_the_default_window(n_layers: int, window: int) -> None:
    """10 of 48 as in the paper; never more than half of a shallow model, where every cell would be the same."""
    assert check_window(None, n_layers) == window


def test_a_window_as_given() -> None:
    assert check_window(40, 12) == 40


def test_kinds() -> None:
    """Each once, the severed ones last, in the order of asking."""
    assert check_kinds(KINDS, ()) == KINDS
    assert check_kinds(["ffn", "state", "ffn"], ["attention"]) == ("ffn", "state", "severed_attention")
    assert check_kinds(("severed_ffn",), ("ffn",)) == ("severed_ffn",)
    for kinds, severed, named in (
        (("mlp",), (), "mlp"),
        ((), (), "state"),
        ("state", (), "kinds"),
        (KINDS, "ffn", "severed"),
        (KINDS, ("state",), "state"),
    ):
        with refuses(InputError, ValueError, named):
            check_kinds(kinds, severed)


def test_noise() -> None:
    assert check_noise(0) == 0.0
    for noise in (-1.0, float("inf"), float("nan")):
        with refuses(InputError, ValueError, "noise"):
            check_noise(noise)
