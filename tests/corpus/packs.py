"""Packed corpora whose documents have the lengths that a test asks for."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ffnmem.corpus import Packed, pack

VOCAB = 100


class Counting:
    """A tokenizer without a fast one inside: the text "7" becomes seven tokens, "0" none."""

    is_fast = False
    all_special_tokens = ("<end>",)
    name_or_path = "a/folder/counting"

    def get_vocab(self) -> dict[str, int]:
        return {str(i): i for i in range(VOCAB)}

    def get_added_vocab(self) -> dict[str, int]:
        return {"<end>": 0}

    def save_vocabulary(self, folder: str) -> tuple[str]:
        path = Path(folder) / "vocab.txt"
        path.write_text("counting")
        return (str(path),)

    def __call__(self, texts: list[str], add_special_tokens: bool, split_special_tokens: bool) -> dict[str, object]:
        assert not add_special_tokens
        assert split_special_tokens
        return {"input_ids": [tokens_of(int(text)) for text in texts]}


def tokens_of(length: int) -> list[int]:
    return [(7 * length + i) % VOCAB for i in range(length)]


def packed(lengths: Iterable[int], folder: Path) -> Packed:
    """A corpus of documents with these lengths in tokens."""
    return pack([str(int(length)) for length in lengths], Counting(), folder)


def log_normal(n: int, mean: float, spread: float, seed: int = 0) -> list[int]:
    return [1 + int(x) for x in np.random.default_rng(seed).lognormal(mean, spread, n)]
