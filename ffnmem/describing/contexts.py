"""Which contexts of a neuron are shown for a description, and which are held back to score it.

A neuron fires where its coefficient is at least a fifth of its largest. Contexts in which it fires are of the store's
sequences of its largest coefficients, and of the store's random sequences; its quiet contexts are windows of random
sequences in which it fires nowhere. No document and no text is in two parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
class ContextSettings:
    """How many contexts are shown and held back (of each kind), and how long they are.

    Attributes:
        sign: of the coefficients; None for each neuron's stronger side.
        context: tokens on each side of the middle.
    """

    sign: str | None
    shown: int
    tested: int
    context: int
    seed: int


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
    """The contexts of a neuron with coefficients of one sign: shown, and held back, as many firing as quiet ones."""

    place: Place
    sign: str
    largest: float
    shown: Sequence[NeuronContext] = ()
    firing: Sequence[NeuronContext] = ()
    quiet: Sequence[NeuronContext] = ()


def draw_contexts(store: Store, place: Place, settings: ContextSettings) -> DrawnContexts:
    """The contexts of a neuron, by the store alone: no model runs."""
    layer, neuron = place
    sign = settings.sign or store.signs(layer, neuron)[0]
    kind, side, factor = SIDES[sign]
    top, view = store.example_rows(layer, neuron, kind=kind), store.view(layer)
    numbers = store.state.shared["sequences"]
    sampled = view.sample[side, :, neuron]
    there = ~np.isnan(sampled) & (numbers >= 0) & (numbers < store.sequences.n_sequences)
    sequences = np.concatenate([top["sequence"].to_numpy(), numbers[there]]).astype(np.int64)
    positions = np.concatenate([top["position"].to_numpy(), view.sample_at[side, there, neuron]]).astype(np.int64)
    sizes = factor * np.concatenate([top["coefficient"].to_numpy(), sampled[there]]).astype(np.float64)
    largest = float(sizes.max(initial=0.0))
    if largest <= 0:
        return DrawnContexts(place, sign, 0.0)
    rng = np.random.default_rng([settings.seed, 50, layer, neuron])
    order = np.argsort(-sizes, kind="stable")
    firing = spread(order[sizes[order] >= FIRES * largest], 4 * (settings.shown + settings.tested))
    quiet = rng.permutation(order[sizes[order] < FIRES * largest])
    for at in quiet.tolist():
        positions[at] = store.sequences.lead + rng.integers(store.sequences.locate(sequences[at])[2])
    seen: set[Any] = set()

    def unseen(places: np.ndarray) -> Iterator[NeuronContext]:
        pairs = list(zip(sequences[places].tolist(), positions[places].tolist(), strict=True))
        windows = store.contexts.windows(pairs, settings.context)
        for (sequence, position), size, window in zip(pairs, sizes[places].tolist(), windows, strict=True):
            document, strength = store.sequences.locate(sequence)[0], size / largest
            if document not in seen and window.text not in seen:
                seen.update((document, window.text))
                coefficient = factor * size if strength >= FIRES else float("nan")
                yield NeuronContext(sequence, position, document, coefficient, strength, window.tokens, window.at)

    shown, held = split_bands(list(unseen(firing)), settings, rng)
    silent = [one for one, _ in zip(unseen(quiet), range(settings.tested), strict=False)]
    held = [held[i] for i in rng.permutation(len(held)).tolist()]
    count = min(len(held), len(silent))
    return DrawnContexts(place, sign, largest, shown, held[:count], silent[:count])


def split_bands(
    contexts: Sequence[NeuronContext], settings: ContextSettings, rng: np.random.Generator
) -> tuple[list[NeuronContext], list[NeuronContext]]:
    """Contexts, strongest first, as those shown and those held back: from each band as many of each, at random."""
    parts: tuple[list[NeuronContext], list[NeuronContext]] = ([], [])
    for band, inside in enumerate(np.array_split(np.arange(len(contexts)), BANDS)):
        mixed = [contexts[i] for i in rng.permutation(inside).tolist()]
        for turn, most in enumerate((settings.shown, settings.tested)):
            parts[turn].extend(mixed[(turn + band) % 2 :: 2][: len(range(band, most, BANDS))])
    return parts
