"""Tables that no frame holds as they are shown."""

from __future__ import annotations

from ffnmem.core.neuron_names import ExpertSizes
from ffnmem.core.sheets import Column, name_experts, rows


def test_neurons_of_experts_have_names() -> None:
    """Layer and number alone would not say of which expert a neuron is."""
    shown = rows("logit", Column("neuron", "neuron"), "token")
    for logit, place, text in ((2.0, (5, 97), " in"), (-1.0, (0, 3), " of"), (0.5, (1, 4), "\n")):
        shown.add(logit, place, text)
    table = name_experts(shown.table(), {0: ExpertSizes(2, 3, 0)})
    assert [column.name for column in table.columns] == ["logit", "neuron", "expert", "token"]
    assert [row[2] for row in table.rows] == [None, "e1.0", None]
    assert [row[3] for row in table.rows] == [" in", " of", "\n"]
    assert name_experts(table, {0: ExpertSizes(2, 3, 0)}) == table
