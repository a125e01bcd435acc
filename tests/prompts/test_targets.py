"""Prompts that end in a space."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.errors import FfnmemWarning
from ffnmem.prompts.captures import ENDING, warn_of_trailing_space

from ..helpers import PROMPT


def test_a_space_at_the_end_of_a_prompt(tiny: fm.Model) -> None:
    """It was explained as it is, without a word."""
    with pytest.warns(FfnmemWarning, match=r"ends in a space.*city of'; leave the space out"):
        fm.capture(tiny, PROMPT + " ")
    with pytest.warns(FfnmemWarning, match="ends in a space"):
        fm.capture(tiny, [PROMPT, "The city "])
    with pytest.warns(FfnmemWarning, match=r"The city' \(and 2 more prompts\);") as said:
        fm.capture(tiny, [PROMPT, "The city ", "city ", "The "])
    assert len(said) == 1  # of a thousand prompts, too
    with pytest.warns(FfnmemWarning) as said:
        warn_of_trailing_space(tiny, "The " * 200)
    assert len(str(said[0].message)) < 250 + ENDING


@pytest.mark.parametrize("prompt", [PROMPT, PROMPT + "\n", " ", "\n ", ""])
def test_no_word_about_other_endings(tiny: fm.Model, prompt: str) -> None:
    """A line break is a token that texts do have; a space by itself has no word before it."""
    warn_of_trailing_space(tiny, prompt)


def test_tokenizers_whose_spaces_stand_alone(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no word brings its space, the space at the end is what stands in every text."""

    class Letters:
        def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
            return {"input_ids": [ord(letter) for letter in text]}

    monkeypatch.setattr(tiny, "tokenizer", Letters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_trailing_space(tiny, "The city of ")
