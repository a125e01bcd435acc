"""Which contexts of a neuron are shown for a description, and which are held back to score it.

A neuron fires where its coefficient is at least a fifth of its largest. Contexts in which it fires are of the store's
sequences of its largest coefficients, and of the store's random sequences; its quiet contexts are windows of random
sequences in which it fires nowhere. No document and no text is in two parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from ..scanning.store import Store
from ..scanning.tables import spread

Place = tuple[int, int]
FIRES = 0.2
"""Of a neuron's largest coefficient: from here on it fires."""
BANDS = 4
"""Parts of equal size, by strength, from each of which as many contexts are shown and held back."""
STRONGEST = 10
"""Strengths are told as whole numbers from 1 to this (Bills et al. 2023)."""
SIDES = {"positive": ("top", 0, 1.0), "negative": ("bottom", 1, -1.0)}


@dataclass(frozen=True)
class NeuronContext:
    """A context of a neuron.

    Attributes:
        sequence, position: of the token in its middle, at which the neuron fires most; of a quiet one, any.
        coefficient: there; NaN of a quiet one. strength: its share of the neuron's largest.
        tokens: their texts. at: which of them is the middle.
    """

    sequence: int
    position: int
    document: int
    coefficient: float
    strength: float
    tokens: tuple[str, ...]
    at: int

    @property
    def text(self) -> str:
        return "".join(self.tokens)


@dataclass(frozen=True)
class DrawnContexts:
    """The contexts of a neuron with coefficients of one sign: ``shown``, and held back, of which the first half fires
    and the second is quiet."""

    place: Place
    sign: str
    largest: float
    shown: Sequence[NeuronContext] = ()
    held: Sequence[NeuronContext] = ()


def draw_contexts(
    store: Store, place: Place, *, sign: str | None, shown: int, tested: int, context: int, seed: int
) -> DrawnContexts:
    """The contexts of a neuron, by the store alone: no model runs. As :func:`describe` takes them: ``sign``, ``shown``,
    ``tested`` (of each half), ``context`` (tokens on each side) and ``seed``."""
    sign = sign or store.signs(*place)[0]
    kind, side, factor = SIDES[sign]
    top, view = store.example_rows(*place, kind=kind), store.view(place[0])
    numbers, sampled = store.state.shared["sequences"], view.sample[side, :, place[1]]
    there = ~np.isnan(sampled) & (numbers >= 0) & (numbers < store.sequences.n_sequences)
    sequences = np.concatenate([top["sequence"].to_numpy(), numbers[there]]).astype(np.int64)
    positions = np.concatenate([top["position"].to_numpy(), view.sample_at[side, there, place[1]]]).astype(np.int64)
    sizes = factor * np.concatenate([top["coefficient"].to_numpy(), sampled[there]]).astype(np.float64)
    largest = float(sizes.max(initial=0.0))
    if largest <= 0:
        return DrawnContexts(place, sign, 0.0)
    rng = np.random.default_rng([seed, 50, *place])
    order = np.argsort(-sizes, kind="stable")
    firing = spread(order[sizes[order] >= FIRES * largest], 4 * (shown + tested))
    quiet = rng.permutation(order[sizes[order] < FIRES * largest])
    for at in quiet.tolist():
        positions[at] = store.sequences.lead + rng.integers(store.sequences.locate(sequences[at])[2])
    seen: set[Any] = set()

    def unseen(places: np.ndarray) -> Iterator[NeuronContext]:
        pairs = list(zip(sequences[places].tolist(), positions[places].tolist(), strict=True))
        windows = store.contexts.windows(pairs, context)
        for (sequence, position), size, window in zip(pairs, sizes[places].tolist(), windows, strict=True):
            document, strength = store.sequences.locate(sequence)[0], size / largest
            if document not in seen and window.text not in seen:
                seen.update((document, window.text))
                coefficient = factor * size if strength >= FIRES else float("nan")
                yield NeuronContext(sequence, position, document, coefficient, strength, window.tokens, window.at)

    parts: tuple[list[NeuronContext], list[NeuronContext]] = ([], [])  # from each band as many of each, at random
    fires = list(unseen(firing))
    for band, inside in enumerate(np.array_split(np.arange(len(fires)), BANDS)):
        mixed = [fires[i] for i in rng.permutation(inside).tolist()]
        for turn, most in enumerate((shown, tested)):
            parts[turn].extend(mixed[(turn + band) % 2 :: 2][: len(range(band, most, BANDS))])
    silent = list(islice(unseen(quiet), len(parts[1])))
    held = [parts[1][i] for i in rng.permutation(len(parts[1]))[: len(silent)].tolist()]
    return DrawnContexts(place, sign, largest, parts[0], [*held, *silent])
