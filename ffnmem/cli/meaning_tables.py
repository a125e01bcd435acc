"""The meanings of a neuron on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..show.terminal import decimals, in_context, number, plain_table, token_line

if TYPE_CHECKING:
    from ..reports.meanings import MeaningsCard
    from ..semantics.meanings import Meanings


def meanings_table(found: MeaningsCard, out: Console) -> Table:
    """The verdict, and below it each meaning with its share, its trigger tokens and some examples."""
    shown = [example for one in found.listed for example in one.examples]
    places = decimals([e.activation for e in shown])
    numbers = max((len(number(e.activation, places)) for e in shown), default=1)
    room = out.width - numbers - 8
    marked = out.color_system is None or out.no_color

    table = Table.grid(padding=(0, 2, 0, 0))
    table.title, table.title_justify, table.title_style = headline(found), "left", ""
    table.add_column(justify="right", no_wrap=True, min_width=4)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for one in found.listed:
        share = Text(f"{one.share:.0%}", "bold")
        table.add_row(share, "", token_line([chip.token for chip in one.tokens]))
        for example in one.examples:
            table.add_row("", number(example.activation, places), in_context(example, room, marked))
    if found.hidden:
        more = f"and {found.hidden} more with {found.rest:.0%} of the activation"
        table.add_row("", "", Text(more, "dim"))
    return table


def headline(found: MeaningsCard) -> Text:
    """The verdict with the effective number of meanings, and what it rests on."""
    line = Text(found.found.verdict.capitalize(), "bold")
    line.append(" where its coefficient is negative" if found.negative else "")
    line.append(f": {found.number}" if found.number else "")
    examples = "1 example" if found.examples == 1 else f"{found.examples or 'no'} examples"
    why = f"{found.found.why}; " if found.found.why else ""
    return line.append(f"\n{why}{examples}{', alike ones together' if found.examples > 1 else ''}", "dim")


def measures_table(found: Meanings) -> Table:
    """The measures behind a verdict, each beside what chance gives."""
    table = plain_table("measure", "value", "low", "high", "by chance", "p", left=["measure"])
    for row in found.estimates.to_dict("records"):
        numbers = [number(row[name], 2) for name in ("value", "low", "high", "null")]
        table.add_row(row["measure"].replace("_", " "), *numbers, number(row["p"], 3))
    return table
