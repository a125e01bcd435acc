"""Where a neuron fires, what its layer read there, and what the layer's inputs are like in general."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from ..core.errors import InputError, check_choice
from ..core.progress import Progress
from ..core.types import COEFFICIENT_SIGNS
from ..corpus.excerpts import BATCH_TOKENS, Page, Selection
from ..corpus.passes import read
from ..models.layer_pass import LayerPass
from ..models.model import Model
from ..scanning.state import NOWHERE, LayerState, place_of, position_of, sequence_of
from ..scanning.store import Store
from ..scanning.tables import spread

# Where a neuron fires: its examples from a store, few enough to read again and fair enough to count meanings in.
#
# The sequences with its largest coefficients alone would show its strongest meaning only. To these come sequences of
# the random sample in which its largest coefficient is at least `FLOOR` of its largest anywhere.

FLOOR = 0.5  # of the largest coefficient: what is weaker tells little of what the neuron is for
TOP = 20
SAMPLED = 20
MOST = TOP + SAMPLED
ExampleSizes = tuple[
    Float64[np.ndarray, " top"], Int64[np.ndarray, " top"], Float64[np.ndarray, " sample"], Int64[np.ndarray, " sample"]
]
"""Of one neuron: sizes and places of its largest coefficients, largest first, and those of the random sequences."""


@dataclass(frozen=True, eq=False)
class Firing:
    """The examples of some neurons of one layer, strongest first, each of a sequence of its own.

    Attributes:
        neurons: ``[n]``. places: ``[n, MOST]``, −1 behind the last. strengths: the size of the coefficient there, 0
            behind the last. extreme: ``[n]`` the largest coefficient of that sign, as a size.
    """

    layer: int
    neurons: Int64[np.ndarray, " n"]
    places: Int64[np.ndarray, "n most"]
    strengths: Float64[np.ndarray, "n most"]
    extreme: Float64[np.ndarray, " n"]

    @classmethod
    def of(cls, layer: int, neurons: Int64[np.ndarray, " n"], given: Iterable[ExampleSizes]) -> Firing:
        """From what :func:`choose_examples` takes of each neuron; one that is never above 0 has no examples."""
        places, strengths = np.full((len(neurons), MOST), -1, np.int64), np.zeros((len(neurons), MOST))
        extreme = np.zeros(len(neurons))
        for i, (sizes, *rest) in enumerate(given):
            if len(sizes) and sizes[0] > 0:
                chosen, weight = choose_examples(sizes, *rest)
                places[i, : len(chosen)], strengths[i, : len(chosen)], extreme[i] = chosen, weight, sizes[0]
        return cls(layer, neurons, places, strengths, extreme)

    @property
    def counts(self) -> Int64[np.ndarray, " n"]:
        return (self.places >= 0).sum(1)

    def without(self, unread: Bool[np.ndarray, "n most"]) -> Firing:
        """The same without some examples; the others move up."""
        gone = unread | (self.places < 0)
        order = np.argsort(gone, axis=1, kind="stable")
        kept = (np.where(gone, -1, self.places), np.where(gone, 0.0, self.strengths))
        places, strengths = (np.take_along_axis(one, order, axis=1) for one in kept)
        return replace(self, places=places, strengths=strengths)


def firing(store: Store, layer: int, neurons: Int64[np.ndarray, " n"] | None = None, sign: str = "positive") -> Firing:
    """The examples of a layer's neurons, or of some, for coefficients of one sign."""
    side, factor = (0, 1.0) if check_choice("sign", sign, COEFFICIENT_SIGNS) == "positive" else (1, -1.0)
    asked = np.arange(store.d_mlp(layer)) if neurons is None else neurons
    view = store.view(layer)
    values, at = view.sample[side], view.sample_at[side]
    sampled = place_of(store.state.shared["sequences"][:, None], at.astype(np.int64))
    kept, kept_at, _ = (array[side][..., : store.settings.k] for array in view.ranked)

    def of_neuron(neuron: int) -> ExampleSizes:
        there = kept_at[neuron][kept_at[neuron] != NOWHERE]
        of_sample = factor * values[:, neuron].astype(np.float64)
        return factor * kept[neuron, : len(there)].astype(np.float64), there, of_sample, sampled[:, neuron]

    return Firing.of(layer, asked, map(of_neuron, asked.tolist()))


def choose_examples(
    sizes: Float64[np.ndarray, " top"],
    places: Int64[np.ndarray, " top"],
    sample_sizes: Float64[np.ndarray, " sample"],
    sample_places: Int64[np.ndarray, " sample"],
) -> tuple[Int64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    """The examples of one neuron, strongest first, and their strengths.

    Args:
        sizes, places: of the sequences with its largest coefficients, strongest first.
        sample_sizes, sample_places: of the random sequences.
    """
    least = FLOOR * sizes[0]
    keep = np.flatnonzero(sizes >= least)[:TOP]
    more = choose_sampled(sample_sizes, sample_places, places[keep], least)
    chosen = np.concatenate([places[keep], sample_places[more]])
    weight = np.concatenate([sizes[keep], sample_sizes[more]])
    best = np.argsort(-weight, kind="stable")
    return chosen[best], weight[best]


def choose_sampled(
    sizes: Float64[np.ndarray, " sample"],
    places: Int64[np.ndarray, " sample"],
    taken: Int64[np.ndarray, " k"],
    least: float,
) -> Int64[np.ndarray, " m"]:
    """Sampled sequences that are strong enough and not taken: at most SAMPLED, evenly over their strengths."""
    fit = np.flatnonzero(np.nan_to_num(sizes, nan=-1.0) >= least)
    fit = fit[~np.isin(sequence_of(places[fit]), sequence_of(taken))]
    return spread(fit[np.argsort(-sizes[fit], kind="stable")], SAMPLED)


# What FFNs read at chosen places of a store's text: the model is run again, exactly there and no further.
#
# A store keeps where a neuron fired, not what it read. This reads it again: sequences are cut behind the last place
# that is wanted (what follows cannot change it), run in batches of like length, no deeper than the deepest layer asked
# for.


class Inputs:
    """The inputs of FFNs at some places, float32, kept in a temporary file; close it, or use it in a ``with``.

    Args:
        store: whose text to read. model: the one that was scanned, see :meth:`Store.check_model`.
        places: by layer, as an index; sequence and position in one integer (``scanning.state.place_of``), in any order.
        progress: called as ("read", done, total) in tokens of text.

    Raises: InputError if the store is of another model.
    """

    def __init__(
        self,
        store: Store,
        model: Model,
        places: Mapping[int, Int64[np.ndarray, " n"]],
        progress: Progress | None = None,
    ) -> None:
        store.check_model(model)
        self.d_model = model.d_model
        self.places = {layer: np.unique(some) for layer, some in places.items() if len(some)}
        self.file = tempfile.TemporaryFile(dir=store.folder if os.access(store.folder, os.W_OK) else None)  # noqa: SIM115
        shapes = {layer: (len(some), self.d_model) for layer, some in self.places.items()}
        starts = np.cumsum([0, *(4 * n * d for n, d in shapes.values())])
        self.rows = {
            layer: np.memmap(self.file, np.float32, "w+", int(start), shape)
            for (layer, shape), start in zip(shapes.items(), starts, strict=False)
        }
        try:
            self.tokens_read = self.read(store, model, progress)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Inputs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.rows.clear()
        self.file.close()

    def at(self, layer: int, places: Int64[np.ndarray, " n"]) -> Float32[np.ndarray, "n d_model"]:
        """The inputs at places that were asked for, in the order given; raises InputError for one that was not."""
        kept = self.places.get(layer, np.empty(0, np.int64))
        at = np.searchsorted(kept, places)
        unknown = places[np.append(kept, -1)[at] != places]
        if len(unknown):
            place = int(unknown[0])
            raise InputError(
                f"layer {layer} was not read at sequence {sequence_of(place)}, position {position_of(place)}"
            )
        return np.asarray(self.rows[layer][at]) if len(kept) else np.empty((0, self.d_model), np.float32)

    def read(self, store: Store, model: Model, progress: Progress | None) -> int:
        """Fill the rows; returns how many tokens were run."""
        if not self.places:
            return 0
        everywhere = np.unique(np.concatenate(list(self.places.values())))
        sequences, first = np.unique(sequence_of(everywhere), return_index=True)
        last = position_of(everywhere[np.append(first[1:], len(everywhere)) - 1])
        lengths = last + 1
        if model.short_ctx is not None:  # the beginning of a long text is read as the long text was
            long = store.sequences.lengths_of(sequences) > model.short_ctx
            lengths = np.where(long, np.maximum(lengths, model.short_ctx + 1), lengths)
        body, until = LayerPass(model), max(self.places)

        def take(page: Page) -> None:
            tokens = torch.from_numpy(page.batch.tokens).to(model.device)
            keep = partial(self.keep, page.batch.sequences)
            body.run(tokens, lengths=page.batch.lengths, on_input=keep, until=until)

        settings = replace(store.settings, batch_tokens=BATCH_TOKENS)
        beginnings = Selection(store.sequences, settings, sequences, lengths, together=len(sequences))
        read(beginnings, take, "read", progress)
        return int(lengths.sum())

    def keep(self, sequences: Int64[np.ndarray, " rows"], layer: int, x: Tensor) -> None:
        """Keep what is wanted of one layer of a batch."""
        if layer not in self.places:
            return
        wanted = self.places[layer]
        low = np.searchsorted(wanted, place_of(sequences, 0))
        high = np.searchsorted(wanted, place_of(sequences + 1, 0))
        for i, (a, b) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            if a < b:
                at = torch.from_numpy(position_of(wanted[a:b])).to(x.device)
                self.rows[layer][a:b] = x[i].index_select(0, at).float().cpu().numpy()


# What the inputs of a layer are like in general, against which a neuron's examples are compared.
#
# Inputs of an FFN share much that no single neuron cares about: a mean, and a few directions of large variance. Cosines
# are therefore taken between whitened inputs: centred and scaled so that all directions vary alike over random
# positions, at which the scan has kept them.

PAIRS = 512  # of the random positions, for nulls
RIDGE = 0.02  # of the mean variance, added to every direction's
CUT = 1.7  # standard deviations of unrelated inputs' cosines above which inputs count as alike


@dataclass(frozen=True, eq=False)
class Background:
    """One layer's inputs in general.

    Attributes:
        mean: ``[d_model]`` over random positions. whiten: ``[d_model, d_model]``, the inverse square root of their
            covariance plus RIDGE.
        rows: ``[pairs, d_model]`` inputs at other random positions as they are, PAIRS of them where there are so many.
            units: the same, whitened and of length 1.
        spread: the standard deviation of the cosines of their pairs.
    """

    mean: Float32[np.ndarray, " d_model"]
    whiten: Float32[np.ndarray, "d_model d_model"]
    rows: Float32[np.ndarray, "pairs d_model"]
    units: Float32[np.ndarray, "pairs d_model"]
    spread: float

    @property
    def cut(self) -> float:
        """The cosine above which two whitened inputs are more alike than unrelated ones."""
        return CUT * self.spread

    @property
    def cosines(self) -> Float64[np.ndarray, "pairs pairs"]:
        """Of all pairs of ``units``."""
        return (self.units @ self.units.T).astype(np.float64)

    def unit(self, inputs: Float32[np.ndarray, "n d_model"]) -> Float32[np.ndarray, "n d_model"]:
        """Inputs whitened and scaled to length 1."""
        return normalise((inputs - self.mean) @ self.whiten)


def normalise(rows: Float32[np.ndarray, "*shape d_model"]) -> Float32[np.ndarray, "*shape d_model"]:
    """Rows scaled to length 1; one of zeros stays so."""
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    return (rows / np.where(norms > 0, norms, 1)).astype(np.float32)


def background_of(inputs: Float32[np.ndarray, "n d_model"]) -> Background:
    """The background that some random positions' inputs make; sums in float64. Raises InputError for none.

    The first PAIRS, but no more than half, are left out of mean and covariance: whitened by themselves they would be
    less alike than any others (with 4096 inputs of 768 dimensions, cosines spread by a sixth less).
    """
    if not len(inputs):
        raise InputError("the store's random sequences hold no text: scan a larger corpus or sample more of it")
    held = min(PAIRS, len(inputs) // 2)
    apart, x = inputs[: held or None].copy(), inputs[held:].astype(np.float64)  # a view would keep all of them
    mean = x.mean(0)
    covariance = np.cov(x.T, bias=True).reshape(x.shape[1], x.shape[1])
    values, vectors = np.linalg.eigh(covariance)
    ridge = RIDGE * (max(float(values.mean()), 0.0) or 1.0)  # inputs that do not vary have no scale of their own
    whiten = (vectors * (np.maximum(values, 0) + ridge) ** -0.5) @ vectors.T
    units = normalise(((apart - mean) @ whiten).astype(np.float32))
    off = (units @ units.T)[np.triu_indices(len(units), 1)]
    spread = float(off.astype(np.float64).std()) if len(off) else 1.0
    return Background(mean.astype(np.float32), whiten.astype(np.float32), apart, units, spread)


def sampled_sequences(store: Store, random: np.random.Generator | None = None) -> Int64[np.ndarray, " sequences"]:
    """The store's random sequences, as far as its text has them; in random order if a generator is given."""
    numbers = store.state.shared["sequences"] if random is None else random.permutation(store.state.shared["sequences"])
    return numbers[(numbers >= 0) & (numbers < store.sequences.n_sequences)].astype(np.int64)


KEPT: WeakKeyDictionary[LayerState, Background] = WeakKeyDictionary()  # as long as a store keeps the layer's arrays


def read_background(store: Store, layer: int) -> Background:
    """That of a layer, from what the scan kept of its inputs. Raises InputError for a store without text in its random
    sequences."""
    view = store.view(layer)
    if view not in KEPT:
        inputs = store.state.layer(layer).inputs  # which the view would keep
        KEPT[view] = background_of(inputs[~np.isnan(inputs[:, 0])])
    return KEPT[view]
