"""The read–write classes of neurons: does what a neuron writes lie along what it reads, and if so along which part?

Of a gated neuron, act(g·x)(k·x)v, three cosines say it: cos(k, v), cos(g, v) and cos(g, k). Each counts as 1, 0 or −1,
by a threshold, and what is left are eleven classes (:data:`KINDS`). A neuron without gate has cos(k, v) alone, and
three classes.

Source: Gerstner and Schütze 2025 (2505.17936, where strengthening and weakening are called enrichment and depletion)
and their "Weakening Neurons" (OpenReview Rj5ZJk956j), with its program (sjgerstner/RW_functionalities,
``compute_category``).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ..core.sheets import Column, Table, rows
from .overlap import COSINES, cosines

UNCLASSED = "none"
"""Of a neuron with a zero key, value or gate, which points nowhere."""
ORTHOGONAL = "orthogonal output"
KINDS = {
    (1, 1, True): "strengthening",
    (1, 1, False): "atypical strengthening",
    (1, 0, True): "conditional strengthening",
    (1, 0, False): "atypical conditional strengthening",
    (0, 1, True): "proportional change",
    (0, 1, False): "atypical proportional change",
    (0, 0, True): ORTHOGONAL,
    (-1, 1, True): "weakening",
    (-1, 1, False): "atypical weakening",
    (-1, 0, True): "conditional weakening",
    (-1, 0, False): "atypical conditional weakening",
}
"""By level of cos(k, v), size of the level of cos(g, v), and whether the level of cos(g, k) is the product of both."""
PLAIN = {1: "strengthening", 0: ORTHOGONAL, -1: "weakening"}
"""Without a gate, by the level of cos(k, v)."""
MISMATCHES = 8


def read_write_classes(
    cosine: Mapping[str, Float64[np.ndarray, " neurons"]], along: float = 0.5, against: float = -0.5
) -> np.ndarray:
    """The class of each neuron, as names.

    Turning key and value round together, which changes nothing that a gated neuron does, changes no class: both cosines
    of the gate change their sign with it. Where neither key nor gate lies along the value, the class does not look at
    cos(g, k).

    Args:
        cosine: "io", and of gated neurons "gate_io" and "gate_key", see :data:`COSINES`.
        along, against: cos(k, v) counts as 1 above, −1 below; those of the gate by their size above ``along`` alone,
            since a neuron's sign is a matter of how it is written. The paper's are ±0.5.

    Returns:
        One of :data:`KINDS` each; without a gate "strengthening", "weakening" or "orthogonal output"; "none" where a
        cosine is NaN.
    """
    read = np.where(cosine["io"] > along, 1, np.where(cosine["io"] < against, -1, 0))
    found = np.full(len(read), UNCLASSED, dtype=object)
    known = np.isfinite(np.stack(list(cosine.values()))).all(axis=0)
    if "gate_io" not in cosine:
        for level, name in PLAIN.items():
            found[known & (read == level)] = name
        return found
    write, keys = (np.sign(cosine[name]) * (np.abs(cosine[name]) > along) for name in ("gate_io", "gate_key"))
    typical = (keys == read * write) | ((read == 0) & (write == 0))
    for (reads, writes, fits), name in KINDS.items():
        found[known & (read == reads) & (np.abs(write) == writes) & (typical == fits)] = name
    return found


def known_classes(gated: bool) -> list[str]:
    """The classes that neurons with or without gate can have, in order."""
    return list((KINDS if gated else PLAIN).values())


def neuron_cosines(sides: Mapping[str, Float[Tensor, "rows d"]]) -> dict[str, Float64[np.ndarray, " rows"]]:
    """The :data:`COSINES` that these sides of neurons have, row by row; NaN where a row is zero."""
    return {
        name: cosines(sides[one], sides[other]).cpu().numpy()
        for name, (one, other) in COSINES.items()
        if one in sides and other in sides
    }


def class_counts(
    own: np.ndarray, sides: Mapping[str, Float[Tensor, "rows d"]], along: float, against: float, seed: list[int]
) -> pd.DataFrame:
    """A layer's row for each class: read_write, neurons, share of the layer, and chance.

    chance: the share among keys, values and gates that belong to different neurons of the layer, up to eight
    combinations of each key; NaN where there are too few neurons for one. What the layer's vectors have in common
    remains in it.

    Args:
        own: classes of the layer's neurons. sides: its keys, values and gates.
    """
    partners = derangements(len(own), MISMATCHES + 1, seed)
    drawn = []
    for pair in pairwise(partners):
        value, gate = (torch.from_numpy(partner).to(sides["key"].device) for partner in pair)
        moved = {"key": sides["key"], "value": sides["value"][value]}
        if "gate" in sides:
            moved["gate"] = sides["gate"][gate]
        drawn.append(read_write_classes(neuron_cosines(moved), along, against))
    random = np.concatenate(drawn) if drawn else None
    names = known_classes("gate" in sides)
    counts = [int((own == name).sum()) for name in names]
    return pd.DataFrame(
        {
            "read_write": names,
            "neurons": counts,
            "share": np.array(counts) / max(len(own), 1),
            "chance": [np.nan if random is None else float((random == name).mean()) for name in names],
        }
    )


def derangements(n: int, count: int, seed: list[int]) -> Int64[np.ndarray, "count n"]:
    """Permutations of n things without a fixed point, each different at each place: steps round a random circle."""
    circle = np.random.default_rng(seed).permutation(n)
    found = np.empty((max(min(count, n - 1), 0), n), dtype=np.int64)
    for step, row in enumerate(found, start=1):
        row[circle] = np.roll(circle, -step)
    return found


HEADS = {
    "conditional strengthening": "if gated",
    "conditional weakening": "if gated",
    "proportional change": "by gate",
    ORTHOGONAL: "neither",
}
"""Short enough for eighty columns; the caption says what they are."""


def class_table(counts: pd.DataFrame, along: float, against: float) -> Table:
    """A row a layer, and one of all; the atypical classes, which are rare, in one column and by name in the caption.

    Args:
        counts: what :func:`class_counts` says of each layer, with the layer in front.
    """
    table = counts.pivot(index="layer", columns="read_write", values="neurons")
    typical = [name for name in PLAIN.values() if name in table]
    rare = [name for name in table if name.startswith("atypical")]
    if rare:
        typical = [
            "strengthening", "conditional strengthening", "proportional change", ORTHOGONAL, "conditional weakening",
            "weakening",
        ]  # fmt: skip
    lines = table[typical].assign(**({"atypical": table[rare].sum(axis=1)} if rare else {}))
    shown = rows(Column("layer"), *(Column(HEADS.get(name, name), "count") for name in lines))
    for layer, line in zip(lines.index, lines.to_numpy().tolist(), strict=True):
        shown.add(str(layer), *(count or None for count in line))
    shown.add("all", *lines.sum().tolist(), section=True)
    chance = 1 - counts[counts["read_write"] == ORTHOGONAL]["chance"].mean()
    words = [f"by cosines above {along:g} or below {against:g}"]
    if rare:
        words.append("if gated: conditional, strengthening on the left and weakening on the right")
        words.append("by gate: proportional change")
        total = table[rare].sum().sort_values(ascending=False)
        words.append("atypical: " + (", ".join(f"{n:,} {name[9:]}" for name, n in total.items() if n) or "none"))
    words.append("neither: orthogonal output")
    if np.isfinite(chance):
        words.append(f"of keys, values and gates of different neurons {chance:.1%} write along anything they read")
    return shown.table("read–write classes: neurons of each layer", caption="; ".join(words))
