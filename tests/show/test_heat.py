"""Heat: numbers by layer as one shade each."""

from __future__ import annotations

import pytest

from ffnmem.core.sheets import Column, Sheet, line, rows
from ffnmem.show.markdown import markdown
from ffnmem.show.notebook import html
from ffnmem.show.terminal import heat_strip

from ..helpers import printed


@pytest.mark.parametrize(
    ("effects", "shown"), [([0.0, 0.25, 0.5, 0.75, 1.0], "·░▒▓█"), ([-1.0, -0.1, float("nan"), 0.1], "-· ·")]
)
def test_strip(effects: list[float], shown: str) -> None:
    """The shades of a terminal tell strength, and a dash a loss."""
    assert heat_strip(effects, 1.0).plain == shown


def test_legend_and_titles() -> None:
    """A shade without a scale says nothing; a line in a column of numbers is that line everywhere."""
    shown = rows("at", Column("layers 0–1", "heat", limit=0.5, scale="50.0%", each="layer"), Column("n", "count"))
    shown.add("last", (0.5, -0.25), line("–"))
    sheet = Sheet.of(shown.table())
    lines = printed(sheet)
    assert lines[2].split() == ["last", "█-", "–"]
    assert " ".join(lines[3:]) == "█ is 50.0%, - below zero"
    text = html(sheet)
    assert 'title="layer 1: −0.250"' in text
    assert "50.0%" in text
    assert text.count("<i style") == 2
    assert "| last | 1.00 0.50 | – |" in markdown(sheet).replace("\\", "")


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
