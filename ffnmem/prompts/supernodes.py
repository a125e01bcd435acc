"""Supernodes: firings that read alike and write alike, as one group."""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

LEFT_OUT = ("pruned", "bias")
"""Kinds that everything reads: they tell nothing of who is alike."""


def profiles(nodes: pd.DataFrame, edges: pd.DataFrame) -> tuple[pd.DataFrame, list[Float[np.ndarray, "firing other"]]]:
    """The firings, and of each, as unit rows, what it reads and what reads it: edges' shares with their weights' signs.

    What a gated neuron's gate reads and what its linear part reads are told apart.
    """
    firings = nodes[nodes["kind"] == "firing"].reset_index(drop=True)
    place = {name: i for i, name in enumerate(firings["id"])}
    kinds = nodes.set_index("id")["kind"]
    some = edges[~edges["source"].map(kinds).isin(LEFT_OUT)]
    signed = some["share"] * np.sign(some["weight"])
    found = []
    reads = some["target"], some["source"] + " " + some["input"]
    is_read = some["source"], some["target"] + " " + some["input"]
    for own, others in (reads, is_read):
        mine = own.isin(place)
        columns, names = pd.factorize(others[mine])
        table = np.zeros((len(firings), max(1, len(names))))
        np.add.at(table, (own[mine].map(place).to_numpy(int), columns), signed[mine].to_numpy())
        norms = np.linalg.norm(table, axis=1, keepdims=True)
        found.append(np.divide(table, norms, out=np.zeros_like(table), where=norms > 0))
    return firings, found


def grouped(nodes: pd.DataFrame, edges: pd.DataFrame, similarity: float) -> pd.DataFrame:
    """One row a firing: supernode (from 0, the most influential group first), and what names the firing.

    Two firings are as alike as the smaller cosine of what they read, and of what reads them; groups are joined while
    the mean over their pairs is at least ``similarity``.
    """
    firings, (reads, is_read) = profiles(nodes, edges)
    found = firings[["id", "layer", "neuron", "position", "token", "influence"]].copy()
    labels = np.zeros(len(firings), dtype=int)
    if len(firings) > 1:
        alike = np.minimum(reads @ reads.T, is_read @ is_read.T)
        distance = np.clip(1.0 - alike, 0.0, 2.0)
        np.fill_diagonal(distance, 0.0)
        tree = linkage(squareform((distance + distance.T) / 2, checks=False), method="average")
        labels = fcluster(tree, 1.0 - similarity, criterion="distance")
    strength = found["influence"].groupby(labels).sum().sort_values(ascending=False, kind="stable")
    rank = {label: i for i, label in enumerate(strength.index)}
    found.insert(0, "supernode", [rank[label] for label in labels])
    found.insert(1, "size", found.groupby("supernode")["id"].transform("size"))
    order = ["supernode", "influence"]
    return found.sort_values(order, ascending=[True, False], kind="stable", ignore_index=True)
