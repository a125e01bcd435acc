"""A circuit with groups of its nodes as one node each: the same sums with fewer terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from ..core.errors import InputError, quoted
from .circuits import GROUP, NODES, Circuit, contract, set_types, sort_edges, sort_nodes

GROUPED = ("firing", "attention", "head", "embedding", "position")
"""Kinds that may be in a group: not the answer, nor biases, which everything reads, nor what was pruned."""


def group_id(name: str) -> str:
    """A group's id, which no other node has."""
    return f"{GROUP}:{name}"


def condense(circuit: Circuit, groups: Mapping[str, Sequence[str]]) -> Circuit:
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
    into = read_groups(nodes, groups)
    if not into:
        return circuit
    influence = circuit.edges["target"].map(nodes["influence"]).to_numpy(float)
    edges, inner = contract(circuit.edges.assign(flow=circuit.edges["share"] * influence), into)
    some = nodes[nodes["id"].isin(into)].assign(computes=nodes["layer"].notna())  # a group stands with what computes
    some = some.sort_values(["computes", "influence"], ascending=False, kind="stable")
    some = some.groupby(some["id"].map(into).rename("group"), sort=False)
    sums = some[["score", "error", "pre", "linear"]].sum(min_count=1)
    within = inner.assign(input=inner["input"].where(inner["input"] == "linear", "pre"))
    within = within.pivot_table("weight", "target", "input", "sum").reindex(sums.index, columns=["pre", "linear"])
    sums[["pre", "linear"]] -= within.fillna(0.0)
    passed = inner.groupby("target")["flow"].sum().reindex(sums.index, fill_value=0.0)
    sums["influence"] = (some["influence"].sum() - passed).clip(lower=0.0)
    sums = (
        sums.join(some[["layer", "position"]].first())
        .assign(kind=GROUP, token=[name.removeprefix(f"{GROUP}:") for name in sums.index])
        .rename_axis("id")
        .reset_index()
    )
    reached = edges["target"].map(sums.set_index("id")["influence"].replace(0.0, 1.0))
    edges["share"] = (edges["flow"] / reached).fillna(edges["share"])
    found = sort_nodes(pd.concat([set_types(nodes[~nodes["id"].isin(into)], NODES), set_types(sums, NODES)]))
    return replace(circuit, nodes=found, edges=sort_edges(edges, found))


def read_groups(nodes: pd.DataFrame, groups: Mapping[str, Sequence[str]]) -> dict[str, str]:
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
            found[one] = group_id(name)
    return found
