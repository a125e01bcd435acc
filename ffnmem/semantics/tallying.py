"""What a table of :func:`ffnmem.polysemanticity` comes to: verdicts by layer, and the clearest neurons of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..core.choices import VERDICTS
from ..core.sheets import Block, Column, Origin, Sheet, Span, Table, Words, line, of_number, rows, tokens
from ..errors import InputError, check_choice, check_count
from ..show.result import Result
from .meanings import Meanings, settled

MEANINGS = 4  # of each neuron listed

ORDERS: dict[str, dict[str, bool]] = {
    "monosemantic": {"meanings_high": True, "ms_low": False},
    "polysemantic": {"meanings_low": False, "ms_low": False},
    "unclear": {"examples": False, "meanings_low": False},
    "dead": {},
}
"""By verdict, the columns that make a neuron clear, and whether the smallest come first."""


def verdict_counts(table: pd.DataFrame) -> pd.DataFrame:
    """How many neurons of each layer and sign have each verdict.

    Args:
        table: of :func:`ffnmem.polysemanticity`.

    Returns:
        One row a layer and sign: layer, sign, neurons, monosemantic, polysemantic, unclear, dead.

    Raises:
        InputError: another table.
    """
    check_table(table)
    groups = table.groupby(["layer", "sign"], sort=True)["verdict"]
    counts = groups.value_counts().unstack(fill_value=0).reindex(columns=list(VERDICTS), fill_value=0)
    counts.insert(0, "neurons", groups.size())
    counts.columns.name = None
    # "positive" before "negative", which the alphabet has the other way round
    return counts.sort_index(ascending=[True, False]).reset_index()


def clearest(table: pd.DataFrame, verdict: str, top: int | None = None) -> pd.DataFrame:
    """The rows of a verdict, the clearest first: polysemantic by the lower end of their number of meanings,
    monosemantic by its upper end and then by MS, unclear by examples; ties by layer and neuron.

    Raises:
        InputError: an unknown verdict, or another table.
    """
    check_table(table)
    order = ORDERS[check_choice("verdict", verdict, VERDICTS)]
    rows = table[table["verdict"] == verdict].sort_values(["layer", "neuron"], kind="stable")
    for name, ascending in reversed(order.items()):
        rows = rows.sort_values(name, ascending=ascending, kind="stable")
    return rows if top is None else rows.head(check_count("top", top))


def check_table(table: pd.DataFrame) -> None:
    """Raise InputError unless the table has what a verdict is told by."""
    needed = {"layer", "neuron", "sign", "verdict", *(name for order in ORDERS.values() for name in order)}
    missing = sorted(needed - set(table.columns))
    if missing:
        raise InputError(f"the table has no column {missing[0]}: give one of polysemanticity")


@dataclass(frozen=True, eq=False, repr=False)
class Survey(Result):
    """A table of :func:`ffnmem.polysemanticity` in short.

    Attributes:
        table: all of it. listed: the rows of the neurons to show, a verdict's together. found: their meanings.
    """

    table: pd.DataFrame
    listed: pd.DataFrame
    found: Sequence[Meanings]

    def summary(self) -> str:
        counts = self.table["verdict"].value_counts()
        return f"{len(self.table):,} neurons: " + ", ".join(f"{counts.get(name, 0):,} {name}" for name in VERDICTS)

    def sheet(self) -> Sheet:
        """Verdicts by layer, then the neurons listed, with their meanings."""
        verdicts = self.listed["verdict"].tolist()
        tables: list[Block] = [
            neuron_table(name, [one for one, verdict in zip(self.found, verdicts, strict=True) if verdict == name])
            for name in dict.fromkeys(verdicts)
        ]
        none = Words.of("no neuron to list: none has such a verdict")
        return Sheet.of(count_table(self.table), *(tables or [none]), Origin(settled(self.table.attrs["provenance"])))

    def to_dict(self) -> dict[str, Any]:
        """Counts and the listed neurons as plain values."""
        listed = self.listed.to_dict("records")
        return {
            "layers": verdict_counts(self.table).to_dict("records"),
            "neurons": [{**row, "groups": o.to_dict()["meanings"]} for row, o in zip(listed, self.found, strict=True)],
            "provenance": self.table.attrs["provenance"],
        }

    def to_frame(self) -> pd.DataFrame:
        """``table``."""
        return self.table


def count_table(table: pd.DataFrame) -> Table:
    """How many neurons of each layer have each verdict, and why the unclear ones are."""
    counts = verdict_counts(table)
    both = counts["sign"].nunique() > 1
    signs = ["sign"] if both else []
    shown = rows(
        Column("layer", left=False),
        *signs,
        Column("neurons", "count"),
        *(Column(name, left=False) for name in VERDICTS),
    )

    def shares(row: Any) -> list[str | None]:
        return [f"{row[name]:,} {row[name] / row['neurons']:>4.0%}" if row[name] else None for name in VERDICTS]

    for row in counts.to_dict("records"):
        shown.add(str(row["layer"]), *(row[name] for name in signs), row["neurons"], *shares(row))
    if len(counts) > 1:
        total = counts[["neurons", *VERDICTS]].sum().to_dict()
        shown.add("all", *([None] if both else []), total["neurons"], *shares(total), section=True)
    reasons = table.loc[table["verdict"] == "unclear", "why"].value_counts()
    said = "; ".join(f"{count:,} {why}" for why, count in reasons.items())
    return shown.table("verdicts by layer", caption=f"unclear: {said}" if said else "")


def neuron_table(verdict: str, found: Sequence[Meanings]) -> Table:
    """Neurons of a verdict, a row a meaning."""
    both = len({one.sign for one in found}) > 1
    shown = rows(
        Column("neuron", "neuron"),
        *(["sign"] if both else []),
        Column("meanings", "number", places=2),
        Column("95%", left=False),
        Column("examples", left=False),
        Column("share", left=False),
        Column("trigger tokens", wraps=True),
    )
    for one in found:
        value, low, high = one.number
        span = f"{of_number(low, 2)} to {of_number(high, 2)}" if low == low else None
        place = (one.layer, one.neuron)
        lead: list[Any] = [place, *([one.sign] if both else []), value, span, str(one.n_examples)]
        for row in one.table.head(MEANINGS).itertuples():
            shown.add(*lead, f"{row.share:.0%}", tokens(one.triggers[row.meaning]))
            lead = [None] * len(lead)
        rest = one.table["share"].iloc[MEANINGS:]
        if len(rest):
            shown.add(*lead, f"{rest.sum():.0%}", line(Span(f"in {len(rest)} more", "soft")))
        if not len(one.table):
            shown.add(*lead)
    return shown.table(f"the clearest {verdict} neurons")
