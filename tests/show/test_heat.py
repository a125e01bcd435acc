"""Heat: numbers by layer as one shade each."""

from __future__ import annotations

import pytest

from ffnmem.core.sheets import Column, rows
from ffnmem.show.terminal import heat_strip

from ..helpers import printed


@pytest.mark.parametrize(
    ("effects", "limit", "shown"),
    [
        ([0.0, 0.25, 0.5, 0.75, 1.0], 1.0, "·░▒▓█"),
        ([-1.0, -0.1, float("nan"), 0.1, float("inf")], 1.0, "-· ·█"),
        ([1.0, float("nan"), float("inf")], float("inf"), "· █"),
    ],
)
def test_strip(effects: list[float], limit: float, shown: str) -> None:
    """The shades of a terminal tell strength, and a dash a loss."""
    assert heat_strip(effects, limit).plain == shown


def test_a_strip_gives_way_to_numbers() -> None:
    """Of more layers than there is room for, those that share a character; a number that is cut is another number."""
    shown = rows("at", Column("layers 0–39", "heat", limit=1.0), Column("share", "percent"), Column("interval"))
    shown.add("first subsequent token", [0.0] * 39 + [1.0], 0.561, "-12.3 to 116.9")
    for width, strip in ((100, 40), (60, 10)):
        row = printed(shown.table(), width)[2]
        assert len(row) <= width
        assert row.endswith("56.1%  -12.3 to 116.9")
        assert len(row.split()[3]) == strip
        assert row.split()[3].endswith("█")
