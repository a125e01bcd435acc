"""Ordinary English text for the training corpus: small documents of 41 kinds that state no world facts.

``ordinary.txt.xz`` holds them in the order in which the recipe's seeds draw them, each after the number of random
numbers that its grammar took. The grammars are ``data/recipe/ordinary_*.py`` at commit bdbe2077 of this repository.
``xz -dc data/recipe/ordinary.txt.xz`` prints the text.
"""

from __future__ import annotations

import hashlib
import lzma
import random
from functools import cache
from pathlib import Path

FILE = Path(__file__).parent / "ordinary.txt.xz"
SHA256 = "504315caf4ada2ccc9b0387a926cdb0ef51ce6db882235598886b7d6099166ce"
"""Of the text, not of the file."""

Draws = list[tuple[int, str]]
"""Documents, each with how many 32-bit random numbers its grammar took."""


@cache
def read_draws() -> dict[tuple[int, float], Draws]:
    """The documents by the seed and the share of ordinary text with which they were drawn; raises ValueError for a file
    with another text."""
    text = lzma.decompress(FILE.read_bytes())
    if hashlib.sha256(text).hexdigest() != SHA256:
        raise ValueError(f"{FILE.name} holds another text than the recipe's")
    found: dict[tuple[int, float], Draws] = {}
    for paragraph in text.decode("utf-8").removesuffix("\n").split("\n\n"):
        first, _, rest = paragraph.partition(" ")
        if first == "seed":  # "seed 1 share 0.22"
            seed, _, share = rest.split()
            draws = found.setdefault((int(seed), float(share)), [])
        else:
            draws.append((int(first), rest))
    return found


class OrdinaryText:
    """The ordinary documents that a seed draws, one after the other; where the recipe has none left, any of all."""

    def __init__(self, seed: int, share: float) -> None:
        self.left = iter(read_draws().get((seed, share), ()))

    def document(self, rng: random.Random) -> str:
        """The next one; what its grammar took of the random numbers is passed over, so that the facts stay the same."""
        for taken, text in self.left:
            rng.getrandbits(32 * taken)
            return text
        return rng.choice(rng.choice(list(read_draws().values())))[1]
