"""The view of a circuit: the graph behind an answer, its nodes pinned, grouped, pruned and taken away."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from markupsafe import Markup, escape

from ..core.defaults import EDGE_THRESHOLD, NODE_THRESHOLD, SUPERNODE_SIMILARITY
from ..core.errors import InputError, counted, quoted
from ..core.pictures import picture
from ..core.progress import Progress
from ..interventions.intervening import compare_predictions, intervene
from ..models.residual import model_logits
from ..pages.circuits import NodeRow, carried, circuit_html, circuit_values, promoted_tokens
from ..pages.prompts import Chip
from ..pages.rendering import script_of
from ..prompts.captures import Capture, capture
from ..prompts.circuit_edges import Firing
from ..prompts.circuits import PRUNED, Circuit, circuit
from ..prompts.condensing import GROUPED, condensed, id_of
from ..prompts.minimal import minimal_circuit
from ..prompts.sufficiency import Faithfulness, faithfulness
from .prompt_view import example
from .queries import LONGEST, Query, address
from .rendering import asset, csv_of, fragment, html_of, json_of, png_of
from .views import Explorer, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PATH = "/circuit"
LOOKED_INTO, MOST = 60, 500  # firings, unless somebody asks for others; and at most
NAMED, TOKENS = 12, 6  # neurons whose tokens are shown, and how many
PREDICTED = 6  # rows of what the model says before and after
IDS, GROUPS = 400, 24  # of an address, at most
LONGEST_NAME = 40
READ = 3  # what a group's row names of what it reads, and of who reads it
DRAWN = 40  # firings of a picture
FIELDS = {
    "firings": "firings looked into",
    "minimal": "the fewest that keep",
    "nodes": "keep of the influence",
    "edges": "then of the edges’",
    "alike": "group those alike by",
}
"""What the form calls its numbers."""
ATTENTION = ("paths", "layers", "heads")
ACTIONS = ("pin", "remove", "prune", "group", "back")
QUESTION = ("text", "target", "foil", "at")
SETTINGS = ("firings", "minimal", "attention", "nodes", "edges", "alike")
NODE = re.compile(r"[a-z0-9.]+(@[0-9]+)?", re.ASCII)
FIRING = re.compile(r"([0-9]{1,6})\.([0-9]{1,9})(?:@([0-9]{1,6}))?", re.ASCII)


# -- what an address asks for ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """What an address asks of a circuit.

    Attributes:
        firings: how many are looked into. minimal: in place of those, the smallest set found that keeps this share.
        attention: what attention is. nodes, edges: what is pruned. alike: of supernodes, or None for none.
        pinned, pruned: ids of nodes. groups: by name, ids of nodes.
        removed: (layer, neuron, position), None for every position.
    """

    text: str
    target: str | int | None
    foil: str | int | None
    position: int
    firings: int
    minimal: float | None
    attention: str
    nodes: float
    edges: float
    alike: float | None
    pinned: tuple[str, ...]
    pruned: tuple[str, ...]
    groups: Mapping[str, tuple[str, ...]]
    removed: tuple[tuple[int, int, int | None], ...]

    @classmethod
    def of(cls, query: Query) -> Asked:
        """Raises InputError."""

        def share(name: str, default: float) -> float:
            return query.number(name, default, least=0.001, most=1, what=quoted(FIELDS[name]))

        return cls(
            text=query.needed("text", what="the text"),
            target=query.token("target"),
            foil=query.token("foil"),
            position=query.whole("at", -1, least=-LONGEST, most=LONGEST),
            firings=query.whole("firings", LOOKED_INTO, least=1, most=MOST, what=quoted(FIELDS["firings"])),
            minimal=share("minimal", 0.9) if "minimal" in query else None,
            attention=query.choice("attention", ATTENTION, ATTENTION[0]),
            nodes=share("nodes", NODE_THRESHOLD),
            edges=share("edges", EDGE_THRESHOLD),
            alike=share("alike", SUPERNODE_SIMILARITY) if "alike" in query else None,
            pinned=ids_of(query, "pin"),
            pruned=ids_of(query, "prune"),
            groups=groups_of(query),
            removed=firings_of(query.text("remove")),
        )

    @property
    def graph_key(self) -> tuple[Any, ...]:
        """All that the graph depends on, as the library makes it."""
        return (
            self.text, self.target, self.foil, self.position, self.firings, self.minimal, self.attention, self.nodes,
            self.edges,
        )  # fmt: skip


def ids_of(query: Query, name: str) -> tuple[str, ...]:
    """Ids of nodes, with commas between them."""
    found = tuple(dict.fromkeys(one.strip() for typed in query.all(name) for one in typed.split(",") if one.strip()))
    strange = next((one for one in found if NODE.fullmatch(one) is None), None)
    if strange is not None:
        raise InputError(f"{name} takes nodes such as 3.17@5, with commas between them, not {quoted(strange)}")
    if len(found) > IDS:
        raise InputError(f"{name} names {counted(len(found), 'node')}, and at most {IDS} are read")
    return found


def groups_of(query: Query) -> dict[str, tuple[str, ...]]:
    """Groups, each as ``name:3.17@5,4.2@5``."""
    typed = query.all("group")
    if len(typed) > GROUPS:
        raise InputError(f"{counted(len(typed), 'group')} are too many: {GROUPS} are read")
    found: dict[str, tuple[str, ...]] = {}
    for one in typed:
        name, colon, ids = one.rpartition(":")
        name = name.strip()
        if not colon or not name or len(name) > LONGEST_NAME:
            raise InputError(
                f"a group is a name of 1 to {LONGEST_NAME} characters and its nodes, such as city:3.17@5,4.2@5, "
                f"not {quoted(one)}"
            )
        if name in found:
            raise InputError(f"two groups have the name {quoted(name)}")
        found[name] = ids_of(Query([("group", ids)]), "group")
    return found


def firings_of(typed: str) -> tuple[tuple[int, int, int | None], ...]:
    """Firings as ``3.17@5``, or ``3.17`` for a neuron wherever it fires."""
    found: dict[tuple[int, int, int | None], None] = {}
    for one in filter(None, (part.strip() for part in typed.replace(";", ",").split(","))):
        matched = FIRING.fullmatch(one)
        if matched is None:
            raise InputError(
                f"remove takes firings such as 3.17@5 (layer, neuron, position), or 3.17 for every position, "
                f"not {quoted(one)}"
            )
        layer, neuron, position = matched.groups()
        found[int(layer), int(neuron), None if position is None else int(position)] = None
    if len(found) > IDS:
        raise InputError(f"remove names {counted(len(found), 'firing')}, and at most {IDS} are read")
    return tuple(found)


def told(firings: Sequence[tuple[int, int, int | None]]) -> str:
    """Firings as an address has them."""
    return ",".join(f"{layer}.{neuron}" + ("" if at is None else f"@{at}") for layer, neuron, at in firings)


def address_of(query: Query, asked: Asked, **changes: Any) -> str:
    """The view's address with some of what is pinned, pruned, grouped or removed changed."""
    found = replace(asked, **changes)
    return Query(
        [
            *((name, value) for name, value in query.pairs if name in (*QUESTION, *SETTINGS)),
            ("pin", ",".join(found.pinned)),
            ("prune", ",".join(found.pruned)),
            *(("group", f"{name}:{','.join(ids)}") for name, ids in found.groups.items()),
            ("remove", told(found.removed)),
        ]
    ).address(PATH)


def circuit_moved(query: Query) -> str | None:
    """Where a form that does something with ticked nodes leads: to the address that says what was done.

    Raises: InputError: no node is ticked, or what cannot be done with them.
    """
    if "do" not in query:
        return None
    asked, what = Asked.of(query), query.choice("do", ACTIONS, ACTIONS[0])
    picked = ids_of(query, "pick")
    if not picked:
        raise InputError(f"tick the nodes to {what} in the table first")
    if what == "pin":
        return address_of(query, asked, pinned=tuple(dict.fromkeys((*asked.pinned, *picked))))
    if what == "group":
        name = query.text("name", most=LONGEST_NAME, what="the group's name").strip()
        name = name or next(free for i in range(1, GROUPS + 2) if (free := f"group {i}") not in asked.groups)
        others = {n: tuple(one for one in ids if one not in picked) for n, ids in asked.groups.items()}
        others[name] = tuple(dict.fromkeys((*others.get(name, ()), *picked)))
        return address_of(query, asked, groups={n: ids for n, ids in others.items() if ids})
    if what == "prune":
        return address_of(query, asked, pruned=tuple(dict.fromkeys((*asked.pruned, *picked))))
    firings = firings_of(",".join(one for one in picked if FIRING.fullmatch(one)))
    if not firings:
        raise InputError("only firings can be removed, and none of the ticked nodes is one")
    if what == "back":
        return address_of(query, asked, removed=tuple(one for one in asked.removed if one not in firings))
    return address_of(query, asked, removed=tuple(dict.fromkeys((*asked.removed, *firings))))


# -- what the answer becomes without some firings ---------------------------------------------------------------------


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


def without(before: Capture, found: Circuit, firings: Sequence[Firing], alone: Faithfulness | None) -> Without:
    """The prompt run again with some firings at 0: exactly, whatever follows from it."""
    model = before.model
    by_position: dict[int, dict[tuple[int, int], float]] = {}
    for one in firings:
        by_position.setdefault(one.position, {})[one.layer, one.neuron] = 0.0
    with ExitStack() as blocks:
        for position, neurons in by_position.items():
            blocks.enter_context(intervene(model, neurons, positions=[position]))
        after = capture(model, before.tokens[0].tolist())
    assert after.residual is not None
    target = torch.tensor([found.target_id], device=after.tokens.device)
    final = after.residual.final_out[0, [found.position]]
    logit = float(model_logits(model, final, target, found.foil_id))
    probabilities = after.logits_at(0, found.position).double().softmax(-1)
    return Without(
        logit=logit,
        probability=float(probabilities[found.target_id]),
        predictions=compare_predictions(before, after, found.position, PREDICTED),
        left=None if alone is None else (logit - alone.without) / (alone.logit - alone.without),
    )


def placed(asked: Asked, found: Circuit, explorer: Explorer) -> list[Firing]:
    """The firings that are taken away, each once; raises OutOfRangeError for one that the prompt does not have."""
    model = explorer.model
    names: dict[Firing, None] = {}
    for layer, neuron, position in asked.removed:
        layer, neuron = model.layer(layer), model.neuron(layer, neuron)
        for at in range(found.position + 1) if position is None else (position,):
            if at > found.position:
                raise InputError(
                    f"there is no firing {layer}.{neuron}@{at}: the prompt has positions 0 to {found.position}"
                )
            names[Firing(layer, neuron, at)] = None
    return list(names)


# -- the view --------------------------------------------------------------------------------------------------------


def circuit_form(explorer: Explorer, query: Query) -> Markup:
    """The question, and below it what is looked into and pruned."""
    return fragment(
        "circuit_form.html",
        query=query,
        settings=hidden(query, SETTINGS),
        question=hidden(query, (*QUESTION, "pin", "prune", "group", "remove")),
        attentions=ATTENTION,
        fields=FIELDS,
        defaults={"firings": LOOKED_INTO, "nodes": NODE_THRESHOLD, "edges": EDGE_THRESHOLD},
    )


def hidden(query: Query, names: Collection[str]) -> list[tuple[str, Markup]]:
    """Parameters as they are, whatever is in them, for a form to carry along."""
    return [(name, escape(value)) for name, value in query.pairs if name in names]


def circuit_view(explorer: Explorer, query: Query, progress: Progress) -> View:
    """The graph behind an answer, what stands in groups, and what the answer becomes without some of it."""
    if "text" not in query:
        text = example(explorer)
        return View("Circuit", fragment("circuit_begin.html", text=text, here=address(PATH, text=text)))
    asked = Asked.of(query)
    before = explorer.capture(asked.text)
    whole = explorer.cached(("circuit", *asked.graph_key), lambda: made(before, asked, progress))
    found = whole.subgraph(set(whole.nodes["id"]) - set(asked.pruned) - {PRUNED}) if asked.pruned else whole
    firings = placed(asked, found, explorer)
    alone = kept_alone(explorer, asked, before, found, ())
    left = after = None
    if firings:
        by = None if alone is None else (alone.logit, alone.without)
        key = ("without", *asked.graph_key[:4], told(asked.removed), by)
        after = explorer.cached(key, lambda: without(before, found, firings, alone))
        left = kept_alone(explorer, asked, before, found, firings)
    removal = told(asked.removed) if len(asked.removed) == 1 else counted(len(firings), "firing")
    groups = groups_in(found, asked)
    shown = condensed(found, groups)
    model = explorer.model
    chips = explorer.cached(("promoted", *asked.graph_key), lambda: promoted_tokens(whole, [], model, NAMED, TOKENS))
    values = drawn(query, asked, shown, chips, [one.name for one in firings])
    body = fragment(
        "circuit_view.html",
        frame="fragment.html",
        **values,
        whole=whole,
        found=found,
        asked=asked,
        question=hidden(query, (*QUESTION, *SETTINGS)),
        state=[("pin", ",".join(asked.pinned)), ("prune", ",".join(asked.pruned)), ("remove", told(asked.removed)),
               *(("group", f"{name}:{','.join(ids)}") for name, ids in asked.groups.items())],
        groups=group_rows(query, asked, shown, groups, {row.node.id: row for row in values["rows"]}),
        took=[(told([one]), f"/memory/{one[0]}.{one[1]}", address_of(query, asked, removed=others(asked.removed, one)))
              for one in asked.removed],
        back=address_of(query, asked, removed=()),
        unpruned=address_of(query, asked, pruned=()),
        after=after,
        removal=removal,
        alone=share_of(alone),
        left=share_of(left),
        provenance=found.provenance.with_settings(basis="folded").to_dict(),
        links=to_memory,
        cards_shown=(),
        unshaded="",
    )  # fmt: skip
    name = "circuit"
    return View(
        title="The circuit behind an answer",
        notes=shortened(asked.target, found.target, asked.foil, found.foil),
        conclusion=fragment(
            "circuit_said.html",
            circuit=found,
            after=after,
            removed=removal,
            alone=share_of(alone),
            carries=alone is None or len(alone.carrying) > 0,
        ),
        body=body,
        downloads={
            "csv": csv_of(shown.to_frame, name),
            "png": png_of(lambda: picture_of(found), name),
            "html": html_of(lambda: circuit_html(found, [], "", model, NAMED, TOKENS), name),
            "json": json_of(lambda: exported(found, groups), name),
        },
        styles="\n".join((script_of("edit.css"), script_of("circuit.css"), asset("circuit_view.css"))),
        scripts="\n".join((script_of("circuit.js"), asset("circuit_view.js"))),
    )


def shortened(target: str | int | None, found: str, foil: str | int | None, other: str | None) -> tuple[str, ...]:
    """What is to be noted where a target or a foil that was asked for is several tokens."""
    return tuple(
        f"the {name} {quoted(asked)} is several tokens: its first one is explained"
        for name, asked, token in (("target", target, found), ("foil", foil, other))
        if isinstance(asked, str) and token is not None and token.strip() != asked.strip()
    )


def made(before: Capture, asked: Asked, progress: Progress) -> Circuit:
    """The circuit, as the library makes it."""
    more: dict[str, Any] = {"nodes": asked.firings}
    if asked.minimal is not None:
        more["firings"] = minimal_circuit(
            before,
            asked.target,
            asked.foil,
            position=asked.position,
            faithfulness=asked.minimal,
            first_token=True,
            progress=progress,
        )
        if len(more["firings"].firings) > MOST:
            count = len(more["firings"].firings)
            raise InputError(
                f"the smallest set found that keeps {asked.minimal:.0%} of the answer has {counted(count, 'firing')}, "
                f"too many to draw: ask for a smaller share"
            )
    return circuit(
        before, asked.target, asked.foil, asked.position, node_threshold=asked.nodes, edge_threshold=asked.edges,
        attention=asked.attention == "layers", heads=asked.attention == "heads", first_token=True, progress=progress,
        **more,
    )  # fmt: skip


def kept_alone(
    explorer: Explorer, asked: Asked, before: Capture, found: Circuit, left_out: Sequence[Firing]
) -> Faithfulness | None:
    """How much of the answer the graph's firings keep by themselves, without some; None where that has no answer."""
    gone = {one.name for one in left_out}
    firings = found.firings[~found.firings["id"].isin(gone)][["layer", "neuron", "position"]]
    if firings.empty:
        return None

    def run() -> Faithfulness | str:
        try:
            return faithfulness(before, found.target_id, found.foil_id, firings, position=found.position, random=0)
        except InputError as error:  # none of them could be left out, or firings do not make this answer
            return str(error)

    key = ("alone", *asked.graph_key, asked.pruned, tuple(sorted(gone)))
    result = explorer.cached(key, run)
    return None if isinstance(result, str) else result


def to_memory(layer: int, neuron: int) -> str:
    """The address of a neuron's view."""
    return f"/memory/{layer}.{neuron}"


def share_of(alone: Faithfulness | None) -> float | None:
    return None if alone is None else float(alone.curve["faithfulness"].iloc[0])


def others(firings: Sequence[Any], one: Any) -> tuple[Any, ...]:
    return tuple(other for other in firings if other != one)


def groups_in(found: Circuit, asked: Asked) -> dict[str, tuple[str, ...]]:
    """The groups of the address, as far as the graph has their nodes; then those of firings that are alike."""
    kinds = found.nodes.set_index("id")["kind"]
    can = set(kinds.index[kinds.isin(GROUPED)])
    groups = {name: tuple(one for one in ids if one in can) for name, ids in asked.groups.items()}
    groups = {name: ids for name, ids in groups.items() if ids}
    if asked.alike is not None:
        taken = {one for ids in groups.values() for one in ids}
        for number, members in found.supernodes(asked.alike).groupby("supernode"):
            ids = tuple(str(one) for one in members["id"] if one not in taken)
            if len(ids) > 1:
                groups[f"alike {number}"] = ids
    return groups


def drawn(
    query: Query, asked: Asked, shown: Circuit, chips: Mapping[str, tuple[Chip, ...]], gone: Sequence[str]
) -> dict[str, Any]:
    """What the page's template says of a circuit, with where its nodes lead."""
    firings = shown.nodes[shown.nodes["kind"] == "firing"]
    values = circuit_values(shown, chips, asked.pinned)
    removals = {
        str(one): address_of(query, asked, removed=tuple(dict.fromkeys((*asked.removed, *firings_of(str(one))))))
        for one in firings["id"]
        if one not in gone
    }
    picked = shown.nodes.loc[shown.nodes["kind"].isin(GROUPED), "id"]
    return {**values, "removals": removals, "removed": gone, "picked": dict.fromkeys(picked, "nodes-form")}


def group_rows(
    query: Query, asked: Asked, shown: Circuit, groups: Mapping[str, Sequence[str]], rows: Mapping[str, NodeRow]
) -> list[dict[str, Any]]:
    """Each group with its members, what it does, and what it reads and who reads it, in shares of all that is read.

    ``rows``: of the page's table, by the nodes' ids.
    """
    nodes = shown.nodes.set_index("id", drop=False)
    edges = carried(shown)
    edges = edges[~edges["source"].isin([PRUNED])]
    signed = edges.assign(signed=edges["share"].where(edges["weight"] >= 0, -edges["share"]))
    found = []
    for name, ids in groups.items():
        own = id_of(name)
        into = signed[signed["target"] == own].groupby("source", sort=False)["signed"].sum()
        out = signed[signed["source"] == own].groupby("target", sort=False)["signed"].sum()
        firings = firings_of(",".join(one for one in ids if FIRING.fullmatch(one)))
        found.append(
            {
                "name": name,
                "ids": ids,
                "influence": float(nodes.at[own, "influence"]),
                "score": float(nodes.at[own, "score"]),
                "reads": largest(into, rows),
                "read_by": largest(out, rows),
                "own": name in asked.groups,
                "ungroup": address_of(query, asked, groups={n: i for n, i in asked.groups.items() if n != name}),
                "remove": address_of(query, asked, removed=tuple(dict.fromkeys((*asked.removed, *firings))))
                if firings
                else "",
            }
        )
    return sorted(found, key=lambda row: -row["influence"])


def largest(shares: pd.Series, rows: Mapping[str, NodeRow]) -> list[tuple[NodeRow, float]]:
    """The largest of some signed shares, and of which nodes."""
    order = shares.abs().sort_values(ascending=False, kind="stable").index[:READ]
    return [(rows[one], float(shares[one])) for one in order]


def picture_of(found: Circuit) -> Figure:
    """The graph on a figure of its own, which nobody else holds."""
    drawn: Figure = picture("figure")(found, top=DRAWN)
    return drawn


def exported(found: Circuit, groups: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The graph as circuit-tracer's page and Neuronpedia read it, its groups as supernodes."""
    rows = [(number, one) for number, ids in enumerate(groups.values()) for one in ids]
    return found.export(supernodes=pd.DataFrame(rows, columns=["supernode", "id"]) if rows else None)
