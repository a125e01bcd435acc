"""What the terminal shows of an edit."""

from __future__ import annotations

import io

import pandas as pd
import pytest
from rich.console import Console

import ffnmem as fm
from ffnmem.cli.edit_tables import carried, heading, moved, numbers, prompt_table, said
from ffnmem.reports.effects import COLUMNS
from tests.editing.edits import EIFFEL, made


def shown(part: object) -> str:
    out = Console(width=100, record=True, file=io.StringIO(), highlight=False)
    out.print(part)
    return out.export_text()


@pytest.mark.parametrize(("before", "after", "text"), [(0.5, 0.25, "50.0% → 25.0%"), (0.0001, 0.0002, "<0.1% → <0.1%")])
def test_moved(before: float, after: float, text: str) -> None:
    """A change of less than a percent has no colour, or every row would shout."""
    found = moved(before, after)
    assert found.plain == text
    assert bool(found.spans and any(span.style for span in found.spans)) == (abs(after - before) >= 0.01)


def test_said() -> None:
    assert said(" Paris", " Rome").plain == "·Paris → ·Rome"
    assert said(" Paris", " Paris").plain == "·Paris"


def test_heading_and_numbers(tiny: fm.Model) -> None:
    edit = made(tiny, layers=(0, 1))
    drift = {"drift_kl": 0.001234, "drift_perplexity": 1.5, "texts": 7}
    changes = [{"layer": 0, "rank": 1, "change": 0.25}, {"layer": 1, "rank": 2, "change": 1.5}]
    rows = heading(edit, changes, drift)
    assert "layer 1 by 150.0% of its norm, rank 2" in str(rows["changes"])
    assert "KL 0.0012 nats a token, perplexity × 1.5000 on 7 texts" in str(rows["drift"])
    assert list(numbers(edit)) == ["20 steps"]
    assert "drift" not in heading(edit, changes, {})


def test_untrusted_words(tiny: fm.Model) -> None:
    """Prompts and targets are a file's text: no markup, no control characters."""
    row = dict.fromkeys(COLUMNS, 0.5) | {
        "kind": "prompt",
        "prompt": "[red]a\x1b",
        "answer_before": "[/x]",
        "answer_after": "y",
    }
    out = shown(prompt_table(pd.DataFrame([row]), "[b]t", "n\n"))
    for part in ("[red]a\\x1b", "[b]t", "n\\n", "[/x] → y"):
        assert part in out


def test_what_carried_the_change(tiny: fm.Model) -> None:
    edit = made(tiny)
    found = edit.diff(tiny, EIFFEL, 5)
    top = found.components.loc[found.components["change"].abs().idxmax()]
    assert f"{found.change:+.2f}, most of it by {top['component']}" in carried(found)
