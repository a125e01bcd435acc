"""Which contexts of a neuron an explainer is shown, and which are held back to test what it says.

A neuron's firing contexts are the sequences with its largest coefficients and those of the store's random sequences in
which it fires; its quiet ones are windows of random sequences. No document and no text is in two parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int64

from ..core.progress import Progress
from ..models.model import Model
from ..scanning.contexts import Passage, Window
from ..scanning.shading import check_coefficient, read_passages
from ..scanning.store import Store
from ..scanning.tables import spread

Place = tuple[int, int]
FIRES = 0.2
"""Of a neuron's largest coefficient: a context with one so large is one in which it fires."""
QUIET = 0.1
"""Of the same: where no coefficient is as large, the neuron is quiet. Contexts between the two are not used."""
MARKED = 0.3
"""Of the largest coefficient in a context: tokens from here on are marked (as delphi has it)."""
BANDS = 4
"""Parts of like size, by strength, from each of which as many contexts are shown and tested."""
CANDIDATES = 64
"""Of the store's random sequences, in which quiet windows are looked for; the same for all neurons."""
LEVELS = 10
"""The strengths that explainers read are whole numbers from 0 to this (Bills et al. 2023)."""
KEYS = {"positive": ("top", 0, 1.0), "negative": ("bottom", 1, -1.0)}


@dataclass(frozen=True, eq=False)
class Extract:
    """A context of a neuron.

    Attributes:
        sequence, position: of the token in its middle, the one that fires most; of a quiet one, any.
        document: of the corpus.
        band: by strength, 0 the strongest; −1 of a quiet one.
        coefficient: at that token; NaN of a quiet one.
        tokens: their texts. at: which of them that token is.
        strengths: of each token, its coefficient over the neuron's largest, those of the other sign 0; None where only
            the store was settings.
    """

    sequence: int
    position: int
    document: int
    band: int
    coefficient: float
    tokens: tuple[str, ...]
    at: int
    strengths: tuple[float, ...] | None = None

    @property
    def levels(self) -> tuple[int, ...]:
        """``strengths`` as whole numbers from 0 to LEVELS."""
        return tuple(min(round(LEVELS * one), LEVELS) for one in self.strengths or ())

    @property
    def marked(self) -> tuple[int, ...]:
        """Which tokens it fires at."""
        if self.strengths is None:
            return (self.at,)
        least = MARKED * max(self.strengths)
        return tuple(i for i, one in enumerate(self.strengths) if one >= least and one > 0)

    @property
    def silent(self) -> tuple[int, ...]:
        """Which tokens it is quiet at."""
        return tuple(i for i, one in enumerate(self.strengths or ()) if one < QUIET)


@dataclass(frozen=True, eq=False)
class NeuronContexts:
    """The contexts of a neuron with coefficients of one sign. ``shown``: to an explainer; ``tested``, ``quiet``: held
    back, firing and not."""

    layer: int
    neuron: int
    sign: str
    largest: float
    shown: tuple[Extract, ...] = ()
    tested: tuple[Extract, ...] = ()
    quiet: tuple[Extract, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.neuron}"


@dataclass(frozen=True)
class ContextSettings:
    """How many contexts are drawn, and how. ``sign``: of which coefficients, None for each neuron's stronger side;
    ``context``: tokens on each side of the middle."""

    sign: str | None
    shown: int
    tested: int
    context: int
    seed: int


def draw(
    store: Store,
    places: Sequence[Place],
    model: Model | None,
    settings: ContextSettings,
    progress: Progress | None = None,
) -> list[NeuronContexts]:
    """The contexts of some neurons, each text read once for all of them.

    Args:
        model: computes the coefficients at all tokens; without one, only the strongest of each context is known, and
            there are no quiet contexts.
        progress: called as ("shade", done, total) in tokens of text.

    Raises: ModelError: the model gives other coefficients than the store has.
    """
    found = [find_firing(store, place, settings) for place in places]
    if model is None:
        return found
    random = draw_sequences(store, settings.seed)
    wanted: dict[Place, set[int]] = {}
    for one in found:
        if one.largest > 0:
            some = {extract.sequence for extract in (*one.shown, *one.tested)}
            wanted[one.layer, one.neuron] = some | set(random.tolist())
    passages = read_passages(model, store.contexts, store.settings, wanted, progress)
    return [
        one if one.largest <= 0 else add_strengths(store, one, passages[one.layer, one.neuron], random, settings)
        for one in found
    ]


def find_firing(store: Store, place: Place, settings: ContextSettings) -> NeuronContexts:
    """The contexts in which a neuron fires, as far as the store knows them."""
    layer, neuron = place
    sign = settings.sign or store.signs(layer, neuron)[0]
    kind, side, factor = KEYS[sign]
    top = store.example_rows(layer, neuron, kind=kind)
    view = store.view(layer)
    values, at = view.sample[side, :, neuron], view.sample_at[side, :, neuron]
    there = np.flatnonzero(~np.isnan(values))
    sequences = np.concatenate([top["sequence"].to_numpy(), store.state.shared["sequences"][there]]).astype(np.int64)
    positions = np.concatenate([top["position"].to_numpy(), at[there]]).astype(np.int64)
    sizes = factor * np.concatenate([top["coefficient"].to_numpy(), values[there]]).astype(np.float64)
    largest = float(sizes.max(initial=0.0))
    if largest <= 0:
        return NeuronContexts(layer, neuron, sign, 0.0)
    order = np.argsort(-sizes, kind="stable")
    order = order[sizes[order] >= FIRES * largest]
    order = order[np.sort(np.unique(sequences[order], return_index=True)[1])]
    order = spread(order, 4 * (settings.shown + settings.tested))  # enough for a split, and soon told apart
    pairs = list(zip(sequences[order].tolist(), positions[order].tolist(), strict=True))
    windows = store.contexts.windows(pairs, settings.context)
    some: list[Extract] = []
    seen: set[Any] = set()
    for (sequence, position), size, window in zip(pairs, sizes[order].tolist(), windows, strict=True):
        document = store.sequences.locate(sequence)[0]
        if document in seen or window.text in seen:
            continue
        seen |= {document, window.text}
        some.append(Extract(sequence, position, document, 0, factor * size, window.tokens, window.at))
    shown, tested = split(some, settings, np.random.default_rng([settings.seed, 50, layer, neuron]))
    return NeuronContexts(layer, neuron, sign, largest, shown, tested)


def split(
    extracts: Sequence[Extract], settings: ContextSettings, rng: np.random.Generator
) -> tuple[tuple[Extract, ...], tuple[Extract, ...]]:
    """Contexts, strongest first, as those shown and those held back: from each band as many of each, at random."""
    shown: list[Extract] = []
    tested: list[Extract] = []
    for band, inside in enumerate(np.array_split(np.arange(len(extracts)), BANDS)):
        for turn, index in enumerate(rng.permutation(inside).tolist()):
            part, most = (tested, settings.tested) if (turn + band) % 2 else (shown, settings.shown)
            if sum(one.band == band for one in part) < quota(most, band):
                part.append(replace(extracts[index], band=band))
    return tuple(shown), tuple(tested)


def quota(most: int, band: int) -> int:
    """How many of a band are taken, so that all bands together make ``most``."""
    return most // BANDS + (band < most % BANDS)


def draw_sequences(store: Store, seed: int) -> Int64[np.ndarray, " n"]:
    """Some of the store's random sequences, in random order."""
    sequences = store.state.shared["sequences"]
    there = sequences[(sequences >= 0) & (sequences < store.sequences.n_sequences)]
    return np.random.default_rng([seed, 51]).permutation(there)[:CANDIDATES]


def add_strengths(
    store: Store,
    drawn: NeuronContexts,
    passages: Mapping[int, Passage],
    random: Int64[np.ndarray, " n"],
    settings: ContextSettings,
) -> NeuronContexts:
    """The same with strengths at all tokens, and with quiet contexts."""
    factor = KEYS[drawn.sign][2]
    for one in (*drawn.shown, *drawn.tested):
        place = one.sequence, one.position
        check_coefficient(store, drawn.name, drawn.largest, *place, one.coefficient, passages[one.sequence])

    def strong(one: Extract) -> Extract:
        passage = passages[one.sequence]
        window = Window(one.tokens, one.at, False, False)
        return replace(one, strengths=round_strengths(factor * passage.within(one.position, window) / drawn.largest))

    return replace(
        drawn,
        shown=tuple(map(strong, drawn.shown)),
        tested=tuple(map(strong, drawn.tested)),
        quiet=tuple(find_quiet(store, drawn, passages, random, settings)),
    )


def round_strengths(values: Float[np.ndarray, " window"]) -> tuple[float, ...]:
    return tuple(round(max(value, 0.0), 4) for value in values.tolist())


def find_quiet(
    store: Store,
    drawn: NeuronContexts,
    passages: Mapping[int, Passage],
    random: Int64[np.ndarray, " n"],
    settings: ContextSettings,
) -> list[Extract]:
    """At most as many quiet windows as contexts are tested, each of a document that no other context is of.

    The middle of a window is drawn among a sequence's positions, so that it is cut at the text's ends as often as the
    firing ones are."""
    kind = KEYS[drawn.sign]
    seen: set[Any] = {thing for one in (*drawn.shown, *drawn.tested) for thing in (one.document, "".join(one.tokens))}
    found: list[Extract] = []
    for sequence in random.tolist():
        if len(found) == settings.tested:
            break
        passage, document = passages[sequence], store.sequences.locate(sequence)[0]
        if document in seen:
            continue
        sizes: Float64[np.ndarray, " pos"] = kind[2] * passage.coefficients.astype(np.float64) / drawn.largest
        middles = find_quiet_middles(sizes, settings.context)
        if not len(middles):
            continue
        rng = np.random.default_rng([settings.seed, 52, drawn.layer, drawn.neuron, sequence])
        at = int(middles[rng.integers(len(middles))])
        first, last = max(0, at - settings.context), min(len(sizes), at + settings.context + 1)
        tokens = passage.tokens[first:last]
        if "".join(tokens) in seen:
            continue
        seen |= {document, "".join(tokens)}
        strengths = round_strengths(sizes[first:last])
        found.append(Extract(sequence, passage.first + at, document, -1, float("nan"), tokens, at - first, strengths))
    return found


def find_quiet_middles(sizes: Float64[np.ndarray, " pos"], half: int) -> Int64[np.ndarray, " n"]:
    """The positions around which a window of ``half`` tokens on each side has no coefficient above QUIET."""
    loud = np.concatenate([[0], np.cumsum(sizes >= QUIET)])
    at = np.arange(len(sizes))
    return np.flatnonzero(loud[np.minimum(at + half + 1, len(sizes))] == loud[np.maximum(at - half, 0)])
