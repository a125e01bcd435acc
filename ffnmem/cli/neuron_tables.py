"""What ``ffnmem neuron`` shows on a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from ..reports.cards import Group, card
from ..reports.histogram import LISTED, bins, log_share
from ..show.terminal import (
    OneLine,
    decimals,
    in_context,
    labelled,
    number,
    percent,
    plain_table,
    probability,
    token,
    token_line,
    user_text,
)
from .meaning_tables import meanings_table

if TYPE_CHECKING:
    import pandas as pd

    from ..reports.cards import Card
    from ..scanning.neuron import Neuron

GAP = Text("  ")
PART_NAMES = ("gate", "linear")
PARTS_FROM = 60  # columns of a terminal that has room for them
BAR = "█"
FRACTIONS = " ▏▎▍▌▋▊▉"


def print_card(out: Console, neuron: Neuron, listed: int | None) -> None:
    """A neuron's card: numbers, tokens, histogram and examples."""
    found = card(neuron, listed)
    out.print(Text(f"Neuron {neuron.name} of {neuron.store.model}", "bold"))
    out.print()
    out.print(heading(found))
    out.print()
    if found.cases:
        out.print(case_table(found))
        out.print()
    out.print(histogram_table(neuron, out.width))
    for meanings in found.meanings:
        out.print()
        out.print(meanings_table(meanings, out))
    for group in found.groups:
        if not group.folded:
            out.print()
            out.print(example_table(group, out))
    if any(group.folded for group in found.groups):
        out.print()
        least = f"its smallest coefficients stay near 0 ({neuron.stats['min']:.3f} at least); --kind bottom lists them"
        out.print(least, style="dim")
    if not found.meanings:
        out.print()
        command = f"ffnmem polysemanticity {shlex.quote(str(neuron.store.folder))}"
        out.print(Text("one meaning or several: not measured yet; ", "dim").append_text(user_text(command, "dim")))


def heading(found: Card) -> Table:
    """The numbers, the tokens of the value, and the means by token and by position."""
    stats = found.neuron.stats
    places = decimals([stats["max"], stats["min"], stats["mean"]])
    rows: dict[str, RenderableType] = {
        "fires": Text(fires(found.neuron)),
        "coefficient": Text(
            f"mean {number(stats['mean'], places)}, std {number(stats['std'], places)},"
            f" min {number(stats['min'], places)}, max {number(stats['max'], places)}"
        ),
        "shape": Text(f"skewness {stats['skewness']:.2f}, excess kurtosis {stats['kurtosis']:.2f}"),
        "promotes": token_line([chip.token for chip in found.promoted]),
        "suppresses": token_line([chip.token for chip in found.suppressed]),
        **{name: token_line([chip.token for chip in chips]) for name, chips in found.keys},
    }
    if found.frequent:
        rows["excited by"] = OneLine(
            [token(m.chip.token, limit=24).append(f" {m.mean:+.{places}f}", "dim") for m in found.frequent]
        )
    if found.positions:
        where = [Text(m.chip.token).append(f" {m.mean:+.{places}f}", "dim") for m in found.positions]
        rows["at position"] = Lines(where)
    return labelled(rows)


def case_table(found: Card) -> Table:
    """The sign cases of a gated neuron: how often each occurs, and the mean coefficient there."""
    table = plain_table("case", "positions", "mean coefficient", left=["case"])
    places = decimals([case.mean for case in found.cases if case.bar is not None])
    for case in found.cases:
        mean = "–" if case.bar is None else number(case.mean, places, sign=True)
        table.add_row(case.name, percent(case.share), mean)
    return table


class Lines(OneLine):
    """Pieces on as many lines as they need, none of them broken."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        rest = list(self.pieces)
        while rest:
            count = 1
            while count < len(rest) and GAP.join(rest[: count + 1]).cell_len <= options.max_width:
                count += 1
            yield GAP.join(rest[:count])
            rest = rest[count:]


def fires(neuron: Neuron) -> str:
    """How often the pre-activation was above zero."""
    stats = neuron.stats
    if stats["dead"]:
        return f"never in {stats['count']:,} tokens: dead"
    rate = percent(stats["firing_rate"]) if stats["firing_rate"] >= 0.0005 else f"{stats['firing_rate']:.1e}"
    zeros = f", exactly 0 at {percent(stats['zero_share'])}" if stats["zero_share"] >= 0.0005 else ""
    return f"at {rate} of {stats['count']:,} tokens{zeros}"


def histogram_table(neuron: Neuron, width: int) -> Table:
    """The histogram as bars of text, logarithmic in the count."""
    found = bins(neuron, LISTED)
    bars = "tokens, log scale"
    table = plain_table("coefficient", "tokens", "share", bars, left=[bars])
    places = decimals([edge for b in found for edge in (b.low, b.high)], 3)
    room = max(width - 46, 12)
    total, largest = sum(b.count for b in found), max((b.count for b in found), default=0)
    for b in found:
        span = f"{number(b.low, places)} to {number(b.high, places)}"
        bar = text_bar(log_share(b.count, largest) * room)
        table.add_row(span, f"{b.count:,}", probability(b.count / total) if b.count else "", bar)
    return table


def text_bar(length: float) -> str:
    """A bar of ``length`` columns, to an eighth."""
    eighths = round(length * 8)
    return BAR * (eighths // 8) + FRACTIONS[eighths % 8].strip()


def example_table(group: Group, out: Console) -> Table:
    """Examples one a line, the firing tokens below each other."""
    labels = any(band.label for band in group.bands)
    shown = [example for band in group.bands for example in band.examples]
    places = decimals([e.activation for e in shown])
    activations = [number(e.activation, places) for e in shown]
    label = max((len(band.label) for band in group.bands), default=0)
    parts = part_columns(group, out.width)
    widest = sum(max(map(len, [name, *column])) + 2 for name, column in zip(PART_NAMES, parts, strict=False))
    room = out.width - max(map(len, [*activations, "0"])) - (label + 2 if labels else 0) - 2 - widest
    marked = out.color_system is None or out.no_color

    table = Table.grid(padding=(0, 2, 0, 0))
    table.title, table.title_justify, table.title_style = Text(group.title, "bold"), "left", ""
    table.title.append(f"\n{group.note}", "dim")
    if labels:
        table.add_column(no_wrap=True, style="dim")
    table.add_column(justify="right", no_wrap=True)
    for _ in parts:
        table.add_column(justify="right", no_wrap=True, style="dim")
    table.add_column(no_wrap=True)
    if parts:
        table.add_row(*([""] if labels else []), "", *PART_NAMES, "")
    rows = iter(zip(*parts, strict=True))
    for band in group.bands:
        for index, example in enumerate(band.examples):
            cells: list[RenderableType] = [Text(band.label if index == 0 else "")] if labels else []
            beside = next(rows) if parts else ()
            table.add_row(*cells, number(example.activation, places), *beside, in_context(example, room, marked))
    return table


def part_columns(group: Group, width: int) -> list[list[str]]:
    """Gate and linear part of each example, as texts; nothing where the terminal is too narrow for them."""
    if not group.gated or width < PARTS_FROM:
        return []
    shown = [example.parts for band in group.bands for example in band.examples]
    return [[number(part, 2, sign=True) for part in column] for column in zip(*shown, strict=True)]


def found_table(frame: pd.DataFrame, where: str) -> Table:
    """What a search found: neurons and the token that matched."""
    if where == "values":
        table = plain_table("neuron", "sign", "rank", "token", "score", left=["neuron", "sign", "token"])
        places = decimals(frame["score"])
        for row in frame.itertuples():
            name = f"{row.layer}.{row.neuron}"
            table.add_row(name, row.sign, str(row.rank), token(row.token), number(row.score, places, sign=True))
        return table
    table = plain_table(
        "neuron", "kind", "examples", "best rank", "token", "coefficient", left=["neuron", "kind", "token"]
    )
    places = decimals(frame["activation"])
    for row in frame.itertuples():
        name = f"{row.layer}.{row.neuron}"
        table.add_row(
            name,
            str(row.kind),
            str(row.hits),
            str(row.rank),
            token(row.token),
            number(row.activation, places, sign=True),
        )
    return table


def none_found(search: str, where: str) -> Text:
    """That a search found nothing, and where else to look."""
    looked, other = ("values", "examples") if where == "values" else ("examples", "values")
    said = "is promoted or suppressed by" if where == "values" else "fires"
    return Text(f"no token with {search!r} {said} any neuron of the store (looked in {looked}; try --where {other})")
