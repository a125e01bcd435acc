"""Places in the corpus with the text around them."""

from __future__ import annotations

import pandas as pd
import pytest

from ffnmem.reports.examples import Example, example_list
from ffnmem.scanning.contexts import Window

ROWS = pd.DataFrame({"activation": [2.0, -4.0], "sequence": [7, 8], "position": [1, 2]})
WINDOWS = [Window(("a", " b", " c"), 1, False, True), Window(("d", " e"), 0, True, False)]


def test_each_row_with_its_window() -> None:
    first, second = example_list(ROWS, WINDOWS, 4.0)
    assert first == Example(2.0, 0.5, "a", " b", " c", False, True, 7, 1)
    assert second == Example(-4.0, 1.0, "", "d", " e", True, False, 8, 2)


def test_strength_stays_within_bounds() -> None:
    """It becomes an opacity."""
    assert [e.strength for e in example_list(ROWS, WINDOWS, 0.0)] == [1.0, 1.0]
    assert [e.strength for e in example_list(ROWS, WINDOWS, 3.0)] == [0.667, 1.0]


@pytest.mark.parametrize(
    ("token", "lead", "word", "blank"),
    [(" Rome", " ", "Rome", False), ("Rome", "", "Rome", False), ("  ", "", "  ", True), ("", "", "", True)],
)
def test_leading_spaces_stay_outside_the_mark(token: str, lead: str, word: str, blank: bool) -> None:
    one = Example(1.0, 1.0, "", token, "", False, False, 0, 0)
    assert (one.lead, one.word, one.blank) == (lead, word, blank)
