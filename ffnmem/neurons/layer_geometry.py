"""``geometry``: how crowded the keys, values and gates of each layer are, read from the weights alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ..core.neuron_names import LayerName
from ..core.progress import Progress
from ..core.provenance import Provenance
from ..core.types import Seed, checked
from ..models.model import Model
from ..prompts.captures import choose_layers
from ..show.result import Result
from . import overlap
from .overlap import COSINES, cosines, memory_rows, memory_sides, neuron_cosines, unit_rows

# The input–output cosine of a layer's neurons, beside that of keys and values of different neurons.

SPREAD = {"q5": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
NULL = (0.025, 0.975)
MISMATCHES = 8


def derangements(n: int, count: int, seed: list[int]) -> Int64[np.ndarray, "count n"]:
    """Permutations of n things without a fixed point, each different at each place: steps round a random circle."""
    circle = np.random.default_rng(seed).permutation(n)
    found = np.empty((max(min(count, n - 1), 0), n), dtype=np.int64)
    for step, row in enumerate(found, start=1):
        row[circle] = np.roll(circle, -step)
    return found


def draw_mismatched(
    keys: Float64[Tensor, "rows d"], values: Float64[Tensor, "rows d"], seed: list[int]
) -> Float64[Tensor, " pairs"]:
    """Cosines of each key with the values of up to eight other neurons of the layer; none of a single neuron."""
    partners = derangements(len(keys), MISMATCHES, seed)
    found = [cosines(keys, values[torch.from_numpy(p).to(values.device)]) for p in partners]
    return torch.cat([keys.new_empty(0), *found])


def summarise_alignment(own: Float64[Tensor, " rows"], null: Float64[Tensor, " pairs"]) -> dict[str, float]:
    """How a layer's input–output cosines are distributed, and how many chance would not give.

    Args:
        own: of the neurons. null: of mismatched pairs. NaN in either is left out.

    Returns:
        mean and quantiles (at :data:`SPREAD`) of the neurons; null_low, null_high, the 2.5% and 97.5% quantiles of
        mismatched pairs; beyond, the share of neurons outside of these (by chance 5%). NaN without neurons or pairs.
    """
    names = ("mean", *SPREAD, "null_low", "null_high", "beyond")
    found, chance = (part[part.isfinite()].cpu().numpy() for part in (own, null))
    if not len(found) or not len(chance):
        return dict.fromkeys(names, np.nan)
    low, high = np.quantile(chance, NULL)
    beyond = ((found < low) | (found > high)).mean()
    numbers = (found.mean(), *np.quantile(found, list(SPREAD.values())), low, high, beyond)
    return {name: float(number) for name, number in zip(names, numbers, strict=True)}


ALIGNED = {"io": "key and value", "gate_io": "gate and value", "gate_key": "gate and key"}


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Geometry(Result):
    """The geometry of a model's memories. Made by :func:`geometry`, which says what the columns mean.

    Attributes:
        layers: one row a layer. neurons: one row a neuron.
        sides: what neurons have: "key", "value", and in a gated model "gate".
        d_model: the width of the residual stream. centred: whether norms take the mean out of it (LayerNorm).
        provenance: model, numeric type and settings.
    """

    heading = "dimensions"
    tables: ClassVar = {
        "overlap": "layer side cosine_rms cosine_q999 matched_q999 cosine_max matched_max max_neuron max_other",
        "space": "layer side entropy_rank isotropic_entropy_rank capacity_q50 isotropic_capacity_q50 "
        "features_per_dimension",
        "cosines": "layer q50 q5 q95 null_low null_high beyond",
        "layers": "|*",
    }
    main, uncut, only_shown = "neurons", "overlap space cosines layers", "overlap space cosines"

    layers: pd.DataFrame
    neurons: pd.DataFrame
    sides: tuple[str, ...]
    d_model: int
    centred: bool
    provenance: Provenance

    @property
    def dimensions(self) -> int:
        """How many dimensions memories live in: d_model − 1 under LayerNorm, d_model under RMSNorm."""
        return self.d_model - int(self.centred)

    @property
    def alignments(self) -> tuple[str, ...]:
        """The cosines within a neuron: "io", and in a gated model "gate_io" and "gate_key"."""
        return tuple(name for name, pair in COSINES.items() if set(pair) <= set(self.sides))

    @property
    def by_side(self) -> pd.DataFrame:
        """A row a side of each layer, with the columns of that side."""
        found = []
        for side in self.sides:
            own = self.layers.filter(regex=f"^{side}_(?!io_|key_)").rename(columns=lambda name: name.split("_", 1)[1])
            found.append(own.assign(layer=self.layers["layer"], side=f"{side}s"))
        return pd.concat(found).sort_index(kind="stable")

    @property
    def overlap(self) -> pd.DataFrame:
        """Cosines of pairs of neurons (of their size the root mean square, the 99.9% quantile and the largest), and of
        rows drawn at random that are as anisotropic."""
        found = self.by_side
        ends = {name: found[name].where(found[name] >= 0) for name in ("max_neuron", "max_other")}  # -1: no pair
        return found.assign(matched_max=found["matched_max"].abs(), **ends)

    @property
    def space(self) -> pd.DataFrame:
        """Effective rank, capacity (the share of a dimension that a neuron has to itself, median), and both of random
        rows of the same lengths; features are an estimate in which a neuron counts as one at most."""
        return self.by_side

    @property
    def cosines(self) -> dict[str, pd.DataFrame]:
        """Cosines within a neuron (median, 5% and 95% of neurons), those of different neurons (2.5% and 97.5%), and the
        share of neurons beyond these, 5% by chance."""
        return {
            f"Cosine of a neuron's {ALIGNED[name]}": self.layers.filter(regex=f"^({name}_|layer$)").rename(
                columns=lambda column, name=name: column.removeprefix(f"{name}_")
            )
            for name in self.alignments
        }

    @property
    def verdict(self) -> str:
        """How many neurons write along what they read."""
        low, high = self.layers["io_beyond"].min(), self.layers["io_beyond"].max()
        shares = f"{low:.0%}" if len(self.layers) == 1 else f"{low:.0%} to {high:.0%}"
        return (
            f"The key and the value of {shares} of a layer's neurons are more alike, or more opposite, than those of "
            "different neurons (5% by chance)."
        ) * bool(low == low)


@checked
def geometry(
    model: Model,
    *,
    layers: LayerName | Iterable[LayerName] | None = None,
    seed: Seed = 0,
    progress: Progress | None = None,
) -> Geometry:
    """How keys and values share their space: overlap, rank, capacity.

    Measures from the weights alone. Cosines of pairs of neurons are compared with those of random vectors that are as
    anisotropic as the layer's own; effective rank and capacity (the share of a dimension that a neuron has to itself)
    with those of random vectors of the same lengths; the cosine of a neuron's key and value with keys and values of
    different neurons. A gated model has gates besides, and their cosines with value and key.

    Note:
        Weight overlap is a proxy for superposition: which memories fire together, and so disturb each other, only
        activations can say. Keys are taken as neurons read them, with the gain of the norm in front folded in, and
        values as norms above read them, with that of a norm behind the FFN. Of both the component along (1, …, 1),
        which LayerNorms remove, is left out: they have d = d_model − 1 dimensions then. Under RMSNorms, which remove
        nothing, d = d_model.

        A gated neuron, act(g·x)(k·x)v, has a third side, its gate g. Key and value of such a neuron may be turned round
        together without a change of what it does: its input–output cosine keeps its sign then, and those of the gate
        with either change theirs, so that of them only sizes, and the product of both signs, tell something.

    Args:
        model: from :func:`ffnmem.load`.
        layers: only this layer, or these. [default: all]
        seed: of the random vectors of the nulls, which also depend on layer and side alone.
        progress: called with "geometry", layers done, and all of them.

    Returns:
        A :class:`Geometry`. Its ``layers`` have layer, neurons, and with ``key_``, ``value_`` and (of a gated model)
        ``gate_`` in front of each:
        ``cosine_mean``, ``cosine_rms``, ``cosine_q50``, ``_q90``, ``_q99``, ``_q999`` (of the absolute cosine of
        distinct neurons), ``cosine_max`` (with its sign), ``max_neuron``, ``max_other``; the same numbers as
        ``isotropic_…`` for random directions (closed form) and ``matched_…`` for random rows as anisotropic as the
        layer's own; ``entropy_rank``, ``participation_rank``, ``stable_rank``, and ``isotropic_…`` of random rows of
        the same lengths; ``capacity_sum``, ``capacity_mean``, ``capacity_q5`` to ``_q95`` and ``isotropic_capacity_…``;
        ``features``, ``features_per_neuron``, ``features_per_dimension``; ``zero`` (neurons of length 0, left out).
        And of the input–output cosine: ``io_mean``, ``io_q5`` to ``io_q95``, ``io_null_low``, ``io_null_high`` (2.5%
        and 97.5% of keys with values of other neurons), ``io_beyond`` (share outside; 5% by chance). Of
        a gated model the same of cos(g, v) with ``gate_io_`` and of cos(g, k) with ``gate_key_`` in front, their nulls
        too with vectors of other neurons.
        Its ``neurons`` have layer, neuron, io_cosine (and gate_io_cosine, gate_key_cosine), and of each side ``norm``,
        ``capacity``, ``interference`` (rms cosine with the layer's other neurons).

    Raises:
        OutOfRangeError: no such layer.

    Source: Elhage et al. 2022 (2209.10652); Scherlis et al. 2022 (2210.01892); Gurnee et al. 2024 (2401.12181), §4;
        of gated neurons Gerstner and Schütze 2025 (2505.17936): cos(w_in, w_out), cos(w_gate, w_out) and
        cos(w_gate, w_in).

    Example:
        $ ffnmem geometry
        $ ffnmem geometry --layers 1 --layers 2 --plot geometry.png
        $ ffnmem geometry --layers 0 --csv --full
    """
    chosen = tuple(range(model.n_layers)) if layers is None else choose_layers(model, layers)
    rows, neurons = [], []
    for done, layer in enumerate(chosen, start=1):
        row, frame = measure_layer(model, layer, seed)
        rows.append(row)
        neurons.append(frame)
        if progress is not None:
            progress("geometry", done, len(chosen))
    return Geometry(
        layers=pd.DataFrame(rows),
        neurons=pd.concat(neurons, ignore_index=True),
        sides=memory_sides(model),
        d_model=model.d_model,
        centred=model.centred,
        provenance=model.provenance(seed=seed),
    )


def measure_layer(model: Model, layer: int, seed: int) -> tuple[dict[str, Any], pd.DataFrame]:
    """One layer's row, and its neurons' rows."""
    vectors = {side: memory_rows(model, layer, side) for side in memory_sides(model)}
    width = len(vectors["key"])
    row: dict[str, Any] = {"layer": layer, "neurons": width}
    columns: dict[str, Any] = {"layer": layer, "neuron": range(width)}
    aligned: dict[str, Any] = {}
    for name, cosine in neuron_cosines(vectors).items():
        one, other = (vectors[side].double() for side in COSINES[name])
        columns[f"{name}_cosine"] = cosine
        found = summarise_alignment(torch.from_numpy(cosine), draw_mismatched(one, other, [seed, layer]))
        aligned |= {f"{name}_{column}": number for column, number in found.items()}
    for place, side in enumerate(vectors):
        numbers, by_neuron = measure_side(vectors[side], [seed, layer, place])
        row |= {f"{side}_{name}": number for name, number in numbers.items()}
        columns |= {f"{side}_{name}": values for name, values in by_neuron.items()}
    return row | aligned, pd.DataFrame(columns)


def measure_side(rows: Tensor, seed: list[int]) -> tuple[dict[str, Any], dict[str, Float64[np.ndarray, " rows"]]]:
    """The numbers of a layer's keys, values or gates, and those of each neuron; names without the side."""
    lengths = rows.double().norm(dim=-1)
    living = lengths.nonzero().squeeze(1)
    n, d = len(living), rows.shape[1]
    units = unit_rows(rows[living])
    numbers: dict[str, Any] = {"zero": len(rows) - n}
    alone = torch.full_like(lengths, torch.nan)
    own, drawn, pair = overlap.NO_OVERLAP, overlap.NO_OVERLAP, (-1, -1)
    if n > 1:
        moments = overlap.unit_moments(units)
        own, pair = overlap.overlap(units.float(), moments)
        drawn, _ = overlap.overlap(overlap.matched_units(moments, [*seed, 0]).to(units.device))
        alone[living] = overlap.row_interference(units, moments.second)
    isotropic = overlap.isotropic_overlap(d, n * (n - 1) // 2)
    numbers |= {f"cosine_{name}": number for name, number in own.items()}
    numbers |= dict(zip(("max_neuron", "max_other"), (int(living[i]) if i >= 0 else -1 for i in pair), strict=True))
    for prefix, null in (("isotropic", isotropic), ("matched", drawn)):
        numbers |= {f"{prefix}_{name}": number for name, number in null.items()}
    gram = overlap.gram(rows)
    shares = overlap.capacities(rows, gram)
    numbers |= space_columns("", gram, shares[living])
    chance = torch.from_numpy(overlap.isotropic_rows(lengths[living].cpu().numpy(), d, [*seed, 1]))
    chance_gram = overlap.gram(chance)
    numbers |= space_columns("isotropic_", chance_gram, overlap.capacities(chance, chance_gram))
    numbers |= overlap.features(rows)
    by_neuron = {"norm": lengths, "capacity": shares, "interference": alone}
    return numbers, {name: values.cpu().numpy() for name, values in by_neuron.items()}


def space_columns(prefix: str, gram: Float64[Tensor, "d d"], shares: Float64[Tensor, " living"]) -> dict[str, float]:
    values = shares.cpu().numpy() if len(shares) else np.full(1, np.nan)
    return {
        **{f"{prefix}{name}": rank for name, rank in overlap.ranks(gram).items()},
        f"{prefix}capacity_sum": float(np.nansum(values)),
        f"{prefix}capacity_mean": float(values.mean()),
        **{f"{prefix}capacity_{name}": float(np.quantile(values, q)) for name, q in SPREAD.items()},
    }
