"""What ``ffnmem polysemanticity`` shows on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..reports.meanings import meanings_card, settled
from ..semantics.tallying import verdict_counts
from ..semantics.verdicts import VERDICTS
from ..show.terminal import captioned, number, plain_table, provenance_line, token_line
from .meaning_tables import meanings_table, measures_table

if TYPE_CHECKING:
    import pandas as pd

    from ..semantics.meanings import Meanings

TRIGGERS = "trigger tokens"
MEANINGS = 4  # of each neuron listed


def print_meanings(out: Console, found: Sequence[Meanings]) -> None:
    """Neurons one by one: the verdict, the meanings with their examples, the measures."""
    for one in found:
        out.print(Text(f"Neuron {one.name} of {one.store.model}", "bold"))
        out.print()
        out.print(meanings_table(meanings_card(one), out))
        out.print()
        if len(one.table):
            out.print(measures_table(one))
            out.print()
    out.print(provenance_line(settled(found[0].provenance), out.width))


def print_survey(out: Console, table: pd.DataFrame, listed: pd.DataFrame, found: Sequence[Meanings]) -> None:
    """Verdicts by layer, then the neurons listed, with their meanings."""
    out.print(count_table(table))
    out.print()
    for verdict in dict.fromkeys(listed["verdict"]):
        there = (listed["verdict"] == verdict).tolist()
        out.print(neuron_table(verdict, [one for one, here in zip(found, there, strict=True) if here]))
        out.print()
    if not len(listed):
        out.print(Text("no neuron to list: none has such a verdict"))
        out.print()
    out.print(provenance_line(settled(table.attrs["provenance"]), out.width))


def count_table(table: pd.DataFrame) -> Table:
    """How many neurons of each layer have each verdict, and why the unclear ones are."""
    counts = verdict_counts(table)
    both = counts["sign"].nunique() > 1
    columns = ["layer", *(["sign"] if both else []), "neurons", *VERDICTS]
    shown = plain_table(*columns, left=["sign"], title="verdicts by layer")
    for row in counts.to_dict("records"):
        cells = [f"{row[name]:,} {row[name] / row['neurons']:>4.0%}" if row[name] else "" for name in VERDICTS]
        shown.add_row(str(row["layer"]), *([row["sign"]] if both else []), f"{row['neurons']:,}", *cells)
    if len(counts) > 1:
        shown.add_section()
        total = counts[["neurons", *VERDICTS]].sum()
        cells = [f"{total[name]:,} {total[name] / total['neurons']:>4.0%}" if total[name] else "" for name in VERDICTS]
        shown.add_row("all", *([""] if both else []), f"{total['neurons']:,}", *cells)
    reasons = table.loc[table["verdict"] == "unclear", "why"].value_counts()
    if len(reasons):
        said = "; ".join(f"{count:,} {why}" for why, count in reasons.items())
        captioned(shown, f"unclear: {said}")
    return shown


def neuron_table(verdict: str, found: Sequence[Meanings]) -> Table:
    """Neurons of a verdict, a line a meaning."""
    both = len({one.sign for one in found}) > 1
    columns = ["neuron", *(["sign"] if both else []), "meanings", "95%", "examples", "share", TRIGGERS]
    shown = plain_table(*columns, left=["neuron", "sign"], wraps=[TRIGGERS], title=f"the clearest {verdict} neurons")
    for one in found:
        value, low, high = one.number
        span = f"{number(low, 2)} to {number(high, 2)}" if low == low else ""
        examples = str(int(one.table["examples"].sum()))
        lead = [one.name, *([one.sign] if both else []), number(value, 2), span, examples]
        rows = list(one.table.head(MEANINGS).itertuples())
        for row in rows:
            shown.add_row(*lead, f"{row.share:.0%}", token_line(one.triggers[row.meaning]))
            lead = [""] * len(lead)
        rest = one.table.iloc[len(rows) :]
        if len(rest):
            shown.add_row(*lead, f"{rest['share'].sum():.0%}", Text(f"in {len(rest)} more", "dim"))
        if not rows:
            shown.add_row(*lead, "", "")
    return shown
