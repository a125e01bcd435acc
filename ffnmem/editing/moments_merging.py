"""Second moments of different text joined into one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ..errors import InputError
from .moments import Part, SecondMoment


def merge(moments: Sequence[SecondMoment]) -> SecondMoment:
    """See :meth:`SecondMoment.merge`."""
    if not moments:
        raise InputError("no second moments to merge: give at least one")
    ordered = sorted(moments, key=lambda m: [(part.corpus_hash, part.ranges) for part in m.parts])
    first = ordered[0]
    for number, other in enumerate(ordered[1:], start=1):
        check_mergeable(first, other)
        for part in other.parts:
            if any(part.overlaps(seen) for earlier in ordered[:number] for seen in earlier.parts):
                raise InputError(f"two second moments hold the same text of {part.source}: it would count twice")
    count = sum(moment.count for moment in ordered)
    return replace(
        first,
        count=count,
        parts=joined(part for moment in ordered for part in moment.parts),
        provenance={**first.provenance, "tokens": count},
        sums={layer: sum_of([moment.sums[layer] for moment in ordered]) for layer in first.layers},
        _conditions={},
        _kept={},
    )


def check_mergeable(first: SecondMoment, other: SecondMoment) -> None:
    """Raise InputError unless both are of the same weights, layers and settings."""
    names = ("fingerprint", "tokenizer_hash", "layers", "widths", "context", "prepend_bos")
    differ = [
        f"{name} {getattr(first, name)} and {getattr(other, name)}"
        for name in names
        if getattr(first, name) != getattr(other, name)
    ]
    if differ:
        raise InputError(f"second moments that cannot be merged: {'; '.join(differ)}")


def sum_of(triangles: Sequence[Float[Tensor, " triangle"]]) -> Float64[Tensor, " triangle"]:
    total = triangles[0].to(torch.float64, copy=True)
    for triangle in triangles[1:]:
        total += triangle
    return total


def joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """One part a corpus, its ranges ascending and as few as can be."""
    by_corpus: dict[str, Part] = {}
    for part in parts:
        seen = by_corpus.get(part.corpus_hash)
        ranges = part.ranges if seen is None else (*seen.ranges, *part.ranges)
        by_corpus[part.corpus_hash] = replace(part if seen is None else seen, ranges=fewest(ranges))
    return tuple(by_corpus[key] for key in sorted(by_corpus))


def fewest(ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Disjoint ranges in order, those that touch made one."""
    found: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if found and found[-1][1] == first:
            found[-1] = (found[-1][0], end)
        else:
            found.append((first, end))
    return tuple(found)
