"""``geometry``: how crowded the keys, values and gates of each layer are, read from the weights alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ..core.errors import counted
from ..core.neuron_names import LayerName
from ..core.number_text import format_number
from ..core.progress import Progress
from ..core.provenance import Provenance
from ..core.sheets import Column, Origin, Sheet, Table
from ..core.token_text import printable
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

    main = "layers"
    in_json = "layers neurons"
    not_brief = "neurons"

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

    def summary(self) -> str:
        model = printable(self.provenance.model)
        return f"{model}, {counted(len(self.layers), 'layer')}, {counted(len(self.neurons), 'neuron')}"

    def sheet(self) -> Sheet:
        """Overlap, rank and capacity of each layer's sides, and the cosines within neurons."""
        origin = {name: value for name, value in self.provenance.to_dict().items() if value is not None}
        cosines = (self.cosine_table(name) for name in self.alignments)
        return Sheet.of(self.overlap_table(), self.space_table(), *cosines, Origin(origin))

    @property
    def by_side(self) -> list[dict[str, Any]]:
        """A row a side of each layer, with the columns of that side; only the first names the layer."""
        found = []
        for row in self.layers.to_dict("records"):
            for side in self.sides:
                own = {
                    name.removeprefix(f"{side}_"): value for name, value in row.items() if name.startswith(f"{side}_")
                }
                found.append({"layer": row["layer"] if side == self.sides[0] else None, "side": f"{side}s", **own})
        return found

    def overlap_table(self) -> Table:
        """The cosines of pairs of keys, of values and of gates, beside those of random rows that are as anisotropic."""
        cosine = Column("by chance", "number", places=3)

        def pair(row: Mapping[str, Any]) -> str:
            return "" if row["max_neuron"] < 0 else f"{row['max_neuron']}, {row['max_other']}"

        return Table.of(
            self.by_side,
            "layer",
            Column("", of="side"),
            replace(cosine, name="rms", of="cosine_rms"),
            replace(cosine, name="99.9%", of="cosine_q999"),
            replace(cosine, of="matched_q999"),
            replace(cosine, name="max", sign=True, of="cosine_max"),
            replace(cosine, of=lambda row: abs(row["matched_max"])),
            Column("neurons", left=False, of=pair),
            title="cosines of pairs of neurons",
            caption="99.9%: the quantile of their size; max: the largest, and whose it is; by chance: random rows as "
            f"anisotropic as the layer's. The rms of random directions is {self.dimensions**-0.5:.3f}.",
        )

    def space_table(self) -> Table:
        """Effective rank and capacity, beside those of random rows."""
        return Table.of(
            self.by_side,
            "layer",
            Column("", of="side"),
            Column("entropy rank", "number", places=1, of="entropy_rank"),
            Column("random", "number", places=1, of="isotropic_entropy_rank"),
            Column("capacity", "percent", of="capacity_q50"),
            Column("random", "percent", of="isotropic_capacity_q50"),
            Column("features a dimension", "number", places=2, of="features_per_dimension"),
            title="effective rank and capacity",
            caption=f"rank: of {self.dimensions} dimensions; capacity: the share of one that a neuron has to itself, "
            "median over neurons; random: rows of the same lengths; features: an estimate, each neuron counts as one "
            "at most.",
        )

    def cosine_table(self, name: str) -> Table:
        """One of the cosines within a neuron (see :attr:`alignments`), beside those of different neurons."""
        turned = "its sign changes if key and value are turned round together, which changes nothing the neuron does"

        def chance(row: Mapping[str, Any]) -> str:
            return " to ".join(format_number(row[f"{name}_null_{end}"], 2, sign=True) for end in ("low", "high"))

        return Table.of(
            self.layers,
            "layer",
            *(
                Column(head, "number", places=3, sign=True, of=f"{name}_{quantile}")
                for head, quantile in (("median", "q50"), ("5%", "q5"), ("95%", "q95"))
            ),
            Column("mismatched 95%", left=False, of=chance),
            Column("beyond", "percent", of=f"{name}_beyond"),
            title=f"cosine of a neuron's {ALIGNED[name]}",
            caption="beyond: neurons outside of 95% of mismatched pairs, 5% by chance"
            + (f"; {turned}" if name != "io" else ""),
        )


@checked
def geometry(
    model: Model,
    *,
    layers: LayerName | Iterable[LayerName] | None = None,
    seed: Seed = 0,
    progress: Progress | None = None,
) -> Geometry:
    """How keys and values share their space: overlap, effective rank, capacity, input–output cosine.

    All of it is read from weights, no text. Weight overlap is a proxy for superposition: which memories fire together,
    and so disturb each other, only activations can say. Keys are taken as neurons read them, with the gain of the norm
    in front folded in, and values as norms above read them, with that of a norm behind the FFN. Of both the component
    along (1, …, 1), which LayerNorms remove, is left out: they have d = d_model − 1 dimensions then. Under RMSNorms,
    which remove nothing, d = d_model.

    A gated neuron, act(g·x)(k·x)v, has a third side, its gate g. Key and value of such a neuron may be turned round
    together without a change of what it does: its input–output cosine keeps its sign then, and those of the gate with
    either change theirs, so that of them only sizes, and the product of both signs, tell something.

    Args:
        model: from :func:`ffnmem.load`.
        layers: one or several; default all.
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
