"""A small corpus for scans: different texts of the tiny tokenizer's words, some longer than the tiny model reads."""

from __future__ import annotations

import random

from ..helpers import WHOLE_WORDS

N_TEXTS = 36


def tiny_texts() -> list[str]:
    """Texts of 2 to 60 words, no two alike; a few hold characters of several bytes."""
    draw = random.Random(7)
    texts = ["".join(draw.choices(WHOLE_WORDS, k=2 + number * 3 % 59)) for number in range(N_TEXTS)]
    texts[4] += " café"
    texts[9] = "Über" + texts[9]
    return texts
