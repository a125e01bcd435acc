"""``geometry``: how crowded the keys, values and gates of each layer are, read from the weights alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64
from torch import Tensor

from ..core.defaults import DUPLICATE_COSINE
from ..core.errors import InputError, counted, quoted
from ..core.neuron_names import LayerName
from ..core.number_text import format_number
from ..core.progress import Progress
from ..core.provenance import Provenance
from ..core.sheets import Block, Column, Origin, Sheet, Table, Words
from ..core.token_text import printable
from ..core.types import Count, Seed, Whole, checked
from ..models.model import Model
from ..models.turns import in_turn
from ..prompts.captures import choose_layers
from ..show.result import Result
from . import overlap
from .duplicates import Duplicates, find_duplicates, kinds
from .overlap import COSINES, cosines, memory_rows, memory_sides, unit_rows
from .read_write import MISMATCHES, class_counts, class_table, derangements, neuron_cosines, read_write_classes

# The input–output cosine of a layer's neurons, beside that of keys and values of different neurons.

SPREAD = {"q5": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
NULL = (0.025, 0.975)


def draw_mismatched(
    keys: Float64[Tensor, "rows d"], values: Float64[Tensor, "rows d"], seed: list[int]
) -> Float64[Tensor, " pairs"]:
    """Cosines of each key with the values of up to eight other neurons of the layer; none of a single neuron."""
    partners = derangements(len(keys), MISMATCHES, seed)
    found = [cosines(keys, values[torch.from_numpy(p).to(values.device)]) for p in partners]
    return torch.cat([keys.new_empty(0), *found])


def summarise_alignment(
    own: Float64[Tensor, " rows"], null: Float64[Tensor, " pairs"], strengthening: float, weakening: float
) -> dict[str, float]:
    """How a layer's input–output cosines are distributed, and how many chance would not give.

    Args:
        own: of the neurons. null: of mismatched pairs. NaN in either is left out.
        strengthening: above it a neuron strengthens what excites it. weakening: below it, it weakens that.

    Returns:
        mean and quantiles (at :data:`SPREAD`) of the neurons; null_low, null_high, the 2.5% and 97.5% quantiles of
        mismatched pairs; beyond, the share of neurons outside of these (by chance 5%); strengthening, weakening, the
        shares above and below the thresholds. NaN without neurons or pairs.
    """
    names = ("mean", *SPREAD, "null_low", "null_high", "beyond", "strengthening", "weakening")
    found, chance = (part[part.isfinite()].cpu().numpy() for part in (own, null))
    if not len(found) or not len(chance):
        return dict.fromkeys(names, np.nan)
    low, high = np.quantile(chance, NULL)
    shares = (((found < low) | (found > high)).mean(), (found > strengthening).mean(), (found < weakening).mean())
    numbers = (found.mean(), *np.quantile(found, list(SPREAD.values())), low, high, *shares)
    return {name: float(number) for name, number in zip(names, numbers, strict=True)}


LIMIT = 100
ALIGNED = {"io": "key and value", "gate_io": "gate and value", "gate_key": "gate and key"}
NOT_SHOWN = ("strengthening", "weakening", "limit")  # of the settings: the tables say them


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Geometry(Result):
    """The geometry of a model's memories. Made by :func:`geometry`, which says what the columns mean.

    Attributes:
        layers: one row a layer. neurons: one row a neuron. classes: one row a layer and read–write class.
        duplicates: near-duplicate neurons, the best pairs of each kind; None if not asked for.
        duplicate_counts: how many such pairs there are in all, by pair of layers; None likewise.
        sides: what neurons have: "key", "value", and in a gated model "gate".
        d_model: the width of the residual stream. centred: whether norms take the mean out of it (LayerNorm).
        strengthening, weakening: the thresholds of the input–output cosine.
        threshold: that of duplicates.
        provenance: model, numeric type and settings.
    """

    main = "layers"
    in_json = "layers classes neurons duplicates duplicate_counts"
    not_brief = "neurons"

    layers: pd.DataFrame
    neurons: pd.DataFrame
    classes: pd.DataFrame
    duplicates: pd.DataFrame | None
    duplicate_counts: pd.DataFrame | None
    sides: tuple[str, ...]
    d_model: int
    centred: bool
    strengthening: float
    weakening: float
    threshold: float | None
    provenance: Provenance

    @property
    def dimensions(self) -> int:
        """How many dimensions memories live in: d_model − 1 under LayerNorm, d_model under RMSNorm."""
        return self.d_model - int(self.centred)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of near-duplicates: by each side, and "both", by all of them."""
        return kinds(self.sides)

    @property
    def alignments(self) -> tuple[str, ...]:
        """The cosines within a neuron: "io", and in a gated model "gate_io" and "gate_key"."""
        return tuple(name for name, pair in COSINES.items() if set(pair) <= set(self.sides))

    def duplicate_total(self, by: str) -> int:
        """How many near-duplicate pairs of a kind (see :attr:`kinds`) there are; 0 if they were not sought."""
        counts = self.duplicate_counts
        return 0 if counts is None else int(counts.loc[counts["by"] == by, "pairs"].sum())

    def summary(self) -> str:
        sought = "" if self.threshold is None else f", {self.duplicate_total('both')} duplicate pairs"
        model = printable(self.provenance.model)
        return f"{model}, {counted(len(self.layers), 'layer')}, {counted(len(self.neurons), 'neuron')}{sought}"

    def sheet(self, top: Whole = 20) -> Sheet:
        """Overlap, rank and capacity of each layer's sides, cosines within neurons, read–write classes, and
        near-duplicates if sought.

        ``top``: how many near-duplicates of each kind.
        """
        origin = {name: value for name, value in self.provenance.to_dict().items() if name not in NOT_SHOWN}
        return Sheet.of(
            self.overlap_table(),
            self.space_table(),
            *(self.cosine_table(name) for name in self.alignments),
            class_table(self.classes, self.strengthening, self.weakening),
            self.duplicate_block(top),
            Origin({name: value for name, value in origin.items() if value is not None}),
        )

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
        own = name == "io"
        ends = ("strengthening", "weakening") if own else (f"above {self.strengthening:g}", f"below {self.weakening:g}")
        meaning = (
            f"strengthening: above {self.strengthening:g}; weakening: below {self.weakening:g}."
            if own
            else "its sign changes if key and value are turned round together, which changes nothing the neuron does."
        )

        def chance(row: Mapping[str, Any]) -> str:
            return " to ".join(format_number(row[f"{name}_null_{end}"], 2, sign=True) for end in ("low", "high"))

        shares = zip(("beyond", *ends), ("beyond", "strengthening", "weakening"), strict=True)
        return Table.of(
            self.layers,
            "layer",
            *(
                Column(head, "number", places=3, sign=True, of=f"{name}_{quantile}")
                for head, quantile in (("median", "q50"), ("5%", "q5"), ("95%", "q95"))
            ),
            Column("mismatched 95%", left=False, of=chance),
            *(Column(head, "percent", of=f"{name}_{share}") for head, share in shares),
            title=f"cosine of a neuron's {ALIGNED[name]}",
            caption=f"beyond: neurons outside of 95% of mismatched pairs, 5% by chance; {meaning}",
        )

    def duplicate_block(self, top: Whole = 20) -> Block | None:
        """The pairs of near-duplicates; words where there are none; None where they were not sought."""
        if self.duplicates is None:
            return None
        if not len(self.duplicates):
            what = "keys, values or gates" if "gate" in self.sides else "keys, or values,"
            return Words.of(f"near-duplicates: no two neurons have {what} with a cosine above {self.threshold:g}")
        totals = ", ".join(f"{self.duplicate_total(by):,} by {by}" for by in self.kinds)
        listed = self.duplicates[self.duplicates["rank"] <= top]
        changes = np.flatnonzero((listed["by"] != listed["by"].shift()).to_numpy()[1:]) + 1
        return Table.of(
            listed,
            "by rank",
            Column("neuron", "neuron", left=False, of=("layer", "neuron")),
            Column("other", "neuron", left=False, of=("other_layer", "other_neuron")),
            *(Column(f"{side} cosine", "number", places=4, sign=True, of=f"{side}_cosine") for side in self.sides),
            title=f"near-duplicates above {self.threshold:g}: {totals}",
            sections=tuple(changes.tolist()),
        )


@checked
@in_turn
def geometry(
    model: Model,
    *,
    layers: LayerName | Iterable[LayerName] | None = None,
    strengthening: float = 0.5,
    weakening: float = -0.5,
    threshold: float | None = DUPLICATE_COSINE,
    limit: Count = LIMIT,
    seed: Seed = 0,
    progress: Progress | None = None,
) -> Geometry:
    """How keys and values share their space: overlap, effective rank, capacity, input–output cosine, duplicates.

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
        strengthening, weakening: an input–output cosine above or below counts as such; the gate's cosines count towards
            a read–write class where their size is above ``strengthening``.
        threshold: cosine above which two neurons are near-duplicates, between 0 and 1; None does not seek any. Kind
            "both" has neurons alike in key and value; gated ones in the gate too, key and value then alike or opposite.
        limit: pairs kept of each kind of near-duplicates.
        seed: of the random vectors of the nulls, which also depend on layer and side alone.
        progress: called with "geometry" or "duplicates", layers (or pairs of layers) done, and all of them.

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
        and 97.5% of keys with values of other neurons), ``io_beyond`` (share outside; 5% by chance),
        ``io_strengthening``, ``io_weakening`` (shares). Of a gated model the same of cos(g, v) with ``gate_io_`` and of
        cos(g, k) with ``gate_key_`` in front, their nulls too with vectors of other neurons.
        Its ``neurons`` have layer, neuron, io_cosine (and gate_io_cosine, gate_key_cosine), read_write, and of each
        side ``norm``, ``capacity``, ``interference`` (rms cosine with the layer's other neurons).
        Its ``classes`` have layer, read_write, neurons, share (of the layer) and chance (the share among keys, values
        and gates of different neurons): eleven of gated neurons, which :func:`.read_write.read_write_classes` defines,
        of others strengthening, weakening and orthogonal output.

    Raises:
        OutOfRangeError: no such layer. InputError: a threshold out of range, or a limit below 1.

    Source: Elhage et al. 2022 (2209.10652); Scherlis et al. 2022 (2210.01892); Gurnee et al. 2024 (2401.12181), §4;
        of gated neurons Gerstner and Schütze 2025 (2505.17936): cos(w_in, w_out), cos(w_gate, w_out) and
        cos(w_gate, w_in), and the classes.
    """
    chosen = tuple(range(model.n_layers)) if layers is None else choose_layers(model, layers)
    check_cosine("strengthening", strengthening, -1.0)
    check_cosine("weakening", weakening, -1.0)
    if threshold is not None:
        check_cosine("threshold", threshold, 0.0)
    rows, neurons, classes = [], [], []
    for done, layer in enumerate(chosen, start=1):
        row, frame, counts = measure_layer(model, layer, seed, strengthening, weakening)
        rows.append(row)
        neurons.append(frame)
        classes.append(counts)
        if progress is not None:
            progress("geometry", done, len(chosen))
    found: Duplicates | None = None
    if threshold is not None:
        found = find_duplicates(
            lambda side, layer: unit_rows(memory_rows(model, layer, side).float()), chosen, threshold, limit, progress,
            sides=memory_sides(model),
        )  # fmt: skip
    return Geometry(
        layers=pd.DataFrame(rows),
        neurons=pd.concat(neurons, ignore_index=True),
        classes=pd.concat(classes, ignore_index=True),
        duplicates=None if found is None else found.pairs,
        duplicate_counts=None if found is None else found.counts,
        sides=memory_sides(model),
        d_model=model.d_model,
        centred=model.centred,
        strengthening=float(strengthening),
        weakening=float(weakening),
        threshold=None if threshold is None else float(threshold),
        provenance=model.provenance(
            seed=seed, strengthening=strengthening, weakening=weakening, threshold=threshold, limit=limit
        ),
    )


def check_cosine(name: str, value: float, low: float) -> None:
    """Raise InputError unless ``low`` < value < 1."""
    if not low < value < 1.0:
        raise InputError(f"{name} must be between {low:g} and 1, not {quoted(value)}")


def measure_layer(
    model: Model, layer: int, seed: int, strengthening: float, weakening: float
) -> tuple[dict[str, Any], pd.DataFrame, pd.DataFrame]:
    """One layer's row, its neurons' rows, and its rows by read–write class."""
    vectors = {side: memory_rows(model, layer, side) for side in memory_sides(model)}
    width = len(vectors["key"])
    row: dict[str, Any] = {"layer": layer, "neurons": width}
    columns: dict[str, Any] = {"layer": layer, "neuron": range(width)}
    aligned: dict[str, Any] = {}
    own = neuron_cosines(vectors)
    for name, cosine in own.items():
        one, other = (vectors[side].double() for side in COSINES[name])
        columns[f"{name}_cosine"] = cosine
        found = summarise_alignment(
            torch.from_numpy(cosine), draw_mismatched(one, other, [seed, layer]), strengthening, weakening
        )
        aligned |= {f"{name}_{column}": number for column, number in found.items()}
    columns["read_write"] = read_write_classes(own, strengthening, weakening)
    counts = class_counts(columns["read_write"], vectors, strengthening, weakening, [seed, layer])
    counts.insert(0, "layer", layer)
    for place, side in enumerate(vectors):
        numbers, by_neuron = measure_side(vectors[side], [seed, layer, place])
        row |= {f"{side}_{name}": number for name, number in numbers.items()}
        columns |= {f"{side}_{name}": values for name, values in by_neuron.items()}
    return row | aligned, pd.DataFrame(columns), counts


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
