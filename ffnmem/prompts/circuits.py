"""``circuit``: the graph of given firings, whose edges into every node sum to what it read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import pandas as pd
import torch

from ..core.defaults import CIRCUIT_NODES
from ..core.errors import InputError, counted
from ..core.files import check_destination, write_whole
from ..core.number_text import format_share
from ..core.provenance import Provenance
from ..core.sheets import FIRED_AT, Column, Content, Line, Sheet, Span, Table, line, token
from ..core.types import CircuitForm, Count, Whole, checked
from ..models.tolerance import check_identity
from .answer_text import AnswerResult, describe_answer
from .captures import Capture, Target, answer_probability
from .causal import causal_scores
from .circuit_edges import Firing, FrozenPass, Input
from .circuit_export import graph_json
from .firings import PromptQuestion
from .keeping import CARRIES, Keeping
from .means import references

ANSWER, REST = "answer", "rest"
"""The ids of the answer's node, and of what stands for all that is no node of the graph."""
BLOCK = 128  # inputs whose directions are carried down at once
READ = 4  # sources that the table names of a node


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Circuit(AnswerResult):
    """How given firings make one another fire, and the answer. Made by :func:`ffnmem.circuit`, or between two runs by
    :meth:`ffnmem.interventions.Contrast.graph`.

    An edge is what its source adds to what its target reads, carried along all paths through attention, with attention
    patterns and norm scales as they were and no FFN between. The edges into a target sum to what it read, with one from
    ``"rest"`` for all sources that are no nodes: other firings, and biases. Of a contrast all of this is what it is in
    the prompt's run minus what it is in the counterfactual's, and embeddings are part of the rest.

    Attributes:
        nodes: one row a node: id ("answer", "3.17@5" of a firing, "embedding@2" of what a token's embeddings add), kind
            ("answer", "firing", "embedding"), layer, neuron, position, token, coefficient, score (to first order, what
            the answer would lose without it: :func:`ffnmem.causal_scores`; of a contrast as there), influence (its
            \\|score\\| as a share of those of all nodes; 1 of the answer), reads (a neuron's pre-activation, of a gated
            one the gate; of the answer the logit), linear (a gated neuron's linear part), error (\\|the sum over all
            sources that there are − what was read\\|, the larger one of a gated neuron).
        edges: one row an edge: source, target, input ("pre", "gate", "linear", "logit"), weight, share (its absolute
            weight as a share of those of all edges into that input).
        logit: the model's own logit of the target (minus the foil's), of several tokens the sum of theirs; their scores
            are of the log-probability of all of them. probability: the target's.
        given: how many firings were given; the first of them are nodes.
        kept: the share of the answer that the nodes' firings keep, all others at ``reference``; None of a contrast,
            which has proofs of its own, and of an answer that is not made by firings.
        compared: whether it is of a contrast.
    """

    main = "edges"
    in_json = "verdict tokens position target foil logit given kept reference error nodes edges"
    in_repr = "target foil firings edges error"

    nodes: pd.DataFrame
    edges: pd.DataFrame
    logit: float
    probability: float
    given: int
    kept: float | None
    reference: str
    compared: bool
    n_layers: int
    token_ids: tuple[int, ...]

    @property
    def firings(self) -> pd.DataFrame:
        """The nodes that are firings."""
        return self.nodes[self.nodes["kind"] == "firing"].reset_index(drop=True)

    @property
    def error(self) -> float:
        """The largest error of a node."""
        return float(self.nodes["error"].max())

    @property
    def verdict(self) -> str | None:
        """Whether its firings carry the answer, and what to try where they do not; None where nothing was kept."""
        if self.kept is None:
            return None
        drawn = counted(len(self.firings), "firing")
        few = len(self.firings) < self.given
        these = f"these {drawn}" if len(self.firings) > 1 else "this firing"
        which = f"the first {drawn} of {self.given:,} given" if few else these
        keep = f"{format_share(self.kept)} of it is kept, all others at {self.reference}"
        if self.kept >= CARRIES:
            return f"the answer is carried by {which}: {keep}"
        more = f"draw more of them (nodes={self.given}, --nodes {self.given})"
        if not few:
            more = "take those of a minimal circuit (fm.minimal_circuit, ffnmem circuit --share) with a higher share"
        return (
            f"the answer needs more than {which}: {keep}; {more}, or ask which few decide between two prompts "
            "(fm.contrast, ffnmem contrast)"
        )

    def sheet(self, top: Whole = 20) -> Sheet:
        """Whether they carry the answer, what wrote it, and the ``top`` firings with the sources that made most of what
        each read."""
        tokens = self.nodes[self.nodes["kind"] == "embedding"].set_index("id")["token"]
        listed = self.edges[(self.edges["share"] > 0) & (self.edges["input"] != "linear")].sort_values(
            "share", ascending=False, kind="stable"
        )
        by_target = {str(name): some.head(READ) for name, some in listed.groupby("target", sort=False)}

        def sources(target: str) -> Line:
            pieces: list[str | Span] = []
            for one in by_target[target].itertuples() if target in by_target else ():
                name = token(tokens[one.source], limit=16) if one.source in tokens else str(one.source)
                pieces += [*([", "] if pieces else []), name, f" {one.weight:+.3g}"]
            return line(*pieces)

        facts: dict[str, Content | None] = {"verdict": self.verdict} | describe_answer(self, summed=True)
        facts |= {"written by": sources(ANSWER), "error": f"{self.error:.1e}"}
        rest = "all others" if self.compared else "all other firings, and biases"
        adds = "in the one run minus in the other" if self.compared else "to what was read"
        table = Table.of(
            self.firings,
            "neuron",
            FIRED_AT,
            "position",
            Column("score", "number", sign=True, bars=True),
            Column("difference read" if self.compared else "read", "number", sign=True, of="reads"),
            Column("made by", wraps=True, of=lambda row: sources(row["id"])),
            top=top,
            rest="in .nodes",
            caption=f"made by: sources and what they add {adds}; rest: {rest}; of gated neurons the gate",
        )
        return Sheet.of(facts, table, self.provenance)

    def export(
        self, form: CircuitForm = "circuit-tracer", path: str | Path | None = None, *, slug: str | None = None
    ) -> dict[str, Any]:
        """The graph in another program's form.

        Args:
            form: ``"circuit-tracer"``: the graph JSON that its page and Neuronpedia read. A memory is a feature there,
                the rest an error node; of a gated neuron a link's weight is what it adds to the coefficient, half by
                the gate, half by the linear part.
            path: of a file to write besides.
            slug: the graph's name; default from the prompt.

        Returns: The graph as plain values.

        Raises: InputError: no such form. FileError: the file cannot be written.
        """
        target = None if path is None else check_destination(path)
        found = graph_json(self, slug)
        if target is not None:
            write_whole(target, json.dumps(found, allow_nan=False, ensure_ascii=False, indent=1) + "\n")
        return found


@checked
def circuit(
    capture: Capture,
    firings: Any,
    target: Target = None,
    foil: str | int | None = None,
    position: int = -1,
    *,
    nodes: Count = CIRCUIT_NODES,
    mean: Any = None,
    prompt: SupportsIndex | None = None,
    first_token: bool = False,
) -> Circuit:
    """The graph of given firings: which made which others fire, and which wrote the answer.

    An edge is what its source adds to its target's pre-activation (of a gated neuron to the gate, and to the linear
    part), or to the answer's logit: what the source wrote, carried along every path through attention, with attention
    patterns and norm scales as they were and no FFN in between. That is linear, so the edges into a node sum to what it
    read exactly: over the firings, the tokens' embeddings, and one for all the rest.

    Args:
        capture, target, foil, position, prompt, first_token: as :func:`ffnmem.attribute`, at one position; without an
            intervention.
        firings: those of a :class:`MinimalCircuit` or of a :class:`ffnmem.interventions.Contrast` of this prompt; a
            table with layer, neuron and position; or a list of (layer, neuron, position), or of such as ``"3.17@5"``,
            and ``"3.17"`` for every position.
        nodes: how many of them are drawn, the first ones; what the others add is part of the rest.
        mean: what all others are set to, to see what these keep of the answer: as :func:`ffnmem.faithfulness` takes it.

    Returns:
        A :class:`Circuit`: ``.nodes``, ``.edges``, ``.error``, ``.kept``, ``.verdict``, ``.plot``, ``.export``.

    Raises: as :func:`ffnmem.faithfulness`.

    Source: the attribution graphs of Ameisen et al. 2025, "Circuit Tracing", with neurons in place of transcoders'
    features; edges through frozen attention as in Elhage et al. 2021.
    """
    question = PromptQuestion.of(capture, target, foil, position, prompt, first_token)
    given = question.triples(firings)
    if not given:
        raise InputError("firings is empty: name at least one, such as 3.17@5, or give a minimal circuit's")
    drawn = [Firing(*triple) for triple in given[:nodes]]
    scores = causal_scores(question.capture, question.answer, mean=mean, prompt=question.row, exact=0)
    worth = [float(scores.scores[one.layer, one.position, one.neuron]) for one in drawn]
    kept, reference = share_kept(question, drawn, mean)
    run = FrozenPass(question)
    table, edges = graph_of(run, drawn, worth)
    return Circuit(
        nodes=table,
        edges=edges,
        logit=run.logit,
        probability=answer_probability(question.capture, question.answer, question.row),
        given=len(given),
        kept=kept,
        reference=reference,
        compared=False,
        n_layers=question.model.n_layers,
        token_ids=tuple(question.tokens.tolist()),
        **question.result_fields(),
        provenance=capture.provenance.with_settings(
            frozen="attention patterns, norm scales", nodes=nodes, reference=reference
        ),
    )


def circuit_between(
    here: PromptQuestion, there: PromptQuestion, alignment: Sequence[int], firings: pd.DataFrame, given: int,
    provenance: Provenance,
) -> Circuit:  # fmt: skip
    """The graph among some firings of a contrast: what differs between its two runs."""
    drawn = [Firing(int(row.layer), int(row.neuron), int(row.position)) for row in firings.itertuples()]
    partners = [Firing(one.layer, one.neuron, alignment[one.position]) for one in drawn]
    ours, theirs = FrozenPass(here), FrozenPass(there)
    nodes, edges = graph_of(ours, drawn, firings["score"].tolist(), theirs, partners)
    return Circuit(
        nodes=nodes,
        edges=edges,
        logit=ours.logit,
        probability=answer_probability(here.capture, here.answer, here.row),
        given=given,
        kept=None,
        reference="the counterfactual’s",
        compared=True,
        n_layers=here.model.n_layers,
        token_ids=tuple(here.tokens.tolist()),
        **here.result_fields(),
        provenance=provenance.with_settings(frozen="attention patterns, norm scales"),
    )


def share_kept(question: PromptQuestion, firings: Sequence[Firing], mean: Any) -> tuple[float | None, str]:
    """The share of the answer that firings alone keep, and what all others are at; None where firings make none."""
    reference, words = references(mean, question.model)
    keeping = Keeping(question, reference, words)
    try:
        keeping.check_matters()
    except InputError:
        return None, words
    places = [(one.layer, one.position, one.neuron) for one in firings]
    chosen = keeping.of(np.ravel_multi_index(tuple(zip(*places, strict=True)), keeping.shape))
    return float(keeping.shares(iter([chosen]))[0]), words


def graph_of(
    ours: FrozenPass,
    firings: Sequence[Firing],
    scores: Sequence[float],
    theirs: FrozenPass | None = None,
    partners: Sequence[Firing] = (),
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The nodes and edges among firings, embeddings and the answer; with another run and the firings' partners there,
    what differs between both, embeddings in the rest."""
    inputs = ours.by_falling_layer([None, *firings])
    weights, embedded, total, reads = edges_into(ours, inputs, firings)
    coefficients = np.array([ours.coefficient(one) for one in firings])
    ids = [one.name for one in firings]
    texts = ours.question.texts
    if theirs is None:
        sources = [*ids, *(f"embedding@{place}" for place in range(len(texts)))]
        weights = np.concatenate([weights, embedded], 1)
    else:
        sources = ids
        others = theirs.by_falling_layer([None, *partners])
        less, _, other_total, other_reads = edges_into(theirs, others, partners)
        weights, total, reads = weights - less, total - other_total, reads - other_reads
        coefficients = coefficients - np.array([theirs.coefficient(one) for one in partners])
    rest, errors = reads - weights.sum(1), np.abs(total - reads)
    rows, by_node = [], dict[str, list[int]]()
    for i, one in enumerate(inputs):
        name = ANSWER if one.node is None else one.node.name
        by_node.setdefault(name, []).append(i)
        size = np.abs(weights[i]).sum() + abs(rest[i]) or 1.0
        adds = [*((sources[j], weights[i, j]) for j in np.flatnonzero(weights[i])), (REST, rest[i])]
        rows += [(source, name, one.name, weight, abs(weight) / size) for source, weight in adds]
    read = [by_node[name] for name in (ANSWER, *ids)]
    size = float(np.abs(scores).sum()) or 1.0
    nodes = pd.DataFrame(
        {
            "id": [ANSWER, *ids],
            "kind": ["answer", *["firing"] * len(ids)],
            "layer": [None, *(one.layer for one in firings)],
            "neuron": [None, *(one.neuron for one in firings)],
            "position": [ours.pos, *(one.position for one in firings)],
            "token": [texts[ours.pos], *(texts[one.position] for one in firings)],
            "coefficient": [np.nan, *coefficients],
            "score": [reads[by_node[ANSWER][0]], *scores],
            "influence": [1.0, *(np.abs(scores) / size)],
            "reads": [reads[some[0]] for some in read],
            "linear": [reads[some[1]] if len(some) > 1 else np.nan for some in read],
            "error": [errors[some].max() for some in read],
        }
    )
    if theirs is None:
        places = range(len(texts))
        tokens = {"id": sources[len(ids) :], "kind": "embedding", "position": places, "token": texts, "influence": 0.0}
        nodes = pd.concat([nodes, pd.DataFrame(tokens)], ignore_index=True)
    nodes = nodes.astype({"layer": "Int64", "neuron": "Int64", "position": "Int64"})
    return nodes, pd.DataFrame(rows, columns=["source", "target", "input", "weight", "share"])


def edges_into(
    run: FrozenPass, inputs: Sequence[Input], firings: Sequence[Firing]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """``[input, firing]`` and ``[input, pos]``: what firings and the embeddings at each position add to inputs; and
    ``[input]``, the sum over all that there is, and what the model's own pass read."""
    blocks = [run.edges(inputs[first : first + BLOCK], firings) for first in range(0, len(inputs), BLOCK)]
    weights, embedded, total = (torch.cat(some).cpu().numpy() for some in zip(*blocks, strict=True))
    reads = np.array([run.value(one) for one in inputs])
    rest = reads - weights.sum(1) - embedded.sum(1)
    scale = np.abs(np.column_stack([weights, embedded, rest, reads])).max(1)
    check_identity(run.model, "circuit", total - reads, scale)
    return weights, embedded, total, reads
