"""Text around a token in a fixed width, whatever the text."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from ffnmem.core.sheets import Context
from ffnmem.show.terminal import in_context

LONG = "one two three four five six seven eight nine ten"


def example(before: str, token: str, after: str, cut: bool = False) -> Context:
    return Context(before, token, after, cut, cut)


@pytest.mark.parametrize("width", [24, 40, 41, 80])
@pytest.mark.parametrize(
    ("before", "token", "after"),
    [
        ("", "a", ""),
        (LONG, " is", LONG),
        ("日本" * 20, "語", "本" * 30),
        ("x", " " * 9, "y"),
        ("x", "w" * 99, "y"),
        ("", "", ""),
    ],
    ids=["short", "long", "wide", "spaces", "one long word", "empty"],
)
def test_the_token_stands_in_one_place(before: str, token: str, after: str, width: int) -> None:
    """Two fifths from the left, and no line wider than it may be."""
    for cut in (False, True):
        line = in_context(example(before, token, after, cut), width, marked=True).plain
        assert cell_len(line) <= width
        word = cell_len(line[line.index("«") : line.index("»") + 1])
        assert cell_len(line[: line.index("«")]) == 2 * (width - word) // 5


def test_what_is_cut_says_so() -> None:
    line = in_context(example(LONG, " is", LONG), 40, marked=True).plain
    assert line.startswith("…")
    assert line.endswith("…")
    whole = in_context(example("one", " is", " two"), 40, marked=True).plain
    assert whole.strip() == "one «is» two"
    assert in_context(example("one", " is", " two"), 14, marked=True).plain == "one «is» two"  # there is just room
    assert "…" in in_context(example("one", " is", " two", cut=True), 40, marked=True).plain.split("«")[0]
