"""What the inputs of a layer are like in general, against which a neuron's examples are compared.

Inputs of an FFN share much that no single neuron cares about: a mean, and a few directions of large variance. Cosines
are therefore taken between whitened inputs: centred and scaled so that all directions vary alike over random positions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64, Int64
from safetensors.numpy import save

from ..checked_files import Form, HeadedTensors, array_checksum, header_entry
from ..errors import FileError, InputError
from ..files import write_whole
from ..models import Model
from ..progress import Progress
from ..scanning import Store
from ..scanning.state import place_of
from ..schemas import fields, items, number
from .inputs import Inputs

FILE = "background.safetensors"
VERSION = 3
KIND = "ffnmem background"
FORM = Form(KIND, 1, fields({"spread": items(number(0))}), "background of inputs")
POSITIONS = 4096  # random ones from which mean and covariance are estimated
PAIRS = 512  # of them, for nulls
RIDGE = 0.02  # of the mean variance, added to every direction's
ARRAYS = ("mean", "whiten", "rows", "units")
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
        return normalised((inputs - self.mean) @ self.whiten)


def normalised(rows: Float32[np.ndarray, "*shape d_model"]) -> Float32[np.ndarray, "*shape d_model"]:
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
    apart, x = inputs[: held or None], inputs[held:].astype(np.float64)
    mean = x.mean(0)
    covariance = np.cov(x.T, bias=True).reshape(x.shape[1], x.shape[1])
    values, vectors = np.linalg.eigh(covariance)
    ridge = RIDGE * (max(float(values.mean()), 0.0) or 1.0)  # inputs that do not vary have no scale of their own
    whiten = (vectors * (np.maximum(values, 0) + ridge) ** -0.5) @ vectors.T
    units = normalised(((apart - mean) @ whiten).astype(np.float32))
    off = (units @ units.T)[np.triu_indices(len(units), 1)]
    spread = float(off.astype(np.float64).std()) if len(off) else 1.0
    return Background(mean.astype(np.float32), whiten.astype(np.float32), apart, units, spread)


def random_places(store: Store, seed: int) -> Int64[np.ndarray, " n"]:
    """Random positions of the store's shared sample of sequences, without BOS and special tokens, in random order."""
    sequences = store.view(0).sample_sequences
    lead, special = store.sequences.lead, list(store.settings.special)
    places = []
    for sequence in sequences[(sequences >= 0) & (sequences < store.sequences.n_sequences)].tolist():
        tokens = store.sequences.sequence_tokens(sequence)
        at = lead + np.flatnonzero(~np.isin(tokens[lead:], special))
        places.append(place_of(np.full(len(at), sequence, np.int64), at.astype(np.int64)))
    everywhere = np.concatenate(places) if places else np.empty(0, np.int64)
    return np.random.default_rng([seed, 2]).permutation(everywhere)[:POSITIONS]


def read_backgrounds(
    store: Store, model: Model, seed: int = 0, progress: Progress | None = None
) -> tuple[Background, ...]:
    """One a layer: from the file beside the store if it was made from the same weights and seed, else read anew.

    The file is written where the store's folder can be written to. Raises InputError for another model's store, or one
    without text in its random sequences.
    """
    store.check_model(model)
    key = {
        "version": VERSION,
        "fingerprint": store.fingerprint,
        "corpus": store.corpus.hash,
        "scan": store.manifest["settings"],
        "seed": seed,
    }
    kept = opened(store, key)
    if kept is not None:
        return kept
    places = random_places(store, seed)
    with Inputs(store, model, dict.fromkeys(range(store.n_layers), places), progress) as inputs:
        found = tuple(background_of(inputs.at(layer, places)) for layer in range(store.n_layers))
    if os.access(store.folder, os.W_OK):
        arrays = {f"{i}.{name}": getattr(b, name) for i, b in enumerate(found) for name in ARRAYS}
        header = {
            "kind": KIND,
            "schema": 1,
            **key,
            "spread": [b.spread for b in found],
            "checksums": {name: array_checksum(array) for name, array in arrays.items()},
        }
        write_whole(store.folder / FILE, save(arrays, header_entry(header, sort_keys=True)))
    return found


def opened(store: Store, key: Mapping[str, Any]) -> tuple[Background, ...] | None:
    """What an earlier call wrote, if it is whole and of the same key (which JSON can hold)."""
    path = store.folder / FILE
    if not path.is_file():
        return None
    try:
        file = HeadedTensors(path, FORM)
        if {name: file.header.get(name) for name in key} != key or len(file.header["spread"]) != store.n_layers:
            return None
        return tuple(
            Background(**{name: file.array(f"{i}.{name}") for name in ARRAYS}, spread=spread)
            for i, spread in enumerate(file.header["spread"])
        )
    except FileError:  # cut short or damaged by another program: what it held can be read again
        return None
