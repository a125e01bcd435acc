"""A circuit with groups of its nodes as one node each: the same sums with fewer terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from ..core.errors import InputError, quoted
from .circuits import EDGES, NODES, WEIGHTS, Circuit, ordered, typed

GROUP = "group"
"""The kind of a node that stands for several."""
GROUPED = ("firing", "attention", "head", "embedding", "position")
"""Kinds that may be in a group: not the answer, nor biases, which everything reads, nor what was pruned."""


def id_of(name: str) -> str:
    """A group's id, which no other node has."""
    return f"{GROUP}:{name}"


def condensed(circuit: Circuit, groups: Mapping[str, Sequence[str]]) -> Circuit:
    """The graph with each group of nodes as one, named by their ids; it is for looking at, and may have cycles.

    What a group reads is what its members read from outside of it, all added up, so that its edges still sum to it;
    what it adds to another node is what they add together. Its influence is what reaches it from outside, so that what
    a group passes on within itself counts once, and its edges' shares are of that. It stands where its most
    influential firing or head stands.

    Args:
        circuit: from :func:`ffnmem.circuit`. groups: by name, the ids of nodes that are no answer, bias, or pruned.

    Raises: InputError: a group of nothing, a node that the circuit does not have or cannot be grouped, or in two.
    """
    nodes = circuit.nodes.set_index("id", drop=False)
    of = members_of(nodes, groups)
    if not of:
        return circuit
    influence = circuit.edges["target"].map(nodes["influence"]).to_numpy(float)
    edges = circuit.edges.assign(flow=circuit.edges["share"] * influence)
    for end in ("source", "target"):
        edges[end] = [of.get(one, one) for one in edges[end]]
    inner = edges[edges["source"] == edges["target"]]
    outer = edges[edges["source"] != edges["target"]]
    outer = outer.groupby(["source", "target", "input"], sort=False, as_index=False)[[*WEIGHTS, "flow"]].sum()
    kept = [nodes[~nodes["id"].isin(of)]]
    for name, ids in groups.items():
        some = nodes.loc[list(ids)].sort_values("influence", ascending=False, kind="stable")
        some = pd.concat([some[some["layer"].notna()], some[some["layer"].isna()]])  # it stands with what computes
        within = inner[inner["target"] == id_of(name)]
        reached = max(float(some["influence"].sum() - within["flow"].sum()), 0.0)
        told = within.groupby("input")["weight"].sum()
        row = some.iloc[:1].assign(
            id=id_of(name), kind=GROUP, neuron=pd.NA, head=pd.NA, token=name, coefficient=np.nan, influence=reached,
            score=some["score"].sum(), error=some["error"].sum(min_count=1),
            linear=some["linear"].sum(min_count=1) - told.get("linear", 0.0),
            pre=some["pre"].sum(min_count=1) - told.drop("linear", errors="ignore").sum(),
        )  # fmt: skip
        into = outer["target"] == id_of(name)
        outer.loc[into, "share"] = outer.loc[into, "flow"] / (reached or 1.0)
        kept.append(row)
    table = pd.concat([part.astype(object) for part in kept], ignore_index=True)
    ranks = {"answer": 0, GROUP: 1, "firing": 1, "pruned": 9}
    order = np.lexsort((-table["influence"].astype(float), [ranks.get(kind, 5) for kind in table["kind"]]))
    found = typed(table.iloc[order], NODES)
    return replace(circuit, nodes=found, edges=ordered(typed(outer, EDGES), found))


def members_of(nodes: pd.DataFrame, groups: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """By node, the id of the group that it is in."""
    found: dict[str, str] = {}
    for name, ids in groups.items():
        if not ids:
            raise InputError(f"the group {quoted(name)} has no nodes")
        for one in ids:
            if one not in nodes.index:
                raise InputError(f"the circuit has no node {quoted(one)} for the group {quoted(name)}")
            kind = str(nodes.at[one, "kind"])
            if kind not in GROUPED:
                raise InputError(f"{quoted(one)} cannot be grouped: a group is of {', '.join(GROUPED)} nodes")
            if one in found:
                raise InputError(f"{quoted(one)} is in two groups, or twice in one")
            found[one] = id_of(name)
    return found
