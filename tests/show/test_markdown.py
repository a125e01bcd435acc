"""A sheet as Markdown reads alike wherever a number stands in it."""

from __future__ import annotations

from ffnmem.core.sheets import Column, Facts, Sheet, rows
from ffnmem.show.markdown import markdown


def test_one_minus_sign() -> None:
    """Two kinds beside each other look like two things, and a search for one of them misses the other."""
    shown = rows("ends", Column("n", "number"), Column("share", "percent", sign=True), Column("error", "small"))
    shown.add("-0.12 to +0.12", -0.5, -0.25, 1e-7)
    text = markdown(Sheet.of(Facts({"logit": "-9.76"}), shown.table()))
    assert "−" not in text
    assert r"\-0\.5000 | \-25\.0% | 1\.0e\-7" in text
