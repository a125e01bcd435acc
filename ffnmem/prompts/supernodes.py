"""Supernodes: firings that read alike and write alike, as one group."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

LEFT_OUT = ("pruned", "bias")
"""Kinds that everything reads: they tell nothing of who is alike."""


def group_firings(nodes: pd.DataFrame, edges: pd.DataFrame, similarity: float) -> pd.DataFrame:
    """One row a firing: supernode (from 0, the most influential group first), and what names the firing.

    Two firings are as alike as the smaller cosine of what they read, and of what reads them: edges' shares with their
    weights' signs, a gated neuron's gate and linear part apart. Groups are joined while the mean over their pairs is at
    least ``similarity``.
    """
    found = nodes.loc[nodes["kind"] == "firing", ["id", "layer", "neuron", "position", "token", "influence"]]
    some = edges[~edges["source"].map(nodes.set_index("id")["kind"]).isin(LEFT_OUT)]
    signed, labels = some["share"] * np.sign(some["weight"]), np.zeros(len(found), dtype=int)
    if len(found) > 1:
        cosines = []
        for own, other in (("target", "source"), ("source", "target")):
            table = pd.crosstab(some[own], [some[other], some["input"]], signed, aggfunc="sum")
            rows = table.reindex(found["id"]).fillna(0.0).to_numpy()
            norms = np.linalg.norm(rows, axis=1, keepdims=True)
            rows = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
            cosines.append(rows @ rows.T)
        distance = np.clip(1.0 - np.minimum(*cosines), 0.0, 2.0)
        np.fill_diagonal(distance, 0.0)
        tree = linkage(squareform((distance + distance.T) / 2, checks=False), method="average")
        labels = fcluster(tree, 1.0 - similarity, criterion="distance")
    strength = found["influence"].groupby(labels).sum().sort_values(ascending=False, kind="stable")
    found.insert(0, "supernode", [strength.index.get_loc(label) for label in labels])
    found.insert(1, "size", found.groupby("supernode")["id"].transform("size"))
    order = ["supernode", "influence"]
    return found.sort_values(order, ascending=[True, False], kind="stable", ignore_index=True)
