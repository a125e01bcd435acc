"""What notebooks show of a capture, of an attribution of many positions, and of paths."""

from __future__ import annotations

import pytest

import ffnmem as fm
from ffnmem.prompts.captures import PROMPTS, TOKENS
from ffnmem.show.notebook import html

from .page import Page

PROMPT = "The Eiffel Tower is located in the city of"


def test_attribution_of_many_positions(atlas: fm.Model) -> None:
    attribution = fm.attribute(fm.capture(atlas, [5 + i for i in range(31)]), fm.prompts.NEXT)
    _, *rows = Page(html(attribution.sheet(None))).listed[0][2]
    assert [int(row[0].text) for row in rows] == list(range(30))
    assert [row[3].values[0] for row in rows] == attribution.logits.tolist()


def test_capture_shows_prompts_layers_shapes_and_provenance(atlas: fm.Model) -> None:
    """Of a large one the beginning, and how much more there is."""
    capture = fm.capture(atlas, [PROMPT, "The\n"], layers=[1, 3], logits=True)
    page = Page(capture._repr_html_())
    assert "Capture of 2 prompts, layers 1, 3 of atlas" in page.words
    assert "<|endoftext|> The" in page.words
    assert "↵" in page.words
    batch, pos = capture.tokens.shape
    assert f"pre, coefficients [{batch}, {pos}, {atlas.d_mlp}] per layer" in page.words
    assert f"logits [{batch}, {pos}, {atlas.d_vocab}]" in page.words
    assert capture.provenance.fingerprint in page.words
    assert "and 3 more prompts" in Page(fm.capture(atlas, ["The"] * (PROMPTS + 3))._repr_html_()).words
    assert "… and 7 more tokens" in Page(fm.capture(atlas, [5] * (TOKENS + 7))._repr_html_()).words


@pytest.mark.parametrize("foil", [None, " Rome"])
def test_paths_show_their_firings(atlas: fm.Model, foil: str | None) -> None:
    paths = fm.attribute_paths(fm.capture(atlas, PROMPT), " Paris", foil)
    page, expected = Page(paths._repr_html_()), paths.top(10)
    logits = [cell.values for _, _, rows in page.listed for row in rows for cell in row]
    assert all([value] in logits for value in expected["logit"])
    assert f"wrote {float(paths.map.sum()):+.3f} of the logit" in page.words
    assert ("·Rome" in page.words) == (foil is not None)
