"""What the terminal shows of traces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.cli.trace_tables import WIDEST, group_table, heading, print_traces, strip, trace_table
from ffnmem.tracing import Traces
from tests.helpers import PROMPT


@pytest.fixture(scope="module")
def found(tiny: fm.Model) -> fm.Trace:
    return fm.trace_fact(tiny, PROMPT, "Eiffel Tower", samples=2, noise=1.0)


@pytest.mark.parametrize(
    ("effects", "shown"),
    [
        ([0.0, 0.25, 0.5, 0.75, 1.0], "·░▒▓█"),
        ([-1.0, -0.1, float("nan"), 0.1], "-· ·"),
    ],
)
def test_strip(effects: list[float], shown: str) -> None:
    """The shades of a terminal tell strength, and a dash a loss."""
    assert strip(effects, 1.0).plain == shown


def test_strip_of_many_layers() -> None:
    """The strongest of the layers that share a character, whatever its sign."""
    effects = np.zeros(2 * WIDEST)
    effects[[3, 5]] = 1.0, -1.0
    line = strip(effects, 1.0).plain
    assert len(line) == WIDEST
    assert (line[1], line[2], line[3]) == ("█", "-", "·")


def test_a_row_a_token(found: fm.Trace) -> None:
    table = trace_table(found, "state")
    labels = [str(cell) for cell in table.columns[0].cells]
    assert len(labels) == len(found.tokens)
    assert labels[0] == "BOS"
    assert [label.endswith("*") for label in labels] == [i in found.subject for i in range(len(labels))]
    best = [str(cell) for cell in table.columns[2].cells]
    assert best[found.subject[-1]] == str(int(found.indirect("state")[:, found.subject[-1]].argmax()))
    assert best[0] == ""  # nothing is corrupted there, so nothing can come back
    assert f"{found.clean:.1%} clean" in str(heading(found)["answer"])
    assert str(heading(found)["noise"]) == "standard deviation 1 (given), 2 samples, seed 0"


def test_groups(found: fm.Trace) -> None:
    traces = Traces(
        (found, replace(found, fact="other")), pd.DataFrame(columns=["fact", "subject", "reason"]), found.provenance
    )
    rows = traces.groups[traces.groups["kind"] == "ffn"]
    table = group_table(traces, "ffn", rows)
    assert [str(cell) for cell in table.columns[0].cells] == list(dict.fromkeys(rows["group"]))
    assert {str(cell) for cell in table.columns[5].cells} == {"2"}


def test_none_traced(found: fm.Trace, capsys: pytest.CaptureFixture[str]) -> None:
    """The reasons are what a user needs then."""
    skipped = pd.DataFrame([("a", "b", "it does not know [this]")], columns=["fact", "subject", "reason"])
    print_traces(Traces((), skipped, found.provenance))
    out = capsys.readouterr().out
    assert "0 facts, 1 skipped" in out
    assert "it does not know [this]" in out
