"""Templates out of texts."""

from __future__ import annotations

import pytest

from ffnmem.core.errors import InputError
from ffnmem.facts.templates import places, prompt_template

from ..helpers import refuses


@pytest.mark.parametrize(
    ("text", "subject", "expected"),
    [
        ("Iran is in", "Iran", [0]),
        ("The Iranian capital of Iran is", "Iran", [23]),
        ("Iranian and Iraqi", "Iran", [0]),
        ("Iran and Iran", "Iran", [0, 9]),
        ("C++ is like C++0x", "C++", [0]),
        ("a.b axb", "a.b", [0]),
        ("nothing here", "Iran", []),
        ("anything", " ", []),
    ],
)
def test_places(text: str, subject: str, expected: list[int]) -> None:
    """Another word that begins like the subject would be taken for it."""
    assert places(text, subject) == expected


def test_prompt_template() -> None:
    """A prompt is needed, so the last place of a subject is taken, which is where the model has read all of it."""
    assert prompt_template("The Louvre is in", "Louvre") == ("The {} is in", ())
    template, notes = prompt_template("Who was at the Louvre when the Louvre burned?", "Louvre")
    assert template == "Who was at the Louvre when the {} burned?"
    assert len(notes) == 1
    assert "2 times" in notes[0]
    for text in ("The museum is in", "The louvre is in", "Louvre {} and {}"):
        with refuses(InputError, ValueError, "'Louvre'", text):
            prompt_template(text, "Louvre")
