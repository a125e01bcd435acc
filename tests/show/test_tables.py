"""Tables from frames, grids and histograms: what a reader sees of the numbers, on a terminal and on a page."""

from __future__ import annotations

import math

import pandas as pd

from ffnmem.core.neuron_names import ExpertSizes
from ffnmem.core.sheets import Column, Table, name_experts, token

from ..helpers import printed

NEURONS = pd.DataFrame(
    {
        "layer": [5, 0, 1],
        "neuron": [97, 3, 4],
        "coefficient": [1.5, -0.25, 0.125],
        "logit": [2.0, -1.0, 0.5],
        "share": [0.5, -0.25, math.nan],
        "token": [" in", " of", "\n"],
    }
)


def test_a_frame_is_shown_by_the_names_of_its_columns() -> None:
    """A neuron is of two columns, units come from the registry, and the caption counts what is left out."""
    table = Table.of(NEURONS, "neuron token coefficient logit share", top=2, rest="in .neurons", title="memories")
    assert table.rows[0] == ((5, 97), " in", 1.5, 2.0, 0.5)
    shown = printed(table)
    assert shown[0] == "memories"
    assert shown[3].split() == ["5.97", "·in", "1.500", "+2.000", "50.0%"]
    assert shown[-1] == "1 more in .neurons"
    assert [column.to_left for column in table.columns] == [True, True, False, False, False]


def test_neurons_of_experts_have_names() -> None:
    """Layer and number alone would not say of which expert a neuron is."""
    table = name_experts(Table.of(NEURONS, "logit neuron token"), {0: ExpertSizes(2, 3, 0)})
    assert [column.name for column in table.columns] == ["logit", "neuron", "expert", "token"]
    assert [row[2] for row in table.rows] == [None, "e1.0", None]
    assert [row[3] for row in table.rows] == [" in", " of", "\n"]
    assert name_experts(table, {0: ExpertSizes(2, 3, 0)}) == table


def test_columns_may_be_computed_renamed_or_left_out() -> None:
    double = Column("twice", "number", of=lambda row: 2 * row["logit"])
    table = Table.of(NEURONS, "neuron", double, None, Column("at", "token", of="token"))
    assert [column.name for column in table.columns] == ["neuron", "twice", "at"]
    assert table.rows[2] == ((1, 4), 1.0, "\n")


def test_a_frame_without_names_is_shown_whole() -> None:
    table = Table.of(pd.DataFrame({"n_facts": [1, 2], "what": ["a", " b"], "none": [None, pd.NA]}))
    assert [column.name for column in table.columns] == ["n_facts", "what", "none"]
    assert table.rows == ((1, "a", None), (2, token(" b"), None))
