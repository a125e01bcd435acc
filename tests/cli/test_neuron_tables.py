"""The card on a terminal: examples below each other, whatever their text."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ffnmem.cli.neuron_tables import Lines, fires, print_card, text_bar
from ffnmem.scanning import Store
from tests.reports.hostile import UNSEEN, poisoned


def test_bars() -> None:
    assert [text_bar(length) for length in (0, 0.5, 1, 2.25)] == ["", "▌", "█", "██▎"]


def test_lines_break_between_pieces() -> None:
    out = Console(file=io.StringIO(), width=10)
    out.print(Lines([Text("aaa 1"), Text("b 2"), Text("ccc 3"), Text("d" * 9)]))
    assert out.file.getvalue().split("\n") == ["aaa 1  b 2", "ccc 3", "d" * 9, ""]  # type: ignore[attr-defined]


def test_hostile_text_cannot_move_the_cursor(tiny_store: Store) -> None:
    """Nor recolour the terminal, nor break a line in two."""
    one = tiny_store.neuron(1, 5)
    outputs = []
    for neuron in (one, poisoned(one)):
        out = Console(file=io.StringIO(), width=80, highlight=False, markup=False, emoji=False)
        print_card(out, neuron, 10)
        outputs.append(out.file.getvalue())  # type: ignore[attr-defined]
    plain, hostile = outputs
    assert not set(UNSEEN) & set(hostile)
    assert max(cell_len(line) for line in hostile.splitlines()) <= 80
    assert len(hostile.splitlines()) == len(plain.splitlines())


def test_how_often_it_fires(tiny_store: Store) -> None:
    one = tiny_store.neuron(1, 5)
    said = {
        name: fires(replace(one, stats={**one.stats, "count": 1000, **changes}))
        for name, changes in {
            "dead": {"dead": True, "firing_rate": 0.0},
            "rare": {"dead": False, "firing_rate": 2e-5, "zero_share": 0.0},
            "half": {"dead": False, "firing_rate": 0.5, "zero_share": 0.25},
        }.items()
    }
    assert said == {
        "dead": "never in 1,000 tokens: dead",
        "rare": "at 2.0e-05 of 1,000 tokens",
        "half": "at 50.0% of 1,000 tokens, exactly 0 at 25.0%",
    }


def test_the_small_end_is_left_out_where_it_says_nothing(tiny_store: Store) -> None:
    one = tiny_store.neuron(1, 5)
    for least, shown in ((-0.17, False), (-3.0, True)):
        out = Console(file=io.StringIO(), width=80)
        print_card(out, replace(one, stats={**one.stats, "min": least, "max": 4.0}), 10)
        text = out.file.getvalue()  # type: ignore[attr-defined]
        assert ("by their smallest coefficient" in text) == shown
        assert ("--kind bottom" in text) != shown
