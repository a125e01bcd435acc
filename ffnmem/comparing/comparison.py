"""``Comparison``: two models memory by memory: what stayed, what moved, what is elsewhere now, and what is new."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from ..core.errors import counted, listed
from ..core.provenance import Provenance
from ..core.types import Count, checked
from ..models.model import Model
from ..show.result import Result

VERDICTS = ("same", "moved", "permuted", "new", "silent")
UNIVERSAL = 0.5
"""The excess correlation above which Gurnee et al. 2024 call a neuron universal."""
CHANCES = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002)
TOLERANCES = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1)
ROUNDED = 1e-9
CHANGES = ("key_change", "gate_change", "value_change")
SHOWN_TENSORS = 3
SAID = {
    "same": "are the same",
    "moved": "moved",
    "permuted": "are at another place",
    "new": "are like none before",
    "silent": "changed and never vary on the text",
}


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
        model: the first one; None of what was loaded without it.
    """

    heading = "first second other_weights"
    tables: ClassVar = {
        "predicted": "scored loss_first loss_second kl agreement",
        "by_layer": "layer same moved permuted new silent correlation change_median change_max "
        "| baseline null universal",
        "changed": "neuron value_promotes value_change key_change gate_change value_cosine correlation "
        "| key_cosine gate_cosine value_norm_ratio",
        "elsewhere": "in_second neuron value_promotes correlation baseline excess "
        "| key_cosine gate_cosine value_cosine",
        "sensitivity": "|*",
    }
    main, uncut, only_shown = "neurons", "predicted by_layer sensitivity", "predicted by_layer changed elsewhere"
    only_data = "counts predictions layers other_tensors alike chance tolerance second_provenance"

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
    model: Model | None = None

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

    @property
    def counts(self) -> dict[str, int]:
        """How many neurons each verdict is of."""
        found = self.neurons["verdict"].value_counts()
        return {verdict: int(found.get(verdict, 0)) for verdict in VERDICTS}

    @property
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

    def shown_neurons(self, top: Count | None = None) -> pd.DataFrame:
        """The rows by neuron: all, or the ``top`` that moved most."""
        return self.neurons if top is None else self.moved(top)

    @property
    def verdict(self) -> str:
        """How many neurons each verdict is of."""
        counts = ", ".join(f"{count:,} {SAID[verdict]}" for verdict, count in self.counts.items() if count)
        return f"Of {counted(len(self.neurons), 'neuron')} {counts}."

    @property
    def other_weights(self) -> str | None:
        """Which weights beside the neurons' differ; None where both models have not the same ones."""
        if not self.other_tensors:
            return None if self.other_tensors is None else "the same"
        return f"differ in {counted(len(self.other_tensors), 'tensor')}: {listed(self.other_tensors, SHOWN_TENSORS)}"

    @property
    def predicted(self) -> pd.DataFrame | None:
        """What both predict on the text: losses and divergence (KL) in nats, and how often the top token is the
        same."""
        return None if self.predictions is None else pd.DataFrame([self.predictions])

    @property
    def by_layer(self) -> pd.DataFrame:
        """Neurons of each verdict; the median best correlation; median and largest change of a neuron's weights."""
        absent = [name for name in VERDICTS if not self.layers[name].any()]
        return self.layers.drop(columns=absent + ["change_median", "change_max"] * (not self.in_place))

    @property
    def count_changed(self) -> int:
        return self.counts["moved"]

    def changed(self, top: Count | None = None) -> pd.DataFrame | None:
        """The neurons that moved most; change is the length of the difference, of the length before."""
        kept = [f"{side}_change" for side in self.sides if side not in self.changed_sides]
        return self.moved(top).drop(columns=kept) if self.in_place else None

    @property
    def elsewhere(self) -> pd.DataFrame | None:
        """The best matches at other places, each with the neuron of the first model that it is most like."""
        found = self.neurons[self.neurons["verdict"] == "permuted"]
        if not len(found):
            return None
        found = found.sort_values("excess", ascending=False, kind="stable")
        second = [f"{layer}.{neuron}" for layer, neuron in zip(found["layer"], found["neuron"], strict=True)]
        return found.assign(in_second=second, layer=found["match_layer"], neuron=found["match_neuron"])


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
