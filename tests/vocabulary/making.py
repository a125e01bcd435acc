"""Vectors and vocabularies that are hard to rank."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ffnmem.models.norms import at_least_float32
from ffnmem.vocabulary.scoring import Scorer

KINDS = ("random", "nearly equal", "twins", "scales", "cancelling", "outlier", "whole numbers")


def made(kind: str, seed: int, rows: int = 5, vocab: int = 300, width: int = 24) -> tuple[Tensor, Tensor]:
    """Vectors ``[rows, width]`` and tokens ``[vocab, width]`` in float32, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    vectors, tokens = normal(rows, width), normal(vocab, width)
    if kind == "nearly equal":  # closer than bfloat16, and often than float32, can tell
        tokens = normal(1, width) + 1e-6 * tokens
    elif kind == "twins":
        tokens = tokens[torch.randint(0, vocab // 10, (vocab,), generator=generator)]
    elif kind == "scales":
        tokens *= 10.0 ** torch.randint(-4, 4, (vocab, 1), generator=generator)
        vectors *= 10.0 ** torch.randint(-4, 4, (1, width), generator=generator)
    elif kind == "cancelling":  # large products that leave a small sum
        half = width // 2
        vectors[:, half : 2 * half], tokens[:, half : 2 * half] = -vectors[:, :half], tokens[:, :half] * (1 + 1e-5)
    elif kind == "outlier":
        vectors[:, 0], tokens[:, 0] = 1e3, 1e3 * (1 + 1e-4 * tokens[:, 1])
    elif kind == "whole numbers":  # exact ties everywhere
        vectors, tokens = vectors.round(), tokens.round()
    return vectors, tokens


def extremes(vectors: Tensor, tokens: Tensor, k: int, candidates: str = "auto") -> tuple[np.ndarray, np.ndarray]:
    """Ids and scores ``[rows, 2, k]`` of the k highest and k lowest of ``vectors @ tokensᵀ``, by their own scorer."""
    return Scorer(tokens.to(at_least_float32(vectors).dtype), k, candidates, len(vectors)).extremes(vectors)
