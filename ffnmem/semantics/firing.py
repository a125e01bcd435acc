"""Where a neuron fires: its examples from a store, few enough to read again and fair enough to count meanings in.

The sequences with its largest coefficients alone would show its strongest meaning only. To these come sequences of the
random sample in which its largest coefficient is at least ``FLOOR`` of its largest anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64

from ..core.choices import COEFFICIENT_SIGNS
from ..errors import check_choice
from ..scanning import Store
from ..scanning.examples import spread
from ..scanning.state import place_of, sequence_of
from ..scanning.writing import EXAMPLES

FLOOR = 0.5  # of the largest coefficient: what is weaker tells little of what the neuron is for
TOP = 20
SAMPLED = 20
MOST = TOP + SAMPLED


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

    @property
    def counts(self) -> Int64[np.ndarray, " n"]:
        return (self.places >= 0).sum(1)

    def without(self, unread: Bool[np.ndarray, "n most"]) -> Firing:
        """The same without some examples; the others move up."""
        gone = unread | (self.places < 0)
        order = np.argsort(gone, axis=1, kind="stable")
        places = np.where(gone, -1, self.places)
        strengths = np.where(gone, 0.0, self.strengths)
        return Firing(
            self.layer,
            self.neurons,
            np.take_along_axis(places, order, axis=1),
            np.take_along_axis(strengths, order, axis=1),
            self.extreme,
        )


def firing(store: Store, layer: int, neurons: Int64[np.ndarray, " n"] | None = None, sign: str = "positive") -> Firing:
    """The examples of a layer's neurons, or of some, for coefficients of one sign."""
    kind, extreme, factor = (
        ("top", "max", 1.0) if check_choice("sign", sign, COEFFICIENT_SIGNS) == "positive" else ("bottom", "min", -1.0)
    )
    asked = np.arange(store.d_mlp(layer)) if neurons is None else neurons
    view = store.view(layer)
    values, at = view.sample[extreme]
    sampled = place_of(view.sample_sequences[:, None], at.astype(np.int64))
    only = int(asked[0]) if len(asked) == 1 else None
    table = store.opened(EXAMPLES).table(layer, only)
    rows = {name: table.column(name).to_numpy() for name in ("neuron", "activation", "sequence", "position", "rank")}
    kinds = np.asarray(table.column("kind").to_pandas() == kind)
    rows = {name: column[kinds] for name, column in rows.items()}
    order = np.lexsort((rows["rank"], rows["neuron"]))
    rows = {name: column[order] for name, column in rows.items()}
    starts = np.searchsorted(rows["neuron"], asked)
    ends = np.searchsorted(rows["neuron"], asked, side="right")
    places, strengths = np.full((len(asked), MOST), -1, np.int64), np.zeros((len(asked), MOST))
    tops = np.zeros(len(asked))
    for i, (neuron, a, b) in enumerate(zip(asked.tolist(), starts.tolist(), ends.tolist(), strict=True)):
        size = factor * rows["activation"][a:b].astype(np.float64)
        if not len(size) or size[0] <= 0:
            continue
        tops[i] = size[0]
        keep = np.flatnonzero(size >= FLOOR * size[0])[:TOP]
        mine = place_of(rows["sequence"][a:b][keep].astype(np.int64), rows["position"][a:b][keep].astype(np.int64))
        more = others(factor * values[:, neuron].astype(np.float64), sampled[:, neuron], mine, FLOOR * size[0])
        chosen = np.concatenate([mine, sampled[more, neuron]])
        weight = np.concatenate([size[keep], factor * values[more, neuron].astype(np.float64)])
        best = np.argsort(-weight, kind="stable")
        places[i, : len(chosen)], strengths[i, : len(chosen)] = chosen[best], weight[best]
    return Firing(layer, asked, places, strengths, tops)


def others(
    sizes: Float64[np.ndarray, " sample"],
    places: Int64[np.ndarray, " sample"],
    taken: Int64[np.ndarray, " k"],
    least: float,
) -> Int64[np.ndarray, " m"]:
    """Sampled sequences that are strong enough and not taken: at most SAMPLED, evenly over their strengths."""
    fit = np.flatnonzero(np.nan_to_num(sizes, nan=-1.0) >= least)
    fit = fit[~np.isin(sequence_of(places[fit]), sequence_of(taken))]
    return spread(fit[np.argsort(-sizes[fit], kind="stable")], SAMPLED)
