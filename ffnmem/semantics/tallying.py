"""What a table of :func:`ffnmem.polysemanticity` comes to: verdicts by layer, and the clearest neurons of each."""

from __future__ import annotations

import pandas as pd

from ..errors import InputError, check_choice, check_count
from .verdicts import VERDICTS

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
