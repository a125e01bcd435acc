"""Second moments that tests make by hand."""

from __future__ import annotations

from typing import Any

import torch

from ffnmem.editing import SecondMoment
from ffnmem.editing.moments import Part, TriangleSums

FINGERPRINT = "0123456789ab"


def rows_of(n: int, width: int = 12, seed: int = 0) -> torch.Tensor:
    """Coefficient vectors, the second half of the neurons much weaker than the first."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.where(torch.arange(width) < width // 2, 1.0, 0.05).double()
    return torch.randn(n, width, generator=generator, dtype=torch.float64) * scale


def made(*rows: torch.Tensor, first: int = 0, **changes: Any) -> SecondMoment:
    """The second moment of given coefficient vectors, a tensor a layer, as if each were a sequence of one token."""
    sums = {}
    for layer, m in enumerate(rows):
        sums[layer] = TriangleSums(m.shape[1])
        sums[layer].add(m)
    values: dict[str, Any] = {
        "model": "made",
        "fingerprint": FINGERPRINT,
        "tokenizer_hash": "t",
        "layers": tuple(range(len(rows))),
        "widths": tuple(m.shape[1] for m in rows),
        "count": len(rows[0]),
        "context": 128,
        "prepend_bos": True,
        "parts": (Part("c", "text.txt", ((first, first + len(rows[0])),)),),
        "provenance": {"model": "made", "tokens": len(rows[0])},
        "sums": {layer: total.packed() for layer, total in sums.items()},
    }
    return SecondMoment(**{**values, **changes})
