"""What a table of verdicts comes to: counts by layer, the clearest neurons of each verdict, and what a store keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..core.errors import InputError, check_choice, check_count
from ..core.number_text import format_number
from ..core.sheets import Block, Column, Origin, Sheet, Span, Table, Words, line, rows, tokens
from ..core.types import COEFFICIENT_SIGNS, VERDICTS
from ..scanning.neuron_sides import NEGATIVE, POSITIVE
from ..scanning.store import Store
from ..show.result import Result
from .concepts import Meanings, settled
from .measuring import opened

MEANINGS = 4  # of each neuron listed

ORDERS: dict[str, dict[str, bool]] = {
    "monosemantic": {"meanings_high": True, "ms_low": False},
    "polysemantic": {"meanings_low": False, "ms_low": False},
    "unclear": {"examples": False, "meanings_low": False},
    "inactive": {},
}
"""By verdict, the columns that make a neuron clear, and whether the smallest come first."""


def verdict_counts(table: pd.DataFrame) -> pd.DataFrame:
    """How many neurons of each layer and sign have each verdict.

    Args:
        table: of :func:`ffnmem.polysemanticity`.

    Returns:
        One row a layer and sign: layer, sign, neurons, monosemantic, polysemantic, unclear, inactive.

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


def kept_verdicts(store: Store, sign: str) -> pd.DataFrame | None:
    """Layer, neuron, sign, verdict and number of meanings, where the store keeps a table of the sign."""
    found = opened(store, sign, {})
    if found is None:
        return None
    names = ["layer", "neuron", "sign", "verdict", "meanings"]
    table: pd.DataFrame = found[0].rows.to_table(columns=names).to_pandas()
    return table


def stronger_verdicts(store: Store) -> pd.DataFrame | None:
    """Of each neuron's stronger side what :func:`kept_verdicts` has; None where the store keeps no table."""
    tables = [table for sign in COEFFICIENT_SIGNS if (table := kept_verdicts(store, sign)) is not None]
    stats = store.stats()[["layer", "neuron", "min", "max"]]
    negative = store.gated & (-stats["min"] > stats["max"])
    stats["sign"] = np.where(negative, NEGATIVE, POSITIVE)
    stronger = stats[["layer", "neuron", "sign"]]
    return pd.concat(tables).merge(stronger, on=[*stronger]) if tables else None


@dataclass(frozen=True, eq=False, repr=False)
class Survey(Result):
    """A table of :func:`ffnmem.polysemanticity` in short.

    Attributes:
        table: all of it. listed: the rows of the neurons to show, a verdict's together. found: their meanings.
    """

    main = "table"
    in_json = "layers neurons"

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
        return Sheet.of(count_table(self.table), *(tables or [none]), Origin(settled(self.provenance)))

    @property
    def layers(self) -> pd.DataFrame:
        """How many neurons of each layer have each verdict."""
        return verdict_counts(self.table)

    @property
    def neurons(self) -> list[dict[str, Any]]:
        """The neurons ``listed``, each with its meanings (``groups``)."""
        listed = self.listed.to_dict("records")
        return [{**row, "groups": one.meanings} for row, one in zip(listed, self.found, strict=True)]

    @property
    def provenance(self) -> dict[str, Any]:
        """Of ``table``."""
        found: dict[str, Any] = self.table.attrs["provenance"]
        return found


def count_table(table: pd.DataFrame) -> Table:
    """How many neurons of each layer have each verdict, and why the unclear ones are."""
    counts = verdict_counts(table)
    signs = (counts["sign"] == NEGATIVE).any()
    rows = counts.assign(layer=counts["layer"].astype(str)).to_dict("records")
    if len(counts) > 1:
        rows.append({"layer": "all", "sign": None, **counts[["neurons", *VERDICTS]].sum().to_dict()})

    def share(name: str) -> Column:
        def said(row: Mapping[str, Any]) -> str | None:
            return f"{row[name]:,} {row[name] / row['neurons']:>4.0%}" if row[name] else None

        return Column(name, left=False, of=said)

    reasons = table.loc[table["verdict"] == "unclear", "why"].value_counts()
    said = "; ".join(f"{count:,} {why}" for why, count in reasons.items())
    return Table.of(
        rows,
        Column("layer", left=False),
        "sign" if signs else None,
        "neurons",
        *map(share, VERDICTS),
        title="verdicts by layer",
        caption=f"unclear: {said}" if said else "",
        sections=(len(counts),) if len(counts) > 1 else (),
    )


def neuron_table(verdict: str, found: Sequence[Meanings]) -> Table:
    """Neurons of a verdict, a row a meaning."""
    signs = any(one.negative for one in found)
    shown = rows(
        Column("neuron", "neuron"),
        *(["sign"] if signs else []),
        Column("meanings", "number", places=2),
        Column("95%", left=False),
        Column("examples", left=False),
        Column("share", left=False),
        Column("trigger tokens", wraps=True),
    )
    for one in found:
        value, low, high = one.number
        span = f"{format_number(low, 2)} to {format_number(high, 2)}" if low == low else None
        place = (one.layer, one.neuron)
        lead: list[Any] = [place, *([one.sign] if signs else []), value, span, str(one.n_examples)]
        for row in one.table.head(MEANINGS).itertuples():
            shown.add(*lead, f"{row.share:.0%}", tokens(one.triggers[row.meaning]))
            lead = [None] * len(lead)
        rest = one.table["share"].iloc[MEANINGS:]
        if len(rest):
            shown.add(*lead, f"{rest.sum():.0%}", line(Span(f"in {len(rest)} more", "soft")))
        if not len(one.table):
            shown.add(*lead)
    return shown.table(f"the clearest {verdict} neurons")
