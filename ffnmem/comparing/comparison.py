"""``Comparison``: two models memory by memory: what stayed, what moved, what is elsewhere now, and what is new."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..core.errors import counted, listed
from ..core.number_text import format_share
from ..core.provenance import Provenance
from ..core.sheets import Block, Column, Origin, Sheet, Table
from ..core.token_text import printable
from ..core.types import Count, Whole, checked
from ..show.result import Result

VERDICTS = ("same", "moved", "permuted", "new", "silent")
UNIVERSAL = 0.5
"""The excess correlation above which Gurnee et al. 2024 call a neuron universal."""
CHANCES = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002)
TOLERANCES = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1)
ROUNDED = 1e-9
CHANGES = ("key_change", "gate_change", "value_change")
NOT_SHOWN = ("memory_gib",)
SHOWN_TENSORS = 3


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Result):
    """Two models, memory by memory. Made by :func:`ffnmem.compare`, which says what the columns mean.

    Attributes:
        neurons: one row a neuron of the second model.
        layers: one row a layer of it.
        predictions: what both models predict on the text, see :func:`ffnmem.compare`; None without one.
        first, second: what the models are called.
        alike: whether both have as many layers of as many neurons, so that a neuron has a place of its own in both.
        chance: the share of random neurons that count as matched.
        tolerance: the relative change up to which weights are the same.
        other_tensors: tensors beside keys, gates and values that differ; None where both have not the same ones.
        provenance, second_provenance: of the first and of the second model.
    """

    main = "neurons"
    in_json = (
        "first second counts predictions other_tensors alike chance tolerance layers neurons sensitivity "
        "provenance second_provenance"
    )

    neurons: pd.DataFrame
    layers: pd.DataFrame
    predictions: Mapping[str, float] | None
    first: str
    second: str
    alike: bool
    chance: float
    tolerance: float
    other_tensors: tuple[str, ...] | None
    provenance: Provenance
    second_provenance: Provenance

    @property
    def has_matches(self) -> bool:
        """Whether a text was read, so that neurons were looked for in the other model."""
        return "correlation" in self.neurons

    @property
    def sides(self) -> tuple[str, ...]:
        """What of neurons was compared: "key", "value", and "gate" where both models have gates."""
        return tuple(name.removesuffix("_change") for name in CHANGES if name in self.neurons)

    @property
    def in_place(self) -> bool:
        """Whether neurons of one place are the same ones, more or less: most differ by less than their own length."""
        return self.alike and bool(np.median(largest_change(self.neurons)) <= 1)

    @property
    def changed_sides(self) -> tuple[str, ...]:
        """Those of which some neuron's changed."""
        return tuple(side for side in self.sides if (self.neurons[f"{side}_change"] > self.tolerance).any())

    def moved(self, top: Count | None = None) -> pd.DataFrame:
        """The neurons that moved, by the relative change of value, key or gate, whichever is largest; first ``top``."""
        found = self.neurons[self.neurons["verdict"] == "moved"]
        order = np.argsort(-largest_change(found), kind="stable")
        return found.iloc[order if top is None else order[:top]].reset_index(drop=True)

    def counts(self) -> dict[str, int]:
        """How many neurons each verdict is of."""
        found = self.neurons["verdict"].value_counts()
        return {verdict: int(found.get(verdict, 0)) for verdict in VERDICTS}

    def sensitivity(self) -> pd.DataFrame:
        """The counts of verdicts at other thresholds, one at a time.

        Columns ``setting`` ("chance", "tolerance"), ``value``, and one a verdict.
        """
        found = []
        settings = [("chance", value) for value in CHANCES if self.has_matches]
        settings += [("tolerance", value) for value in TOLERANCES if self.alike]
        for setting, value in settings:
            used = {"chance": self.chance, "tolerance": self.tolerance, setting: value}
            counts = pd.Series(verdicts(self.neurons, **used)).value_counts()
            found.append({"setting": setting, "value": value} | {name: int(counts.get(name, 0)) for name in VERDICTS})
        return pd.DataFrame(found)

    def first_rows(self, top: int | None = None) -> pd.DataFrame:
        """The rows by neuron: all, or the ``top`` that moved most."""
        return self.neurons.copy() if top is None else self.moved(top)

    # -- in words ------------------------------------------------------------------------------------------------

    @property
    def verdict(self) -> str:
        """How many neurons each verdict is of, in words."""
        counts = ", ".join(f"{count:,} {verdict}" for verdict, count in self.counts().items() if count)
        return f"{counted(len(self.neurons), 'neuron')}: {counts}"

    def summary(self) -> str:
        return f"{printable(self.second)} against {printable(self.first)}, {self.verdict}"

    def describe_tensors(self) -> str | None:
        """Which weights beside the neurons' differ; None where both models have not the same ones."""
        if self.other_tensors is None:
            return None
        differ = f"{counted(len(self.other_tensors), 'tensor')}: {listed(self.other_tensors, SHOWN_TENSORS)}"
        return differ if self.other_tensors else "none"

    def describe_predictions(self) -> str | None:
        """How what both predict on the text differs; None where none was read."""
        if self.predictions is None:
            return None
        said = self.predictions
        return (
            f"{said['scored']:,.0f}; loss {said['loss_first']:.4f} and {said['loss_second']:.4f} nats, "
            f"{said['kl']:.2g} nats apart (KL), the same top token at {format_share(said['agreement'])}"
        )

    # -- as blocks -----------------------------------------------------------------------------------------------

    def sheet(self, top: Whole = 10) -> Sheet:
        """The verdicts, each layer, the neurons that moved most, and what other thresholds would say."""
        origin = {name: value for name, value in self.provenance.to_dict().items() if name not in NOT_SHOWN}
        return Sheet.of(
            {
                "first": printable(self.first),
                "second": printable(self.second),
                "verdicts": self.verdict,
                "other weights that differ": self.describe_tensors(),
                "predictions": self.describe_predictions(),
            },
            self.layer_table(),
            self.moved_table(top),
            self.match_table(top),
            Table.of(self.sensitivity(), title="verdicts at other thresholds", folded=True),
            Origin(origin),
        )

    def layer_table(self) -> Table:
        """A row a layer."""
        held = [verdict for verdict in VERDICTS if (self.layers[verdict] > 0).any()]
        columns = [Column(name, "count") for name in ("layer", *held)]
        captions = []
        if self.has_matches:
            columns += [Column(name, "number", places=3) for name in ("correlation", "baseline", "null")]
            columns.append(Column("universal", "percent"))
            captions.append(
                "correlation, baseline: median best matches in the first model, and among random neurons; null: what "
                f"{format_share(1 - self.chance)} of random neurons stay below; universal: excess above {UNIVERSAL:g}"
            )
        if self.in_place:
            columns += [Column("change", "percent", of="change_median"), Column("most", "percent", of="change_max")]
            captions.append("change, most: median and largest relative change of a neuron's weights")
        title = f"{counted(len(self.neurons), 'neuron')} of {printable(self.second)}"
        return Table.of(self.layers, *columns, title=title, caption="; ".join(captions))

    def moved_table(self, top: Whole) -> Block | None:
        """The neurons that moved most."""
        found = self.moved(top)
        if not len(found) or not self.in_place:
            return None
        sides = self.changed_sides
        return Table.of(
            found,
            "neuron",
            *(Column(f"{side} change", "percent", of=f"{side}_change") for side in sides),
            *(Column(f"{side} cosine", "number", places=4, sign=True, of=f"{side}_cosine") for side in sides),
            Column("length", "number", places=3, of="value_norm_ratio") if "value" in sides else None,
            Column("correlation", "number", places=4, sign=True) if self.has_matches else None,
            title=f"moved most, of {counted(self.counts()['moved'], 'neuron')} that moved",
            caption="change: the length of the difference, of the length before; length: the value's after, of before",
        )

    def match_table(self, top: Whole) -> Block | None:
        """The best matches at other places."""
        if not self.has_matches:
            return None
        found = self.neurons[self.neurons["verdict"] == "permuted"]
        if not len(found):
            return None
        return Table.of(
            found.sort_values("excess", ascending=False, kind="stable").head(top),
            "neuron",
            Column("match", "neuron", left=False, of=lambda row: (int(row["match_layer"]), int(row["match_neuron"]))),
            *(
                Column(name, "number", places=3, sign=name != "baseline")
                for name in ("correlation", "baseline", "excess")
            ),
            *(Column(f"{side} cosine", "number", places=2, sign=True, of=f"{side}_cosine") for side in self.sides),
            title=f"best matches elsewhere, of {counted(len(found), 'neuron')}",
        )


def largest_change(neurons: pd.DataFrame) -> np.ndarray:
    """By neuron, the relative change of key, gate or value, whichever is largest; infinite where there is none."""
    parts = [neurons[name].to_numpy(np.float64) for name in CHANGES if name in neurons]
    return np.nan_to_num(np.maximum.reduce(parts), nan=np.inf, posinf=np.inf)


def match_sizes(neurons: pd.DataFrame) -> np.ndarray:
    """The correlations of matches; where both models are gated, how large they are, for there signs may turn round."""
    found = neurons["correlation"].to_numpy()
    return np.abs(found) if "gate_change" in neurons else found


def verdicts(neurons: pd.DataFrame, chance: float, tolerance: float) -> np.ndarray:
    """What each neuron is, by its weights and its matches.

    Args:
        neurons: with the changes of weights, and where a text was read, matches.
        chance: see :func:`thresholds`. tolerance: relative change up to which weights are the same.
    """
    change = largest_change(neurons)
    if "correlation" not in neurons:
        return np.where(change <= tolerance, "same", "moved")
    sizes = match_sizes(neurons)
    null = neurons["layer"].map(thresholds(neurons, chance)).to_numpy()
    reading = [neurons[name].to_numpy() for name in ("key_change", "gate_change") if name in neurons]
    reads_same = np.nan_to_num(np.maximum.reduce(reading), nan=np.inf) <= tolerance
    silent = np.isnan(sizes)
    own = ((neurons["match_layer"] == neurons["layer"]) & (neurons["match_neuron"] == neurons["neuron"])).to_numpy()
    own = own & np.isfinite(change)
    return np.select(
        [change <= tolerance, silent & reads_same, silent, ~(sizes > null), own],
        ["same", "moved", "silent", "new", "moved"],
        "permuted",
    )


def thresholds(neurons: pd.DataFrame, chance: float) -> dict[int, float]:
    """By layer, the match that another neuron's best one among random neurons exceeds with a chance of at most this.

    That is the ⌈(1 − chance)(n + 1)⌉-th smallest of those of the layer's n neurons, whatever their distribution; in a
    layer of too few for that, the largest.
    """
    found = {}
    for layer, part in neurons.groupby("layer")["baseline"]:
        known = np.sort(part.dropna().to_numpy())
        rank = min(math.ceil((1 - chance) * (len(known) + 1) - ROUNDED), len(known))
        found[int(layer)] = float(known[rank - 1]) if len(known) else math.inf
    return found


def layer_rows(neurons: pd.DataFrame, chance: float) -> pd.DataFrame:
    """The summary by layer."""
    nulls = thresholds(neurons, chance) if "baseline" in neurons else {}
    found = []
    for layer, part in neurons.groupby("layer"):
        row: dict[str, Any] = {"layer": layer, "neurons": len(part)}
        row |= {verdict: int((part["verdict"] == verdict).sum()) for verdict in VERDICTS}
        change = largest_change(part)
        if np.isfinite(change).any():
            row |= {"change_median": float(np.median(change)), "change_max": float(change.max())}
        else:
            row |= {"change_median": math.nan, "change_max": math.nan}
        if nulls:
            sizes = pd.Series(match_sizes(part))
            row |= {"correlation": sizes.median(), "baseline": part["baseline"].median(), "null": nulls[int(layer)]}
            row |= {"above_null": (sizes > nulls[int(layer)]).mean(), "universal": (part["excess"] > UNIVERSAL).mean()}
        found.append(row)
    return pd.DataFrame(found)
