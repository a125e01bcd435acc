"""The page of a circuit: its nodes by layer and position, its edges, and what every node read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2.utils import htmlsafe_json_dumps

from ..core.errors import InputError
from ..core.files import check_destination, write_whole
from ..core.progress import Progress
from ..core.token_text import visible
from ..core.types import Count, checked
from ..models.model import Model
from ..prompts.circuits import ANSWER, GROUP, PRUNED, Circuit
from ..scanning.neuron import Neuron
from ..scanning.store import Store
from .circuit_drawing import LEVELS, drawing
from .links import Links, nowhere, to_cards, to_site
from .neuron_pages import neuron_section, reporting, shaded
from .prompts import BASIS, Chip, with_tokens
from .rendering import render

DRAWN = 200  # edges that the page begins with
READ = 3  # what a row of the table names of a node's inputs
EXAMPLES = 5  # of a card
DIGITS = 7  # of an edge's weight
TARGET = 24  # characters of the answer in the drawing
NAMES = {"attention": "attention {layer}", "head": "head {layer}.{head}", "bias": "biases of layer {layer}",
         "firing": "{layer}.{neuron}", "position": "position embedding"}  # fmt: skip

TOLD = {"gate": "gate", "linear": "linear part", "pre": "pre-activation", "logit": "logit", "write": "what it writes"}
"""Inputs in words, in the order in which panels show them."""


@dataclass(frozen=True)
class Sum:
    """What the edges into one input of a node sum to, and what it read."""

    input: str
    sum: float
    read: float


@dataclass(frozen=True)
class NodeRow:
    """A node in the table. ``node``: its row of ``Circuit.nodes``; ``reads``: its largest edges, as (index, weight)."""

    node: Any
    name: str
    chip: Chip | None
    sums: tuple[Sum, ...]
    reads: tuple[tuple[int, float], ...]
    promoted: tuple[Chip, ...]

    @property
    def title(self) -> str:
        """All of it in a few words."""
        parts = [f"neuron {self.name}" if self.node.kind == "firing" else self.name]
        if self.chip is not None:
            parts.append(f"at position {self.node.position} {self.chip.token!r}")
        if self.node.coefficient is not None:
            parts.append(f"coefficient {self.node.coefficient:+.3f}")
        return ", ".join([*parts, f"influence {self.node.influence:.2%}"])


@checked
def circuit(
    circuit: Circuit,
    out: str | Path = "circuit.html",
    store: Store | None = None,
    model: Model | None = None,
    *,
    cards: Count = 12,
    tokens: Count = 6,
    shade: bool | None = None,
    site: str | Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write a circuit as one HTML file that needs nothing but a browser.

    Nodes stand by layer and position; those that are pointed at, or pinned, show what they read and who reads them.
    A table has every node, also without scripts. Its script is its own, and its policy admits no other and no network.

    Args:
        circuit: from :func:`ffnmem.circuit`.
        out: the file to write, in a folder that exists; replaced only once the new one is complete.
        store: a scan of the same model, for cards of the neurons of most influence, with their examples.
        model: the same model, for the tokens that these neurons promote.
        cards: of how many neurons.
        tokens: how many promoted tokens to show for each.
        site: the folder of a site of the model's neurons (:func:`ffnmem.pages.site`), to which the names of neurons
            without a card here lead.
        shade, progress: as :func:`ffnmem.pages.neurons`.

    Returns: The path written.

    Raises:
        FileError: ``out`` is a folder, its folder is missing, or it cannot be written; a damaged store; no site.
        InputError: a store, a model or a site other than the circuit's, or ``shade=True`` without a store.
        ModelError: ``shade=True`` without the store's model.
    """
    path = check_destination(out)
    for given in (store, model):
        check_same(circuit, given)
    if shade and store is None:
        raise InputError("tokens are shaded in examples, which only a store has: give store=")
    others = to_site(site, path, circuit.provenance.fingerprint)
    found, unshaded = ([], "") if store is None else cards_of(circuit, store, cards, shade, progress)
    write_whole(path, circuit_html(circuit, found, unshaded, model, cards, tokens, others))
    return path


def check_same(circuit: Circuit, given: Store | Model | None) -> None:
    """Raise InputError for a store or a model that the circuit is not of."""
    if given is not None and given.fingerprint != circuit.provenance.fingerprint:
        what, name = ("store", given.model) if isinstance(given, Store) else ("model", given.name)
        raise InputError(
            f"the circuit is of {circuit.provenance.model} {circuit.provenance.fingerprint}, the {what} of {name} "
            f"{given.fingerprint}"
        )


def strongest(circuit: Circuit, count: int) -> pd.DataFrame:
    """The firings of the ``count`` neurons of most influence."""
    places = circuit.firings[["layer", "neuron"]]
    first = places.drop_duplicates().head(count)
    return circuit.firings[pd.MultiIndex.from_frame(places).isin(pd.MultiIndex.from_frame(first))]


def cards_of(
    circuit: Circuit, store: Store, count: int, shade: bool | None, progress: Progress | None
) -> tuple[list[Neuron], str]:
    """Cards of the neurons of most influence, and why their tokens are not shaded, where they might have been."""
    firings = strongest(circuit, count)
    places = list(dict.fromkeys(zip(firings["layer"].astype(int), firings["neuron"].astype(int), strict=True)))
    read = (store.neuron(*place, kind="top", k=EXAMPLES) for place in places)
    return shaded(store, list(reporting(read, len(places), progress)), EXAMPLES, shade, progress)


def circuit_html(
    circuit: Circuit,
    neurons: Sequence[Neuron],
    unshaded: str,
    model: Model | None,
    count: int,
    tokens: int,
    others: Links = nowhere,
) -> str:
    """The page of a circuit."""
    return render(
        "circuit.html",
        scripts=("circuit.js",),
        **circuit_values(circuit, promoted_tokens(circuit, neurons, model, count, tokens)),
        sections=[neuron_section(one, EXAMPLES, "" if i else unshaded) for i, one in enumerate(neurons)],
        links=to_cards(((one.layer, one.neuron) for one in neurons), others),
        provenance=circuit.provenance.with_settings(**({} if model is None else {"basis": BASIS})).to_dict(),
    )


def circuit_values(circuit: Circuit, promoted: Mapping[str, tuple[Chip, ...]]) -> dict[str, Any]:
    """What the template says of a circuit: its drawing, its table, and what its script is given.

    Nobody can take away a firing on a page that stands alone: the explorer fills in ``removed``, ``removals`` (where a
    node is taken away, by its id) and ``picked`` (by a node's id, the form that its checkbox belongs to).

    Args:
        promoted: by node, what it promotes.
    """
    nodes = plain_rows(circuit.nodes)
    edges = carried(circuit)
    index = {node.id: i for i, node in enumerate(nodes)}
    inputs = sorted(set(edges["input"]), key=list(TOLD).index)
    chips = [token_chip(circuit, i) for i in range(len(circuit.tokens))]
    compact = [
        (index[edge.source], index[edge.target], inputs.index(edge.input), float(f"{edge.weight:.{DIGITS}g}"))
        for edge in edges.itertuples()
    ]
    drawn = drawing(nodes, [chip.token for chip in chips], circuit.position)
    first = [(a, b, weight) for a, b, _, weight in compact if nodes[a].kind != PRUNED][:DRAWN]
    data = {
        "at": [[place.x, place.y] for place in drawn.places],
        "pruned": index[PRUNED],
        "inputs": [TOLD[name] for name in inputs],
        "levels": LEVELS,
        "edges": compact,
    }
    return {
        "circuit": circuit,
        "target": visible(circuit.target, TARGET),
        "rows": node_rows(circuit, nodes, promoted),
        "gated": circuit.nodes["linear"].notna().any(),
        "prompt": chips,
        "drawing": drawn,
        "curves": drawn.curves(first),
        "levels": LEVELS,
        "n_drawn": len(first),
        "n_edges": sum(nodes[a].kind != PRUNED for a, *_ in compact),
        "removed": (),
        "removals": {},
        "picked": {},
        "data": htmlsafe_json_dumps(data, separators=(",", ":"), allow_nan=False),
    }


def plain_rows(nodes: pd.DataFrame) -> list[Any]:
    """The rows of ``Circuit.nodes`` with None where something is missing."""
    return list(nodes.astype(object).where(nodes.notna(), None).itertuples())


def carried(circuit: Circuit) -> pd.DataFrame:
    """The edges by the influence that each carries to the answer, largest first."""
    influence = circuit.nodes.set_index("id")["influence"]
    through = circuit.edges["share"] * circuit.edges["target"].map(influence)
    return circuit.edges.loc[through.sort_values(ascending=False, kind="stable").index]


def node_rows(circuit: Circuit, nodes: Sequence[Any], promoted: Mapping[str, tuple[Chip, ...]]) -> list[NodeRow]:
    """Every node in the order of the frame."""
    index = {node.id: i for i, node in enumerate(nodes)}
    sums: dict[str, list[Sum]] = {}
    for row in circuit.sums().itertuples():
        sums.setdefault(row.target, []).append(Sum(TOLD[row.input], row.sum, row.read))
    reads: dict[str, list[tuple[int, float]]] = {}
    by_size = circuit.edges["weight"].abs().sort_values(ascending=False, kind="stable").index
    for edge in circuit.edges.loc[by_size].itertuples():
        found = reads.setdefault(edge.target, [])
        if len(found) < READ and edge.source != PRUNED and index[edge.source] not in [i for i, _ in found]:
            found.append((index[edge.source], edge.weight))
    return [
        NodeRow(
            node=node,
            name=name_of(node),
            chip=None
            if node.position is None or node.kind in (ANSWER, GROUP)
            else token_chip(circuit, int(node.position)),
            sums=tuple(sums.get(node.id, [])),
            reads=tuple(reads.get(node.id, [])),
            promoted=promoted.get(node.id, ()),
        )
        for node in nodes
    ]


def name_of(node: Any) -> str:
    """What a node is called on the page."""
    if node.kind == "bias" and node.layer is None:
        return "biases of what reads"
    if node.kind == PRUNED:
        return "all that was pruned"
    if node.kind == GROUP:
        return str(node.token)
    return NAMES.get(node.kind, node.kind).format(**node._asdict())


def token_chip(circuit: Circuit, position: int) -> Chip:
    special = "special" if position == 0 and circuit.starts_with_bos else ""
    return Chip(circuit.tokens[position], special, f"position {position}")


def promoted_tokens(
    circuit: Circuit, neurons: Sequence[Neuron], model: Model | None, count: int, tokens: int
) -> dict[str, tuple[Chip, ...]]:
    """By id, what the firings of most influence promote, as they fired: by the model, else as a store says."""
    firings = strongest(circuit, count)
    if model is not None:
        named = [one for one in (circuit.target_id, circuit.foil_id) if one is not None]
        table = with_tokens(model, firings.astype({"layer": int, "neuron": int}), tokens, named)
        return {row.id: tuple(row.promoted) for row in table.itertuples()}
    by_name = {
        one.name: [tuple(Chip(text, sign) for text in one.tokens(sign)) for sign in ("suppressed", "promoted")]
        for one in neurons
    }
    return {
        row.id: by_name[name][row.coefficient >= 0][:tokens]
        for row in firings.itertuples()
        if (name := f"{row.layer}.{row.neuron}") in by_name
    }
