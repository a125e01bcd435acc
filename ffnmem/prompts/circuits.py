"""``circuit``: the graph of given firings, whose edges into every node sum to what it read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, SupportsIndex

import numpy as np
import pandas as pd
import torch

from ..core.defaults import CIRCUIT_NODES, CIRCUIT_SHARE
from ..core.errors import InputError, counted
from ..core.files import check_destination, write_whole
from ..core.number_text import format_share
from ..core.progress import Progress
from ..core.provenance import Provenance
from ..core.types import CircuitForm, Count, FiringNames, GraphFile, Means, Share, checked
from ..models.tolerance import check_identity
from .answer_text import AnswerResult
from .captures import Capture, Target, answer_probability
from .causal import causal_scores
from .circuit_edges import Firing, FrozenPass, Input
from .circuit_export import graph_json
from .firings import PromptQuestion
from .keeping import CARRIES, Keeping
from .means import references
from .minimal import minimal_circuit

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

    heading = "prompt after target foil logit written_by given kept reference error"
    tables: ClassVar = {
        "firings": "neuron fired_at position score reads made_by | promotes",
        "nodes": "| *",
        "edges": "| *",
    }
    main, in_full, pictured = "edges", "nodes edges", True

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
        """The nodes that are firings, with what the answer would lose without each (score), what it read, and what made
        that (rest is all that is no node)."""
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
        one = len(self.firings) == 1
        which = f"The first {drawn} of {self.given:,} given" if few else "This firing" if one else f"These {drawn}"
        keep = f"{format_share(self.kept)} of it is kept, all others at {self.reference}"
        if self.kept >= CARRIES:
            return f"{which} {'carries' if one else 'carry'} the answer: {keep}."
        more = f"draw more of them (--nodes {self.given})" if few else "take more of a minimal circuit (--share)"
        enough = "is" if one else "are"
        tried = f"Try: {more}, or ask which decide (ffnmem contrast)"
        return f"{which} {enough} not enough for the answer: {keep}. {tried}."

    @property
    def written_by(self) -> list[tuple[str, float]]:
        """The sources that wrote most of the answer, and how much."""
        return self.sources.get(ANSWER, [])

    @cached_property
    def sources(self) -> dict[str, list[tuple[str, float]]]:
        """By node, the sources that made most of what it read, and what they add; of gated neurons to the gate."""
        tokens = self.nodes[self.nodes["kind"] == "embedding"].set_index("id")["token"].to_dict()
        listed = self.edges[(self.edges["share"] > 0) & (self.edges["input"] != "linear")]
        listed = listed.sort_values("share", ascending=False, kind="stable")
        return {
            str(name): [(tokens.get(one.source, one.source), one.weight) for one in some.head(READ).itertuples()]
            for name, some in listed.groupby("target", sort=False)
        }

    def shown_firings(self, top: int | None) -> pd.DataFrame:
        """Its firings, what each read, and the sources that made most of that."""
        return self.firings if top is None else self.firings.head(top)

    @property
    def count(self) -> int:
        return len(self.firings)

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
    firings: FiringNames = None,
    target: Target = None,
    foil: str | int | None = None,
    position: int = -1,
    *,
    share: Share = CIRCUIT_SHARE,
    nodes: Count = CIRCUIT_NODES,
    mean: Means = None,
    export: GraphFile = None,
    prompt: SupportsIndex | None = None,
    first_token: bool = False,
    progress: Progress | None = None,
) -> Circuit:
    """The graph of memories behind an answer: which made which fire.

    Draws the graph of some firings (a neuron at a position): which made which others fire, and which wrote the answer.
    Unless they are named they are the fewest found that keep nine tenths of the answer.

    An edge is what its source adds to its target's pre-activation (of a gated neuron to the gate, and to the linear
    part), or to the answer's logit: what the source wrote, carried along every path through attention, with attention
    patterns and norm scales as they were and no FFN in between. That is linear, so the edges into a node sum to what it
    read exactly: over the firings, the tokens' embeddings, and one for all the rest.

    Args:
        capture, target, foil, position, prompt, first_token: as :func:`ffnmem.attribute`, at one position; without an
            intervention.
        firings: such as 0.895@4, or 0.895 for every position; in Python also those of a :class:`MinimalCircuit` or of a
            :class:`ffnmem.interventions.Contrast` of this prompt; a table with layer, neuron and position; or a list of
            (layer, neuron, position). Default: those of :func:`ffnmem.minimal_circuit`.
        share: of the answer that the fewest firings keep, where none are named.
        nodes: how many of them are drawn, the first ones; what the others add is part of the rest.
        mean: what all others are set to, to see what these keep of the answer: as :func:`ffnmem.faithfulness` takes it.
        export: a file to write besides: the graph JSON that circuit-tracer's page and Neuronpedia read.
        progress: as :func:`ffnmem.minimal_circuit` has it.

    Returns:
        A :class:`Circuit`: ``.nodes``, ``.edges``, ``.error``, ``.kept``, ``.verdict``, ``.plot``, ``.export``.

    Raises: as :func:`ffnmem.faithfulness`.

    Source: the attribution graphs of Ameisen et al. 2025, "Circuit Tracing", with neurons in place of transcoders'
    features; edges through frozen attention as in Elhage et al. 2021.

    Example:
        $ ffnmem circuit "The Eiffel Tower is located in the city of" --foil " Rome"
        $ ffnmem circuit "The capital of France is" --share .8 --plot circuit.png
        $ ffnmem circuit "The capital of France is" --firings 0.895@4,1.811@4
        $ ffnmem circuit "The capital of France is" --export g.json --csv > e.csv
    """
    question = PromptQuestion.of(capture, target, foil, position, prompt, first_token)
    if firings is None:
        firings = minimal_circuit(
            capture, question.answer, faithfulness=share, mean=mean, position=position, prompt=prompt, progress=progress
        )
    given = question.triples(firings)
    if not given:
        raise InputError("firings is empty: name at least one, such as 3.17@5, or give a minimal circuit's")
    drawn = [Firing(*triple) for triple in given[:nodes]]
    scores = causal_scores(question.capture, question.answer, mean=mean, prompt=question.row, exact=0)
    worth = [float(scores.scores[one.layer, one.position, one.neuron]) for one in drawn]
    kept, reference = share_kept(question, drawn, mean)
    run = FrozenPass(question)
    table, edges = graph_of(run, drawn, worth)
    found = Circuit(
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
    if export is not None:
        found.export("circuit-tracer", export)
    return found


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
    check_identity(run.model, "circuit", total - reads, scale, again=run.question.attended is None)
    return weights, embedded, total, reads
