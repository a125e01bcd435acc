"""Numbers that are none, in every kind of column and every place where a sheet is shown."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from ffnmem.core.sheets import Column, Sheet, rows
from ffnmem.show.markdown import markdown
from ffnmem.show.notebook import html
from tests.helpers import printed

from .framed import Framed

NUMBERS = ("number", "count", "percent", "probability", "small", "bar")


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float64("nan"), None])
def test_what_is_no_number_is_a_dash(kind: str, value: float | None) -> None:
    """A crash, or ``nan%``, would be all that a reader sees of the rest."""
    table = rows("name", Column("value", kind)).table()  # type: ignore[arg-type]
    shown = rows("name", Column("value", kind))  # type: ignore[arg-type]
    shown.add("one", value)
    shown.add("two", 0.5 if kind != "count" else 3)
    assert not table.rows
    sheet = Sheet.of(shown.table())
    for text in ("\n".join(printed(sheet)), html(sheet), markdown(sheet)):
        assert "nan" not in text.split("</style>")[-1].lower().replace('value="nan"', "")
        assert "two" in text


def test_a_frame_of_anything_is_a_table() -> None:
    """Numbers of editors are open: text, flags, lists and gaps stand in one column."""
    frame = pd.DataFrame({"flag": [True, False], "mixed": ["a", 2.5], "n": [1.0, np.nan]})
    text = "\n".join(printed(Framed(frame).sheet()))
    assert "True" in text
    assert "2.5" in text
