"""``circuit``: the graph of firings behind an answer, whose edges into every node sum to what it read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, SupportsIndex

import numpy as np
import pandas as pd

from ..core.defaults import CIRCUIT_NODES, EDGE_THRESHOLD, NODE_THRESHOLD, SUPERNODE_SIMILARITY
from ..core.errors import InputError, counted, listed, quoted
from ..core.files import check_destination, write_whole
from ..core.progress import Progress
from ..core.sheets import FIRED_AT, Column, Content, Fitting, Sheet, Span, Table, line, token
from ..core.types import CircuitForm, Count, Range, Seed, Whole, checked
from .answer_text import AnswerResult, describe_answer
from .captures import Capture, Target, single_token
from .circuit_edges import Firing, FrozenPass, Head
from .circuit_export import graph_json
from .circuit_heads import graph_with_attention
from .circuit_pruning import Graph, Pruning, check_memory, expand, graph, prune
from .firings import PromptQuestion
from .sufficiency import Faithfulness, faithfulness
from .supernodes import group_firings

NODES = {
    "id": "str", "kind": "str", "layer": "Int64", "neuron": "Int64", "head": "Int64", "position": "Int64",
    "token": "str", "coefficient": "float64", "pre": "float64", "linear": "float64", "influence": "float64",
    "score": "float64", "error": "float64",
}  # fmt: skip
"""The columns of ``Circuit.nodes``, and their types."""
EDGES = {"source": "str", "target": "str", "input": "str", "weight": "float64", "share": "float64"}
"""The columns of ``Circuit.edges``."""
WEIGHTS = ["weight", "share"]
ATTENDING = ("attention", "head")
ANSWER, PRUNED = "answer", "pruned"
"""The ids of the answer's node, and of the one that stands for all that was pruned."""
GROUP = "group"
"""The kind of a node that stands for several."""
Share = Annotated[float, Range(above=0, most=1)]
READ = 3  # what a row of the table names of a firing's inputs


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Circuit(AnswerResult):
    """The graph of firings behind an answer. Made by :func:`ffnmem.circuit`.

    Attributes:
        nodes: one row a node: id, kind ("answer", "firing", "attention", "head", "embedding", "position", "bias",
            "pruned"), layer, neuron, head, position, token, coefficient, pre and linear (what its edges sum to: a
            neuron's pre-activation, of a gated one gate and linear part; the answer's logit), influence (on the
            answer), score (what it adds to the answer's logit with no other node between), error (|sum of its
            edges − what it read|, the larger one of a gated neuron).
        edges: one row an edge: source, target (ids), input ("pre", "gate", "linear", "logit"), weight: what the
            source adds to that input of the target, share (its absolute weight as a share of those of all firings
            and embeddings that the target reads, kept or not; of these a target's shares sum to 1, biases stand
            beside them).
        logit: the model's own logit of the target (minus the foil's).
        tokens: the prompt's tokens up to the answer's ``position``.
        expanded: how many firings were looked into before pruning. attention: what attention is in it: "paths",
            "layers" or "heads". probability: the target's. prompts: how many were merged.
    """

    main = "edges"
    in_json = "tokens position target foil logit error attention expanded prompts pruned_share nodes edges"
    in_repr = "target foil logit firings edges error"

    nodes: pd.DataFrame
    edges: pd.DataFrame
    logit: float
    expanded: int
    attention: str
    n_layers: int
    token_ids: tuple[int, ...]
    probability: float
    prompts: int

    # -- what is in it -------------------------------------------------------------------------------------------

    @cached_property
    def firings(self) -> pd.DataFrame:
        """The nodes that are firings, largest influence first."""
        found = self.nodes[self.nodes["kind"] == "firing"]
        return found.sort_values("influence", ascending=False, kind="stable", ignore_index=True)

    @property
    def error(self) -> float:
        """The largest error of a node, relative to what it read where that is above 1."""
        read = self.nodes[["pre", "linear"]].abs().max(axis=1).clip(lower=1.0)
        return float((self.nodes["error"] / read).max())

    @cached_property
    def pruned_share(self) -> float:
        """The share of the influence on the answer that comes from what was pruned."""
        return float(self.nodes.loc[self.nodes["id"] == PRUNED, "influence"].sum())

    def sums(self) -> pd.DataFrame:
        """One row an input of a node: target, input, sum (of its edges' weights), read (what it was), error."""
        sums = self.edges.groupby(["target", "input"], sort=False)["weight"].sum().rename("sum").reset_index()
        pre, linear = (sums["target"].map(self.nodes.set_index("id")[name]) for name in ("pre", "linear"))
        sums["read"] = linear.where(sums["input"] == "linear", pre)
        return sums.assign(error=(sums["sum"] - sums["read"]).abs())

    def subgraph(self, nodes: Iterable[str]) -> Circuit:
        """The graph of some of its nodes, named by their ids; all others join what was pruned, so that sums stay true.

        The answer is always one of them. Raises InputError for an id that is not there.
        """
        wanted = {ANSWER, *nodes}
        unknown = sorted(wanted - set(self.nodes["id"]))
        if unknown:
            known = listed([quoted(name) for name in self.nodes["id"][:3]])
            raise InputError(f"the circuit has no node {quoted(unknown[0])}: its ids are such as {known}")
        left = self.nodes["id"].isin(wanted - {PRUNED})
        into = dict.fromkeys(self.nodes["id"][~left], PRUNED)
        biases = self.edges["source"].isin(into) & self.edges["source"].str.startswith("bias")
        shares = self.edges["share"].mask(biases, 0.0)  # biases stand beside the shares
        edges, _ = contract(self.edges.assign(share=shares), into)
        table, edges = add_pruned(self.nodes[left], edges)
        return replace(self, nodes=table, edges=edges)

    def merge(self, *others: Circuit) -> Circuit:
        """One graph of the same answer's question in several prompts, position by position: the mean over them.

        A node is there if it is in any of the prompts. Its numbers, and the edges into it, are means over the prompts
        that have it, an edge that one of them lacks counting 0, so that sums stay true; its influence is a mean over
        all prompts. Tokens that differ are joined by "/".

        Raises: InputError: prompts of other lengths, or circuits of other kinds, with and without a foil, or of another
        model.
        """
        every = [self, *others]
        for one in others:
            if (len(one.tokens), one.attention) != (len(self.tokens), self.attention):
                raise InputError(
                    f"circuits of prompts of {len(self.tokens)} and {len(one.tokens)} tokens (attention as "
                    f"{self.attention} and {one.attention}) have no positions in common: merge those of one form"
                )
            if (one.foil is None) != (self.foil is None):
                raise InputError("a circuit with a foil and one without have no mean: merge those of one form")
            if one.provenance.fingerprint != self.provenance.fingerprint:
                raise InputError("the circuits are of two models: merge those of one")
        counts = np.array([one.prompts for one in every])
        tables = pd.concat([one.nodes.assign(n=n) for one, n in zip(every, counts, strict=True)], ignore_index=True)
        nodes = merge_nodes(tables, int(counts.sum()))
        scaled = [one.edges.assign(**(one.edges[WEIGHTS] * n)) for one, n in zip(every, counts, strict=True)]
        edges, _ = contract(pd.concat(scaled), {})
        edges[WEIGHTS] = edges[WEIGHTS].div(edges["target"].map(tables.groupby("id")["n"].sum()), axis=0)
        return replace(
            self,
            nodes=nodes,
            edges=sort_edges(edges, nodes),
            logit=float(np.average([one.logit for one in every], weights=counts)),
            tokens=tuple(join_texts(column) for column in zip(*(one.tokens for one in every), strict=True)),
            starts_with_bos=all(one.starts_with_bos for one in every),
            target=join_texts([one.target for one in every]),
            foil=None if self.foil is None else join_texts([str(one.foil) for one in every]),
            expanded=max(one.expanded for one in every),
            probability=float(np.average([one.probability for one in every], weights=counts)),
            prompts=int(counts.sum()),
        )

    def supernodes(self, similarity: Share = SUPERNODE_SIMILARITY) -> pd.DataFrame:
        """Its firings in groups of those that read alike and write alike.

        Two firings are as alike as the smaller cosine of what they read and of what reads them (edges' shares with
        their signs; biases and what was pruned left out). Groups are joined while the mean over their pairs is at least
        ``similarity``.

        Returns:
            One row a firing: supernode (0 has most influence), size, id, layer, neuron, position, token, influence.

        Raises: InputError: a similarity that is not above 0 and at most 1.
        """
        return group_firings(self.nodes, self.edges, similarity)

    def faithfulness(
        self, capture: Capture, *, mean: Any = None, prompt: int | None = None, random: int = 0, seed: Seed = 0
    ) -> Faithfulness:
        """How much of the answer its firings alone give, all others at zero or ``mean``: :func:`ffnmem.faithfulness`.

        Args:
            capture: of its prompt. prompt: which one of the capture's.
            mean, random, seed: as there.

        Returns: A :class:`Faithfulness` of one size: ``.curve["faithfulness"]`` is the circuit's.

        Raises: as :func:`ffnmem.faithfulness`; InputError for another prompt's or model's capture.
        """
        if capture.provenance.fingerprint != self.provenance.fingerprint:
            raise InputError("the capture is of another model than the circuit's")
        if self.prompts > 1:
            raise InputError("the circuit is of several prompts: ask one of its own")
        return faithfulness(
            capture, self.answer, None, self.firings[["layer", "neuron", "position"]], mean=mean, prompt=prompt,
            random=random, seed=seed,
        )  # fmt: skip

    def export(
        self,
        form: CircuitForm = "circuit-tracer",
        path: str | Path | None = None,
        *,
        slug: str | None = None,
        supernodes: pd.DataFrame | None = None,
    ) -> dict[str, Any]:
        """The graph in another program's form.

        Args:
            form: ``"circuit-tracer"``: the graph JSON that its page and Neuronpedia read. A memory is a feature there,
                what was pruned an error node; of a gated neuron a link's weight is what it adds to the coefficient,
                half by the gate, half by the linear part.
            path: of a file to write besides.
            slug: the graph's name; default from the prompt.
            supernodes: from :meth:`supernodes`; groups of two and more are written.

        Returns: The graph as plain values.

        Raises: InputError: no such form. FileError: the file cannot be written.
        """
        target = None if path is None else check_destination(path)
        groups = {}
        for number, members in [] if supernodes is None else supernodes.groupby("supernode"):
            if len(members) > 1:
                groups[f"supernode {number}"] = [str(name) for name in members["id"]]
        found = graph_json(self, slug, groups)
        if target is not None:
            write_whole(target, json.dumps(found, allow_nan=False, ensure_ascii=False, indent=1) + "\n")
        return found

    # -- how it is shown -----------------------------------------------------------------------------------------

    def sheet(self, top: Whole = 12, alone: Faithfulness | None = None) -> Sheet:
        """The answer, what the graph has of it, and the ``top`` firings (and heads) with what they read.

        ``alone``, from :meth:`faithfulness`, adds what the firings keep of the answer; where they do not carry it, that
        comes first.
        """
        kinds = self.nodes.set_index("id")["kind"]
        answer = self.edges[self.edges["target"] == ANSWER]
        by_kind = answer["weight"].groupby(answer["source"].map(kinds)).sum()
        parts = {"firing": "its firings", "attention": "attention", "head": "heads", "embedding": "embeddings",
                 "position": "positions", "bias": "biases", "pruned": "what was pruned"}  # fmt: skip
        direct = ", ".join(f"{name} {by_kind[kind]:+.3f}" for kind, name in parts.items() if kind in by_kind)
        size = (
            f"{counted(len(self.firings), 'firing')} of {self.expanded:,} expanded, {counted(len(self.edges), 'edge')}"
        )
        lead: dict[str, Content | None] = {}
        if alone is not None and not len(alone.carrying):
            lead["verdict"] = f"{alone.verdict}; all others at {alone.reference}"
        facts = lead | describe_answer(self)
        facts |= {
            "prompts": None if self.prompts == 1 else f"{self.prompts}, of which this is the mean",
            "to the answer": f"{direct}; error {self.error:.1e}",
            "graph": f"{size}; {self.pruned_share:.1%} of the influence is pruned",
        }
        if alone is not None and not lead:
            kept = alone.curve["faithfulness"].iloc[0]
            facts["alone"] = f"its firings, all others at {alone.reference}, keep {kept:.1%} of the answer"
        at, writes_at = (replace(FIRED_AT, name=name, limit=16) for name in (FIRED_AT.name, "writes at"))
        tables = [self.node_table(self.firings.head(top), "neuron", at, "position coefficient influence")]
        heads = self.nodes[self.nodes["kind"].isin(ATTENDING)].sort_values("influence", ascending=False, kind="stable")
        if len(heads):
            names = heads["layer"].astype(str) + ("" if self.attention == "layers" else "." + heads["head"].astype(str))
            column = Column("attention" if self.attention == "layers" else "head", of="name")
            tables.append(self.node_table(heads.assign(name=names).head(top), column, writes_at, "position influence"))
        return Sheet.of(facts, *tables, self.provenance)

    def node_table(self, nodes: pd.DataFrame, *columns: str | Column) -> Table:
        """Some nodes, with what they add to the answer and what they read."""
        return Table.of(
            nodes,
            *columns,
            Column("to the answer", "number", sign=True, bars=True, of="score"),
            Column("reads most from", wraps=True, of=lambda row: self.reads(str(row["id"]))),
        )

    def reads(self, node: str) -> Fitting:
        """A node's largest edges, but for what was pruned; a place is named where it is not the node's own.

        They are numbered by what they add; into a head, by their share of all that it reads.
        """
        into = self.edges[(self.edges["target"] == node) & (self.edges["source"] != PRUNED)]
        order = into["weight"].abs().sort_values(ascending=False, kind="stable").index
        largest = into.loc[order].drop_duplicates("source").head(READ)
        by_id = self.nodes.set_index("id", drop=False)
        own, attends = f"@{by_id.loc[node].position}", by_id.loc[node].kind in ATTENDING
        found = []
        for edge in largest.itertuples():
            row = by_id.loc[edge.source]
            short = str(row.id).removesuffix(own).replace("@", " at ").replace("head.", "head ")
            name = token(row.token, limit=12) if row.kind == "embedding" else Span(short)
            signed = math.copysign(edge.share, edge.weight)  # what a head is read for has no unit of its own
            found.append(line(name, f" {signed:+.1%}" if attends else f" {edge.weight:+.2f}"))
        return Fitting(tuple(found))


# -- tables ----------------------------------------------------------------------------------------------------------


def set_types(frame: pd.DataFrame, columns: dict[str, str]) -> pd.DataFrame:
    """A table with these columns, of these types."""
    types = {name: object if kind == "str" else kind for name, kind in columns.items()}
    return frame.reindex(columns=list(columns)).astype(types).reset_index(drop=True)


def sort_edges(edges: pd.DataFrame, nodes: pd.DataFrame) -> pd.DataFrame:
    """Edges by their targets' order among the nodes, each one's largest first."""
    place = {name: i for i, name in enumerate(nodes["id"])}
    order = np.lexsort((-edges["weight"].abs().to_numpy(), edges["input"].astype(str), edges["target"].map(place)))
    return set_types(edges.iloc[order], EDGES)


def contract(edges: pd.DataFrame, into: Mapping[str, str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The edges where some nodes are others, ``into`` by their ids: between nodes added up, and those within a node.

    What was pruned reads nothing.
    """
    edges = edges.assign(**{end: [into.get(name, name) for name in edges[end]] for end in ("source", "target")})
    inner = edges["source"] == edges["target"]
    outer = edges[~inner & (edges["target"] != PRUNED)]
    return outer.groupby(["source", "target", "input"], sort=False, as_index=False).sum(), edges[inner]


def add_pruned(nodes: pd.DataFrame, edges: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A graph with the node of all that was pruned: what it adds to the answer, and the influence that enters by it."""
    depth = np.where(nodes["id"] == ANSWER, np.inf, 2.0 * nodes["layer"].fillna(-1).astype(float))
    depth = depth + (nodes["kind"] == "firing")  # of one layer, the FFN may read attention
    through = dict.fromkeys(nodes["id"], 0.0) | {ANSWER: 1.0, PRUNED: 0.0}
    read = {name: [*zip(some["source"], some["share"], strict=True)] for name, some in edges.groupby("target")}
    for name in nodes["id"].iloc[np.argsort(-depth, kind="stable")]:
        for source, share in read.get(name, ()):
            through[source] += through[name] * share
    score = edges.loc[(edges["source"] == PRUNED) & (edges["target"] == ANSWER), "weight"].sum()
    row = {"id": PRUNED, "kind": PRUNED, "token": "", "influence": through[PRUNED], "score": float(score)}
    table = pd.concat([set_types(nodes, NODES), set_types(pd.DataFrame([row]), NODES)], ignore_index=True)
    return table, sort_edges(edges, table)


def join_texts(texts: Iterable[str]) -> str:
    """Texts that differ, in one."""
    return "/".join(dict.fromkeys(texts))


def merge_nodes(nodes: pd.DataFrame, prompts: int) -> pd.DataFrame:
    """Rows of one id as one: means over the prompts that have it, of the influence over all prompts."""
    means = ["coefficient", "pre", "linear", "score"]
    numbers = [*means, "influence"]
    groups = nodes.assign(**nodes[numbers].mul(nodes["n"], axis=0)).groupby("id", sort=False)
    found = groups[["kind", "layer", "neuron", "head", "position"]].first()
    found = found.assign(token=groups["token"].agg(join_texts), error=groups["error"].max())
    found[numbers] = groups[numbers].sum(min_count=1)
    found[means] = found[means].div(groups["n"].sum(), axis=0)
    return sort_nodes(found.assign(influence=found["influence"] / prompts).reset_index())


def sort_nodes(nodes: pd.DataFrame) -> pd.DataFrame:
    """The answer, firings and groups, all others, what was pruned: of each the largest influence first."""
    ranks = {ANSWER: 0, "firing": 1, GROUP: 1, PRUNED: 9}
    order = np.lexsort((-nodes["influence"].astype(float), [ranks.get(kind, 5) for kind in nodes["kind"]]))
    return set_types(nodes.iloc[order], NODES)


# -- making one ------------------------------------------------------------------------------------------------------


@checked
def circuit(
    capture: Capture,
    target: Target = None,
    foil: str | int | None = None,
    position: int = -1,
    *,
    prompt: SupportsIndex | None = None,
    first_token: bool = False,
    nodes: Count = CIRCUIT_NODES,
    firings: Any = None,
    node_threshold: Share = NODE_THRESHOLD,
    edge_threshold: Share = EDGE_THRESHOLD,
    attention: bool = False,
    heads: bool = False,
    memory: float | None = None,
    progress: Progress | None = None,
) -> Circuit:
    """The graph of firings behind an answer: which memories made which others fire, and which wrote the answer.

    An edge is what its source adds to its target's pre-activation (of a gated neuron to the gate, and to the linear
    part), or to the answer's logit: what the source wrote, carried along every path through attention, with attention
    patterns and norm scales as they were and no FFN in between. That is linear, so the edges into a node sum to its
    pre-activation exactly: over firings, token and position embeddings, and biases. What is pruned stays in those sums
    as one node.

    Args:
        capture, target, foil, position, prompt, first_token: as :func:`ffnmem.attribute`, at one position.
        nodes: how many firings are expanded at most, those of most influence on the answer.
        firings: these alone in place of the most influential ones, all of which stay: a :class:`MinimalCircuit`, or a
            table or triples of layer, neuron, position.
        node_threshold: of the expanded firings, the fewest that have this share of their influence stay.
        edge_threshold: then the fewest edges that carry this share of it.
        attention: what each attention layer writes at each position is a node, and paths end there.
        heads: the same for each head, in place of whole layers.
        memory: GiB that it may take, by an estimate that grows with the square of the prompt's length; default: as much
            as the model's weights, and at least 4.
        progress: called with "circuit", the firings expanded and the most that will be.

    With ``attention`` or ``heads``, an edge is what its source adds directly along the residual stream, and attention
    stands between. A head writes a vector, which its readers read along directions of their own: its edges sum to what
    it adds to all of them together, each reader's input counted in shares of all that it reads, times the reader's
    influence. The firings are those of the graph without heads; of the heads, the most influential ones are looked at.

    Returns:
        A :class:`Circuit`: ``.nodes``, ``.edges``, ``.sums()``, ``.error``, ``.subgraph``, ``.merge``, ``.plot``,
        ``.export``.

    Raises: as :func:`ffnmem.attribute_paths`; InputError, too: shares that are none, ``attention`` with ``heads``, or a
        prompt that takes more memory.

    Source: the attribution graphs of Ameisen et al. 2025, "Circuit Tracing", with neurons in place of transcoders'
    features; edges through frozen attention as in Elhage et al. 2021.
    """
    if attention and heads:
        raise InputError("attention and heads exclude each other: whole layers are nodes, or their heads")
    question = PromptQuestion.of(capture, target, foil, position, prompt, first_token)
    read = single_token(question.model, question.answer, "a circuit")
    check_memory(question, memory)
    frozen = FrozenPass(question)
    tell = None if progress is None else lambda done, most: progress("circuit", done, most)
    given = None if firings is None else [Firing(*triple) for triple in question.triples(firings)]
    if given is not None:
        if not given:
            raise InputError("firings is empty: name at least one, or leave it out")
        nodes, node_threshold = len(given), 1.0
    chosen, norms = expand(frozen, nodes, tell, given)
    with_attention = attention or heads
    whole = graph_with_attention(frozen, chosen, nodes, heads) if with_attention else graph(frozen, chosen, norms)
    kept = prune(whole.shares(), node_threshold, edge_threshold, whole.n_biases)
    found, edges = tables(frozen, whole, kept)
    return Circuit(
        nodes=found,
        edges=edges,
        logit=frozen.logit,
        **question.result_fields(),
        expanded=len(chosen),
        attention="heads" if heads else "layers" if attention else "paths",
        n_layers=question.model.n_layers,
        token_ids=tuple(question.tokens.tolist()),
        probability=float(question.capture.logits_at(question.row, question.position).double().softmax(-1)[read]),
        prompts=1,
        provenance=capture.provenance.with_settings(
            frozen="attention patterns, norm scales", nodes=nodes, node_threshold=float(node_threshold),
            edge_threshold=float(edge_threshold), **({} if given is None else {"firings": "given"}),
        ),
    )  # fmt: skip


def tables(frozen: FrozenPass, whole: Graph, kept: Pruning) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The nodes and edges that pruning leaves, what it took as one node."""
    n, node_of, texts = len(whole.nodes), np.array(whole.node_of()), frozen.question.texts
    weights, totals, values = whole.weights.numpy(), whole.totals.numpy(), whole.values.numpy()
    rows = [node_row(frozen, node, texts) for node in whole.nodes]
    rows += [
        {"id": name, "kind": kind, "layer": layer, "position": at, "token": "" if at is None else texts[at]}
        for name, kind, layer, at in frozen.other_names()
    ]
    sources = pd.DataFrame(rows).assign(influence=kept.influence.numpy(), score=weights[node_of == 0].sum(0))
    names = np.array([*sources["id"], PRUNED], dtype=object)
    targets = np.array([ANSWER, *names[:n]], dtype=object)[node_of]
    read = np.array([one.name for one in whole.inputs], dtype=object)
    parts, there = np.bincount(node_of)[node_of], np.array([True, *kept.nodes.tolist()])[node_of]
    shares = np.abs(weights) / (whole.norms.numpy() * parts)[:, None].clip(1e-300)
    stays = kept.edges.numpy()[node_of] & there[:, None] & (weights != 0)
    varying = weights.shape[1] - whole.n_biases
    rest = totals - (weights * stays).sum(1)
    rest_share = (1.0 / parts - (shares * stays)[:, :varying].sum(1)).clip(0.0)
    weights, shares = np.c_[weights, rest], np.c_[shares, rest_share]
    at, source = np.nonzero(np.c_[stays, there])
    columns = names[source], targets[at], read[at], weights[at, source], shares[at, source]
    edges = pd.DataFrame(dict(zip(EDGES, columns, strict=True)))
    inputs = pd.DataFrame({"node": node_of, "error": np.abs(totals - values)})
    for name in ("pre", "linear"):
        inputs[name] = np.where((read == "linear") == (name == "linear"), values, np.nan)
    by_node = inputs.groupby("node").max().reindex(range(len(sources) + 1))
    answer = {"id": ANSWER, "kind": ANSWER, "position": frozen.pos, "token": frozen.question.answer.target_text}
    nodes = pd.concat([pd.DataFrame([answer | {"influence": 1.0}]), sources.astype(object)], ignore_index=True)
    nodes = set_types(nodes.assign(**by_node), NODES)
    left = nodes[1 : n + 1][kept.nodes.numpy()].sort_values("influence", ascending=False, kind="stable")
    others = nodes[n + 1 :][nodes["id"][n + 1 :].isin(edges["source"])]
    return add_pruned(pd.concat([nodes[:1], left, others]), edges)


def node_row(frozen: FrozenPass, node: Firing | Head, tokens: tuple[str, ...]) -> dict[str, Any]:
    """What a row says of a firing or a head, but for its part in the graph."""
    found = {"id": node.name, "layer": node.layer, "position": node.position, "token": tokens[node.position]}
    if isinstance(node, Head):
        return found | {"kind": "attention" if node.head is None else "head", "head": node.head}
    held = frozen.capture.coefficients[node.layer][frozen.row, node.position, node.neuron]
    return found | {"kind": "firing", "neuron": node.neuron, "coefficient": float(held)}
