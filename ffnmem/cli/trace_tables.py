"""What ``ffnmem trace`` shows on a terminal: a strip of layers for every token, or for every group of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.text import Text

from ..show.terminal import (
    ADDS,
    TAKES,
    captioned,
    console,
    labelled,
    number,
    percent,
    plain_table,
    probability,
    provenance_line,
    token,
    user_text,
)

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType
    from rich.table import Table

    from ..tracing import Trace, Traces

SHADES = " ░▒▓█"
NEGATIVE = "-"
WIDEST = 48  # layers of a strip; more are taken together
REASONS = 3


def print_trace(found: Trace) -> None:
    out = console()
    out.print(labelled(heading(found)))
    out.print()
    for kind in found.kinds:
        out.print(trace_table(found, kind))
        out.print()
    out.print(provenance_line(found.provenance.as_dict(), out.width))


def heading(found: Trace) -> dict[str, RenderableType]:
    """The prompt, the answer, and what noise leaves of it."""
    return {
        "prompt": user_text(found.text),
        "answer": token(found.answer, "bold").append(
            f"   {probability(found.clean)} clean, {probability(found.corrupted)} with noise on the subject (*)",
            "default",
        ),
        "noise": Text(noise_line(found)),
    }


def noise_line(found: Trace) -> str:
    """How much noise, what that was taken from, and which."""
    source = dict(found.provenance.settings).get("noise_from")
    return (
        f"standard deviation {found.noise:.3g}{f' ({source})' if source else ''}, {len(found.samples)} samples, "
        f"seed {found.seed}"
    )


def trace_table(found: Trace, kind: str) -> Table:
    """A row a token: the indirect effects by layer as shades, and the best layer."""
    from ..tracing.display import described

    effects = found.indirect(kind)
    limit = float(np.abs(effects).max()) or 1.0
    table = plain_table(
        "token", strip_name(found.n_layers), "best layer", "effect", left=["token", strip_name(found.n_layers)]
    )
    table.title, table.title_justify, table.title_style = Text(described(kind, found.window)), "left", "bold"
    for position, name in enumerate(found.tokens):
        column = effects[:, position]
        best = int(column.argmax())
        bos = position == 0 and found.provenance.prepend_bos
        label = Text("BOS", "dim") if bos else token(name, limit=16)
        if position in found.subject:
            label.append("*")
        reached = bool(np.abs(column).max() > 0)
        table.add_row(
            label,
            strip(column, limit),
            str(best) if reached else "",
            percent_signed(float(column[best])) if reached else "",
        )
    return captioned(table, f"█ is {percent(limit)}, {NEGATIVE} below zero")


def strip_name(n_layers: int) -> str:
    return f"layers 0–{n_layers - 1}"


def strip(effects: Sequence[float] | np.ndarray, limit: float) -> Text:
    """One character a layer; of more than WIDEST layers the largest of those that share one."""
    size = -(-len(effects) // WIDEST)
    result = Text()
    for begin in range(0, len(effects), size):
        some = [float(e) for e in effects[begin : begin + size]]
        value = max(some, key=abs)
        level = min(round(abs(value) / limit * (len(SHADES) - 1)), len(SHADES) - 1) if value == value else 0
        if value < 0 and level:
            result.append(NEGATIVE, TAKES)
        else:
            result.append(SHADES[level] if level or value != value else "·", ADDS if level else "dim")
    return result


def percent_signed(value: float) -> str:
    return f"{100 * value:+.1f}%"


def print_traces(found: Traces) -> None:
    out = console()
    facts = found.facts
    rows: dict[str, RenderableType] = {"traced": Text(f"{len(found):,} facts, {len(found.skipped):,} skipped")}
    if len(found):
        clean, corrupted = (percent(float(facts[name].mean())) for name in ("clean", "corrupted"))
        rows["answer"] = Text(f"{clean} clean, {corrupted} with noise on the subject, on the mean")
    if len(found.skipped):
        why = [user_text(str(reason)) for reason in found.skipped["reason"].head(REASONS)]
        rows["skipped"] = Text("\n").join(why)
    out.print(labelled(rows))
    out.print()
    for kind, groups in found.groups.groupby("kind", sort=False):
        out.print(group_table(found, str(kind), groups))
        out.print()
    out.print(provenance_line(found.provenance.as_dict(), out.width))


def group_table(found: Traces, kind: str, groups: pd.DataFrame) -> Table:
    """A row a group of positions: mean indirect effects by layer as shades, and the best layer with its interval."""
    from ..tracing.display import described

    first = found.traces[0]
    name = strip_name(first.n_layers)
    limit = float(groups["mean"].abs().max()) or 1.0
    table = plain_table("at", name, "best", "effect", "95% interval", "facts", left=["at", name])
    table.title, table.title_justify, table.title_style = Text(described(kind, first.window)), "left", "bold"
    for group, rows in groups.groupby("group", sort=False):
        best = rows.loc[rows["mean"].idxmax()]
        ends = (
            "–" if best["low"] != best["low"] else f"{number(100 * best['low'], 1)} to {number(100 * best['high'], 1)}"
        )
        table.add_row(
            str(group),
            strip(rows["mean"].to_numpy(), limit),
            str(int(best["layer"])),
            percent_signed(float(best["mean"])),
            ends,
            f"{int(best['n']):,}",
        )
    return captioned(table, f"█ is {percent(limit)}, {NEGATIVE} below zero")
