"""The page of a contrast."""

from __future__ import annotations

from pathlib import Path

import ffnmem as fm

from .page import Page


def test_it_has_the_proof_the_places_and_the_firings(atlas: fm.Model, tmp_path: Path) -> None:
    one, other = "The Eiffel Tower is located in the city of", "The Kremlin is located in the city of"
    found = fm.contrast(atlas, one, other, random=2)
    page = fm.pages.page(found, tmp_path / "page.html", top=7)
    text = page.read_text("utf-8")
    title, *sections = Page(text).headings
    assert title == "Contrast"
    assert sections[:4] == ["Proof", "Firings", "Where", "Curve"]
    assert found.verdict in text
    grid = found.where
    assert grid is not None
    assert grid.limit == max(abs(value) for row in grid.values for value in row if value == value)
    first = found.firings.iloc[0]
    assert f"{first['layer']}.{first['neuron']}" in text
    last = found.firings.iloc[7]
    assert f">{last['layer']}.{last['neuron']}<" not in text
