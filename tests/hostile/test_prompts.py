"""Any text and any number where a prompt is explained."""

from __future__ import annotations

from hypothesis import strategies as st

import ffnmem as fm

from .judging import answered, hostile
from .material import tiny

TEXTS = st.one_of(st.text(max_size=12), st.text(st.characters(codec=None), max_size=12))  # lone surrogates too


@hostile(examples=20, text=TEXTS, target=TEXTS, prompt=st.integers(-3, 3), position=st.integers(-40, 40))
def test_any_text_is_explained_or_refused(text: str, target: str, prompt: int, position: int) -> None:
    found = answered("capture", lambda: fm.capture(tiny(), text))
    if isinstance(found, fm.prompts.Capture):
        answered("attribute", lambda: fm.attribute(found, target, prompt=prompt, position=position))
