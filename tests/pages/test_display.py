"""What notebooks show of a capture."""

from __future__ import annotations

import ffnmem as fm
from ffnmem.prompts.captures import PROMPTS, TOKENS

from .page import Page

PROMPT = "The Eiffel Tower is located in the city of"


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
