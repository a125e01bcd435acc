"""Many traces averaged by where a token stands."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from ffnmem.core.provenance import Provenance
from ffnmem.tracing import Trace, Traces
from ffnmem.tracing.traces import GROUP_COLUMNS, GROUPS, positions_by_group

from ..helpers import allclose, printed

HOW = Provenance("m", "f", "float32", "cpu")


def made(subject: range, length: int, effect: float = 0.0) -> Trace:
    """A trace whose indirect effect at layer l and position p is p + 10·l + ``effect``."""
    scores = np.arange(length) + 10.0 * np.arange(2)[:, None] + effect + 0.25
    tokens = tuple(f"t{i}" for i in range(length))
    return Trace({"state": scores}, 0.9, np.array([0.2, 0.3]), "a", (1,), "text", tokens, subject, "f", 1, 0.1, 0, HOW)


def gathered(*traces: Trace) -> Traces:
    return Traces(traces, pd.DataFrame(columns=["fact", "subject", "reason"]), HOW)


@pytest.mark.parametrize(
    ("subject", "length", "expected"),
    [
        (range(1, 5), 9, ([1], [2, 3], [4], [5], [6, 7], [8])),
        (range(0, 1), 4, ([], [], [0], [1], [2], [3])),
        (range(1, 3), 4, ([1], [], [2], [], [], [3])),
        (range(1, 3), 5, ([1], [], [2], [3], [], [4])),
        (range(1, 4), 4, ([1], [2], [], [], [], [3])),
        (range(2, 3), 3, ([], [], [], [], [], [2])),
    ],
)
def test_each_position_is_in_one_group(subject: range, length: int, expected: tuple[list[int], ...]) -> None:
    """A last token counted as one after the subject would lend it the effect that every last token has."""
    found = positions_by_group(subject, length)
    assert tuple(found) == GROUPS
    assert tuple(found.values()) == expected
    assert sorted(place for places in found.values() for place in places) == list(range(subject.start, length))


def test_groups_average_facts_alike() -> None:
    """A fact with many further tokens counts once; the interval is over facts."""
    traces = gathered(made(range(1, 3), 9), made(range(1, 3), 6, effect=1.0), made(range(2, 3), 4))
    rows = traces.groups.set_index(["group", "layer"])
    further = rows.loc[("further", 1)]  # positions 4 to 7 of the first, 4 of the second, none of the third
    values = np.array([10 + 5.5, 10 + 5.0])
    assert further["n"] == 2
    assert further["mean"] == pytest.approx(values.mean())
    error = values.std(ddof=1) / np.sqrt(2)
    assert (further["low"], further["high"]) == pytest.approx(
        (values.mean() - 1.96 * error, values.mean() + 1.96 * error)
    )
    assert rows.loc[("last token", 0), "mean"] == pytest.approx((8 + 6 + 3) / 3)
    assert rows.loc[("last token", 0), "n"] == 3
    assert np.isnan(rows.loc[("last subject", 0), "low"]) == np.False_
    assert "middle subject" not in set(traces.groups["group"])
    assert tuple(traces.groups.columns) == GROUP_COLUMNS


def test_a_single_fact_has_no_interval() -> None:
    rows = gathered(made(range(1, 3), 5)).groups
    assert rows[["low", "high"]].isna().all(axis=None)
    assert allclose(rows[rows["group"] == "last token"]["mean"], [4.0, 14.0], 1e-12)


def test_tables_json_and_line() -> None:
    traces = gathered(made(range(1, 3), 5))
    record = json.loads(json.dumps(traces.to_dict(), allow_nan=False))
    assert record["groups"][0]["low"] is None
    assert record["facts"][0]["total"] == pytest.approx(0.65)
    assert "\n" not in repr(traces)
    assert "1 fact," in repr(traces)
    copy = traces.to_frame()
    copy["mean"] = 0.0
    assert traces.groups["mean"].any(), "to_frame gave the table itself"
    assert "1 fact, 0 skipped" in traces._repr_html_()
    assert "1 fact" in traces.plot().get_title(loc="left")


def test_no_facts() -> None:
    """All skipped is a result too."""
    traces = gathered()
    assert traces.groups.empty
    assert tuple(traces.groups.columns) == GROUP_COLUMNS
    assert traces.facts.empty
    assert "0 facts" in repr(traces)
    skipped = pd.DataFrame([("a", "b", "it does not know [this]")], columns=["fact", "subject", "reason"])
    text = "\n".join(printed(replace(traces, skipped=skipped).sheet()))
    assert "0 facts, 1 skipped" in text
    assert "it does not know [this]" in text
