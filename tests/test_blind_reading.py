"""The blind reading: its arithmetic, and that the page tells what the files say."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    import reading

    return reading


def test_kappa(reading: object) -> None:
    """Cohen 1960: of 50 cases 20 + 15 agree, 10 and 5 do not: (.7 − .5)/(1 − .5)."""
    one = np.repeat([0, 0, 1, 1], [20, 5, 10, 15])
    other = np.repeat([0, 1, 0, 1], [20, 5, 10, 15])
    assert reading.kappa(one, other) == pytest.approx(0.4)  # type: ignore[attr-defined]
    assert reading.kappa(one, one) == 1  # type: ignore[attr-defined]
    low, high = reading.kappa_interval(one, other)  # type: ignore[attr-defined]
    assert low < 0.4 < high


def test_lines_and_order(reading: object) -> None:
    values, several = np.array([1.0, 2.0, 8.0, 9.0]), np.array([False, False, True, True])
    assert reading.best_line(values, several) == pytest.approx(4.0)  # type: ignore[attr-defined]
    assert reading.above_chance(values, several) == 1  # type: ignore[attr-defined]
    assert reading.above_chance(values, ~several) == 0  # type: ignore[attr-defined]


def test_the_page_is_what_is_kept(reading: object, capsys: pytest.CaptureFixture[str]) -> None:
    reading.page(ROOT / "data" / "reading")  # type: ignore[attr-defined]
    assert capsys.readouterr().out == (ROOT / "docs" / "results" / "reading.md").read_text()


def test_text_of_others_is_no_markup(reading: object) -> None:
    assert reading.cell("a|b *c* <d>\n[e](f)") == "a\\|b \\*c\\* &lt;d&gt;↵\\[e\\](f)"  # type: ignore[attr-defined]
