"""The page of a contrast."""

from __future__ import annotations

from pathlib import Path

import ffnmem as fm
from ffnmem.pages.contrasts import firing_grid

from .page import Page


def test_it_has_the_proof_the_places_and_the_firings(atlas: fm.Model, tmp_path: Path) -> None:
    one, other = "The Eiffel Tower is located in the city of", "The Kremlin is located in the city of"
    found = fm.contrast(atlas, one, other, random=2)
    page = fm.pages.contrast(found, tmp_path / "page.html", top=7)
    text = page.read_text("utf-8")
    title, *sections = Page(text).headings
    assert title == "Two prompts, one difference"
    assert sections[:2] == ["Where they are", "Which they are"]
    assert found.verdict in text
    grid = firing_grid(found)
    assert grid.limit == max(abs(value) for row in grid.values for value in row if value == value)
    first = found.firings.iloc[0]
    assert f"{first['layer']}.{first['neuron']}" in text
    last = found.firings.iloc[7]
    assert f">{last['layer']}.{last['neuron']}<" not in text
