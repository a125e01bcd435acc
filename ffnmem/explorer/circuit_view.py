"""The view of a circuit: the graph behind an answer, its nodes grouped, pruned and taken away.

What is pinned stands in the address's fragment, which the page's script reads; all else in its query.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import pandas as pd
import torch
from pydantic import AfterValidator, Field

from ..core.defaults import EDGE_THRESHOLD, NODE_THRESHOLD, SUPERNODE_SIMILARITY
from ..core.errors import InputError, counted, quoted
from ..core.pictures import picture
from ..core.progress import Progress
from ..interventions.intervening import compare_predictions, intervene
from ..models.model import Model
from ..models.residual import model_logits
from ..pages.circuits import NodeRow, carried, circuit_html, circuit_values, promoted_tokens
from ..pages.rendering import script_of
from ..prompts.captures import Capture, capture
from ..prompts.circuit_edges import Firing
from ..prompts.circuits import PRUNED, Circuit, circuit
from ..prompts.condensing import GROUPED, condense, group_id
from ..prompts.minimal import minimal_circuit
from ..prompts.sufficiency import Faithfulness, faithfulness
from .queries import CARRIED, Query, Text, Token, form_field, read_token
from .rendering import fragment
from .views import Explorer, View, view

LOOKED_INTO, MOST = 60, 500  # firings, unless somebody asks for others; and at most
NAMED, TOKENS = 12, 6  # neurons whose tokens are shown, and how many
PREDICTED = 6  # rows of what the model says before and after
READ = 3  # what a group's row names of what it reads, and of who reads it
DRAWN = 40  # firings of a picture
NODE = re.compile(r"[a-z0-9.]+(@[0-9]+)?", re.ASCII)
FIRING = re.compile(r"([0-9]{1,6})\.([0-9]{1,9})(?:@([0-9]{1,6}))?", re.ASCII)
ATTENTION = {"paths": "what edges go through", "layers": "nodes, by layer", "heads": "nodes, by head"}

Removed = tuple[int, int, int | None]
"""Layer, neuron and position of a firing that is taken away; None for every position."""


def spell_nodes(ids: str | Iterable[str]) -> str:
    """Ids of nodes, each once, with commas between them; raises InputError."""
    ids = ids.split(",") if isinstance(ids, str) else ids
    known = list(dict.fromkeys(one.strip() for one in ids if one.strip()))
    strange = next((one for one in known if NODE.fullmatch(one) is None), None)
    if strange is not None:
        raise InputError(f"nodes are named such as 3.17@5, with commas between them, not {quoted(strange)}")
    return ",".join(known)


def read_group(typed: str) -> tuple[str, str]:
    """Name and nodes of a group, ``name:3.17@5,4.2@5``; raises InputError."""
    name, colon, ids = typed.rpartition(":")
    if not colon or not 1 <= len(name.strip()) <= 40:
        raise InputError(
            f"a group is a name of 1 to 40 characters and its nodes, such as city:3.17@5,4.2@5, not {quoted(typed)}"
        )
    return name.strip(), spell_nodes(ids)


def read_firings(typed: str) -> list[Removed]:
    """Firings as ``3.17@5``, or ``3.17`` for a neuron wherever it fires; raises InputError."""
    firings: dict[Removed, None] = {}
    for one in filter(None, (part.strip() for part in typed.split(","))):
        matched = FIRING.fullmatch(one)
        if matched is None:
            raise InputError(
                f"remove takes firings such as 3.17@5 (layer, neuron, position), or 3.17 for every position, "
                f"not {quoted(one)}"
            )
        layer, neuron, position = matched.groups()
        firings[int(layer), int(neuron), None if position is None else int(position)] = None
    return list(firings)


def spell_firings(firings: Iterable[Removed]) -> str:
    """Firings as an address has them."""
    return ",".join(f"{layer}.{neuron}" + ("" if at is None else f"@{at}") for layer, neuron, at in firings)


Share = Annotated[float, Field(ge=0.001, le=1)]
Nodes = Annotated[str, AfterValidator(spell_nodes)]


class CircuitQuery(Query):
    """A prompt and its answer, what is looked into and pruned, and what is done with the graph.

    ``prune``, ``group``, ``remove``: nodes that join what was pruned, that stand as one, and firings that are taken
    away. ``do``, ``pick``, ``name``: an action on nodes that are ticked, which gives another address.
    """

    path: ClassVar[str] = "/circuit"
    text: Text = form_field("text", lines=2, required=True)
    target: Token = form_field("target", hint="the likeliest")
    foil: Token = form_field("foil", hint="none")
    at: int = Field(default=-1, title="position")
    firings: int = form_field(
        "firings looked into", LOOKED_INTO, hint=str(LOOKED_INTO), number=True, folded=True, ge=1, le=MOST
    )
    minimal: Share | None = form_field("or the fewest that keep", None, hint="0.9", number=True, folded=True)
    nodes: Share = form_field(
        "keep of the influence", NODE_THRESHOLD, hint=str(NODE_THRESHOLD), number=True, folded=True
    )
    edges: Share = form_field("then of the edges’", EDGE_THRESHOLD, hint=str(EDGE_THRESHOLD), number=True, folded=True)
    attention: Literal["paths", "layers", "heads"] = form_field("attention is", "paths", words=ATTENTION, folded=True)
    alike: Share | None = form_field(
        "group those alike by", None, hint=f"not, or {SUPERNODE_SIMILARITY}", number=True, folded=True
    )
    prune: Nodes = Field(default="", json_schema_extra=CARRIED)
    group: tuple[Annotated[str, AfterValidator(lambda typed: ":".join(read_group(typed)))], ...] = Field(
        default=(), json_schema_extra=CARRIED
    )
    remove: Annotated[str, AfterValidator(lambda typed: spell_firings(read_firings(typed)))] = Field(
        default="", json_schema_extra=CARRIED
    )
    do: Literal["", "draw", "remove", "back", "prune", "group"] = ""
    pick: tuple[Nodes, ...] = ()
    name: str = Field(default="", title="the group’s name", max_length=40)

    @property
    def groups(self) -> dict[str, list[str]]:
        """The nodes of each group; raises InputError for two of one name."""
        groups = {name: ids.split(",") for name, ids in map(read_group, self.group)}
        if len(groups) < len(self.group):
            raise InputError("two groups have the same name: give each its own")
        return groups

    def graph_key(self) -> tuple[Any, ...]:
        """All that the graph depends on, as the library makes it."""
        return tuple(self.pairs("alike", "prune", "group", "remove"))

    def regrouped(self, groups: Mapping[str, Sequence[str]]) -> str:
        """The address with these groups."""
        return self.address(group=tuple(f"{name}:{','.join(ids)}" for name, ids in groups.items() if ids))

    def without(self, ids: Iterable[str]) -> str:
        """The address with these firings taken away, too; other nodes cannot be."""
        firings = [one for one in ids if FIRING.fullmatch(one)]
        return self.address(remove=",".join(dict.fromkeys(filter(None, (self.remove, *firings))))) if firings else ""

    def moved(self) -> str:
        """Raises: InputError: no node is ticked, or none that can be taken away."""
        if not self.do:
            return ""
        plain = self.model_copy(update={"do": "", "pick": (), "name": ""})
        if self.do == "draw":  # another graph, which has other nodes
            return plain.address(prune="", group=(), remove="")
        if not self.pick:
            raise InputError(f"tick the nodes to {self.do} in the table first")
        if self.do == "prune":
            return plain.address(prune=spell_nodes([*self.prune.split(","), *self.pick]))
        if self.do == "group":
            groups = {name: [one for one in ids if one not in self.pick] for name, ids in self.groups.items()}
            name = self.name.strip()
            name = name or next(free for i in range(1, len(groups) + 2) if (free := f"group {i}") not in groups)
            return plain.regrouped({**groups, name: [*groups.get(name, []), *self.pick]})
        if self.do == "back":
            return plain.address(remove=",".join(one for one in self.remove.split(",") if one not in self.pick))
        address = plain.without(self.pick)
        if not address:
            raise InputError("only firings can be removed, and none of the ticked nodes is one")
        return address


# What the answer becomes without some firings.


@dataclass(frozen=True)
class Without:
    """What an answer is without some firings, run again with their coefficients at 0.

    Attributes:
        logit, probability: of the target after; the logit minus the foil's.
        predictions: as :func:`ffnmem.interventions.intervening.compare_predictions`.
        left: the share that all other firings keep of what firings make of the answer; None where they make nothing.
    """

    logit: float
    probability: float
    predictions: pd.DataFrame
    left: float | None


def run_without(before: Capture, graph: Circuit, firings: Sequence[Firing], alone: Faithfulness | None) -> Without:
    """The prompt run again with some firings at 0: exactly, whatever follows from it."""
    by_position: dict[int, dict[tuple[int, int], float]] = {}
    for one in firings:
        by_position.setdefault(one.position, {})[one.layer, one.neuron] = 0.0
    with ExitStack() as blocks:
        for position, neurons in by_position.items():
            blocks.enter_context(intervene(before.model, neurons, positions=[position]))
        after = capture(before.model, before.tokens[0].tolist())
    assert after.residual is not None
    target = torch.tensor([graph.target_id], device=after.tokens.device)
    logit = float(model_logits(before.model, after.residual.final_out[0, [graph.position]], target, graph.foil_id))
    probabilities = after.logits_at(0, graph.position).double().softmax(-1)
    return Without(
        logit=logit,
        probability=float(probabilities[graph.target_id]),
        predictions=compare_predictions(before, after, graph.position, PREDICTED),
        left=None if alone is None else (logit - alone.without) / (alone.logit - alone.without),
    )


def place_firings(removed: Iterable[Removed], graph: Circuit, model: Model) -> list[Firing]:
    """The firings that are taken away, each once; raises OutOfRangeError for one that the prompt does not have."""
    firings: dict[Firing, None] = {}
    for layer, neuron, position in removed:
        layer, neuron = model.layer(layer), model.neuron(layer, neuron)
        for at in range(graph.position + 1) if position is None else (position,):
            if at > graph.position:
                raise InputError(
                    f"there is no firing {layer}.{neuron}@{at}: the prompt has positions 0 to {graph.position}"
                )
            firings[Firing(layer, neuron, at)] = None
    return list(firings)


# The view.


@view("Circuit", CircuitQuery, "the circuit", buttons=[("Draw", "do", "draw")])
def circuit_page(explorer: Explorer, query: CircuitQuery, progress: Progress) -> View:
    """The graph behind an answer, what stands in groups, and what the answer becomes without some of it."""
    if not query.text:
        return View("Circuit", fragment("circuit_begin.html", text=explorer.example))
    model, before = explorer.model, explorer.capture(query.text)
    whole = explorer.cached(("circuit", *query.graph_key()), lambda: make_circuit(before, query, progress))
    pruned = [one for one in query.prune.split(",") if one]
    graph = whole.subgraph(set(whole.nodes["id"]) - set(pruned) - {PRUNED}) if pruned else whole
    removed = read_firings(query.remove)
    firings = place_firings(removed, graph, model)
    alone = keep_alone(explorer, query, before, graph, ())
    left = after = None
    if firings:
        after = explorer.cached(
            ("without", *query.pairs("alike", "group")), lambda: run_without(before, graph, firings, alone)
        )
        left = keep_alone(explorer, query, before, graph, firings)
    groups = find_groups(graph, query)
    shown = condense(graph, groups)
    chips = explorer.cached(("promoted", *query.graph_key()), lambda: promoted_tokens(whole, [], model, NAMED, TOKENS))
    gone = [one.name for one in firings]
    values = circuit_values(shown, chips)
    of_firings = shown.nodes.loc[shown.nodes["kind"] == "firing", "id"]
    values["removals"] = {one: query.without([one]) for one in of_firings if one not in gone}
    values["removed"] = gone
    values["picked"] = dict.fromkeys(shown.nodes.loc[shown.nodes["kind"].isin(GROUPED), "id"], "nodes-form")
    provenance = graph.provenance.with_settings(basis="folded").to_dict()
    body = fragment(
        "circuit_view.html",
        frame="fragment.html",
        **values,
        whole=whole,
        found=graph,
        query=query,
        n_pruned=len(pruned),
        groups=describe_groups(query, shown, groups, {row.node.id: row for row in values["rows"]}),
        took=[
            (
                spell_firings([one]),
                f"/memory/{one[0]}.{one[1]}",
                query.address(remove=spell_firings(i for i in removed if i != one)),
            )
            for one in removed
        ],
        after=after,
        removal=query.remove if len(removed) == 1 else counted(len(firings), "firing"),
        alone=share_of(alone),
        left=share_of(left),
        carries=alone is None or len(alone.carrying) > 0,
        links=memory_address,
        cards_shown=(),
        unshaded="",
    )
    return View(
        title="The circuit behind an answer",
        body=body,
        name="circuit",
        provenance=provenance,
        files={
            "csv": shown.to_frame,
            "png": lambda: picture("figure")(graph, top=DRAWN),
            "html": lambda: circuit_html(graph, [], "", model, NAMED, TOKENS),
            "json": lambda: export_circuit(graph, groups),
        },
        styles=script_of("circuit.css"),
        scripts=script_of("circuit.js"),
        notes=tuple(
            f"the {name} {quoted(asked)} is several tokens: its first one is explained"
            for name, asked, token in (("target", query.target, graph.target), ("foil", query.foil, graph.foil))
            if isinstance(read_token(asked), str) and token is not None and token.strip() != asked.strip()
        ),
    )


def make_circuit(before: Capture, query: CircuitQuery, progress: Progress) -> Circuit:
    """The circuit, as the library makes it."""
    target, foil = read_token(query.target), read_token(query.foil)
    chosen: dict[str, Any] = {"nodes": query.firings}
    if query.minimal is not None:
        fewest = minimal_circuit(before, target, foil, position=query.at, faithfulness=query.minimal, first_token=True,
                                 progress=progress)  # fmt: skip
        if len(fewest.firings) > MOST:
            raise InputError(
                f"the smallest set found that keeps {query.minimal:.0%} of the answer has "
                f"{counted(len(fewest.firings), 'firing')}, too many to draw: ask for a smaller share"
            )
        chosen["firings"] = fewest
    return circuit(
        before, target, foil, query.at, node_threshold=query.nodes, edge_threshold=query.edges,
        attention=query.attention == "layers", heads=query.attention == "heads", first_token=True, progress=progress,
        **chosen,
    )  # fmt: skip


def keep_alone(
    explorer: Explorer, query: CircuitQuery, before: Capture, graph: Circuit, left_out: Sequence[Firing]
) -> Faithfulness | None:
    """How much of the answer the graph's firings keep by themselves, without some; None where that has no answer."""
    gone = sorted(one.name for one in left_out)
    firings = graph.firings[~graph.firings["id"].isin(gone)][["layer", "neuron", "position"]]
    if firings.empty:
        return None

    def run() -> Faithfulness | str:
        try:
            return faithfulness(before, graph.target_id, graph.foil_id, firings, position=graph.position, random=0)
        except InputError as error:  # none of them could be left out, or firings do not make this answer
            return str(error)

    result = explorer.cached(("alone", *query.graph_key(), query.prune, *gone), run)
    return None if isinstance(result, str) else result


def memory_address(layer: int, neuron: int) -> str:
    """The address of a neuron's view."""
    return f"/memory/{layer}.{neuron}"


def share_of(alone: Faithfulness | None) -> float | None:
    """The share of the answer that some firings keep alone."""
    return None if alone is None else float(alone.curve["faithfulness"].iloc[0])


def find_groups(graph: Circuit, query: CircuitQuery) -> dict[str, list[str]]:
    """The groups of the address, as far as the graph has their nodes; then those of firings that are alike."""
    known = set(graph.nodes.loc[graph.nodes["kind"].isin(GROUPED), "id"])
    groups = {name: some for name, ids in query.groups.items() if (some := [one for one in ids if one in known])}
    if query.alike is not None:
        taken = {one for ids in groups.values() for one in ids}
        for number, members in graph.supernodes(query.alike).groupby("supernode"):
            ids = [str(one) for one in members["id"] if one not in taken]
            if len(ids) > 1:
                groups[f"alike {number}"] = ids
    return groups


def describe_groups(
    query: CircuitQuery, shown: Circuit, groups: Mapping[str, Sequence[str]], rows: Mapping[str, NodeRow]
) -> list[dict[str, Any]]:
    """Each group with its members, what it does, and what it reads and who reads it, in shares of all that is read.

    ``rows``: of the page's table, by the nodes' ids.
    """
    nodes = shown.nodes.set_index("id", drop=False)
    edges = carried(shown)
    edges = edges[~edges["source"].isin([PRUNED])]
    signed = edges.assign(signed=edges["share"].where(edges["weight"] >= 0, -edges["share"]))

    def largest(end: str, other: str, own: str) -> list[tuple[NodeRow, float]]:
        shares = signed[signed[end] == own].groupby(other, sort=False)["signed"].sum()
        order = shares.abs().sort_values(ascending=False, kind="stable").index[:READ]
        return [(rows[one], float(shares[one])) for one in order]

    described = [
        {
            "name": name,
            "ids": ids,
            "influence": float(nodes.at[own, "influence"]),
            "score": float(nodes.at[own, "score"]),
            "reads": largest("target", "source", own),
            "read_by": largest("source", "target", own),
            "own": name in query.groups,
            "ungroup": query.regrouped({n: i for n, i in query.groups.items() if n != name}),
            "remove": query.without(ids),
        }
        for name, ids in groups.items()
        if (own := group_id(name))
    ]
    return sorted(described, key=lambda row: -row["influence"])


def export_circuit(graph: Circuit, groups: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The graph as circuit-tracer's page and Neuronpedia read it, its groups as supernodes."""
    rows = [(number, one) for number, ids in enumerate(groups.values()) for one in ids]
    return graph.export(supernodes=pd.DataFrame(rows, columns=["supernode", "id"]) if rows else None)
