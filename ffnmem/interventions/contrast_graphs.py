"""``Contrast.graph``: how the firings that decide between two answers make one another differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..core.provenance import Provenance
from ..core.sheets import Column, Line, Sheet, Table, line, token
from ..core.types import checked
from ..prompts.answer_text import AnswerResult, describe_answer
from ..prompts.circuit_edges import Firing, FrozenPass
from ..prompts.circuits import ANSWER
from ..prompts.firings import PromptQuestion

REST = "rest"
"""The id of the node that stands for all that is not in the graph."""


@checked
@dataclass(frozen=True, eq=False, repr=False)
class ContrastGraph(AnswerResult):
    """How firings make one another differ between two runs. Made by :meth:`ffnmem.interventions.Contrast.graph`.

    An edge is what its source adds to what its target reads in the prompt's run, minus what it adds in the
    counterfactual's, each along all paths through attention with that run's own attention patterns and norm scales,
    and with no FFN between. The edges into a target sum to the difference of what it read, with one from ``"rest"``
    for all other sources: other firings, embeddings, biases.

    Attributes:
        nodes: one row a node: id ("answer", or as "3.17@5"), kind ("answer", "firing"), layer, neuron, position, token,
            score (as in the contrast), influence (its \\|score\\| as a share of those of all nodes; 1 of the answer),
            reads (what it read in the prompt's run minus the counterfactual's: of a gated neuron the gate, of the
            answer the logit), error (\\|sum of its edges − that\\|, the larger one of a gated neuron).
        edges: one row an edge: source, target, input ("pre", "gate", "linear", "logit"), weight, share (its absolute
            weight as a share of those of all edges into that input).
    """

    main = "edges"
    in_json = "tokens position target foil logit error nodes edges"
    in_repr = "target foil nodes edges error"

    nodes: pd.DataFrame
    edges: pd.DataFrame
    n_layers: int
    logit: float

    @property
    def error(self) -> float:
        """The largest \\|sum of edges − what was read\\| of a node."""
        return float(self.nodes["error"].max())

    def sheet(self, top: int = 12) -> Sheet:
        """The nodes, and for each the sources that made most of its difference."""
        names = {row.id: row for row in self.nodes.itertuples()}
        listed = self.edges[(self.edges["share"] > 0) & (self.edges["input"] != "linear")].sort_values(
            "share", ascending=False, kind="stable"
        )
        by_target = {str(name): some for name, some in listed.groupby("target", sort=False)}

        def sources(row: Mapping[Any, Any]) -> Line:
            found = by_target.get(row["id"])
            pieces = [] if found is None else [f"{one.source} {one.weight:+.3g}" for one in found.head(4).itertuples()]
            return line(", ".join(pieces))

        table = Table.of(
            self.nodes,
            Column("node", of="id"),
            Column("fired at", of=lambda row: token(names[row["id"]].token, limit=20)),
            Column("difference read", "number", sign=True, of="reads"),
            Column("made by", wraps=True, of=sources),
            top=top + 1,
            rest="in .nodes",
            caption="made by: sources and what they add in the one run minus in the other; rest: all others; "
            "of gated neurons the gate",
        )
        return Sheet.of(describe_answer(self) | {"error": f"{self.error:.1e}"}, table, self.provenance)


def graph_between(
    here: PromptQuestion, there: PromptQuestion, alignment: Sequence[int], firings: pd.DataFrame, provenance: Provenance
) -> ContrastGraph:
    """The graph among some firings of a contrast."""
    places = [(int(row.layer), int(row.neuron), int(row.position)) for row in firings.itertuples()]
    pairs = [(Firing(*place), Firing(*place[:2], alignment[place[2]])) for place in places]
    ours, theirs = FrozenPass(here), FrozenPass(there)
    inputs = ours.by_falling_layer([None, *(one for one, _ in pairs)])
    others = theirs.by_falling_layer([None, *(other for _, other in pairs)])
    found, _, total = ours.edges(inputs, [one for one, _ in pairs])
    less, _, other_total = theirs.edges(others, [other for _, other in pairs])
    weights = (found - less).cpu().numpy()
    reads = np.array([ours.value(one) - theirs.value(other) for one, other in zip(inputs, others, strict=True)])
    rest = reads - weights.sum(1)
    errors = np.abs((total - other_total).cpu().numpy() - reads)
    ids = [one.name for one, _ in pairs]
    rows, by_node = [], dict[str, list[int]]()
    for i, one in enumerate(inputs):
        name = ANSWER if one.node is None else one.node.name
        by_node.setdefault(name, []).append(i)
        size = np.abs(weights[i]).sum() + abs(rest[i]) or 1.0
        sources = [*((ids[j], weights[i, j]) for j in np.flatnonzero(weights[i])), (REST, rest[i])]
        rows += [(source, name, one.name, weight, abs(weight) / size) for source, weight in sources]
    whole = float(firings["score"].abs().sum()) or 1.0
    nodes = pd.DataFrame(
        {
            "id": [ANSWER, *ids],
            "kind": ["answer", *["firing"] * len(ids)],
            "layer": pd.array([None, *firings["layer"]], "Int64"),
            "neuron": pd.array([None, *firings["neuron"]], "Int64"),
            "position": pd.array([here.position, *firings["position"]], "Int64"),
            "token": [here.texts[here.position], *firings["token"]],
            "score": [ours.logit - theirs.logit, *firings["score"]],
            "influence": [1.0, *(firings["score"].abs() / whole)],
            "reads": [reads[by_node[name][0]] for name in (ANSWER, *ids)],
            "error": [errors[by_node[name]].max() for name in (ANSWER, *ids)],
        }
    )
    return ContrastGraph(
        nodes=nodes,
        edges=pd.DataFrame(rows, columns=["source", "target", "input", "weight", "share"]),
        n_layers=here.model.n_layers,
        logit=ours.logit,
        **here.result_fields(),
        provenance=provenance.with_settings(frozen="attention patterns, norm scales"),
    )
