"""The memory view: all that is known of one neuron, with a store or without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from markupsafe import Markup
from torch import Tensor

from ..core.errors import FfnmemError, InputError, ModelError
from ..core.pictures import picture
from ..core.progress import Progress
from ..core.types import JACOBIAN, LOGIT
from ..neurons.concepts import meanings
from ..neurons.role_assignment import NONE, known_roles, roles
from ..neurons.wiring import VirtualWeights, Wires, virtual_weights
from ..pages.neuron_cards import Card, card
from ..pages.neuron_pages import page_html
from ..pages.prompts import Chip
from ..scanning.neuron import Neuron
from ..vocabulary.lenses import load_lens
from ..vocabulary.projections import project, promoted_tokens
from ..vocabulary.vectors import sides_of
from .queries import Query, address
from .rendering import csv_of, fragment, html_of, json_of, of_sheet, png_of, saved_page
from .views import Explorer, View

PATH = "/memory"
TOKENS = 12
NEIGHBOURS = 6
EXAMPLES = 6  # of each kind: those whose tokens are shaded take the model a while
WIRES = 12
PARTS = ("", "wires", "meanings", "role")
"""What is computed only where it is asked for."""
ROLES_AT_ONCE = 10**10
"""Multiplications (memories of a layer × tokens × width) up to which roles need not be asked for."""

SAID = {
    ("value", "promoted", LOGIT): "its value promotes",
    ("value", "suppressed", LOGIT): "and suppresses",
    ("value", "promoted", JACOBIAN): "promotes, through the Jacobian lens",
    ("value", "suppressed", JACOBIAN): "and suppresses there",
    ("key", "promoted", LOGIT): "its key reads",
    ("key", "suppressed", LOGIT): "and reads against",
    ("gate", "promoted", LOGIT): "its gate opens for",
    ("gate", "suppressed", LOGIT): "and closes for",
}


def memory_form(explorer: Explorer, query: Query) -> Markup:
    """Which one, and those beside it."""
    try:
        layer, neuron = read_place(explorer, query)
    except FfnmemError:
        return fragment("memory_form.html", query=query, near={}, model=explorer.model)
    sizes = [ffn.d_mlp for ffn in explorer.model.ffn]
    beside = {"prev": (layer, neuron - 1), "next": (layer, neuron + 1), "down": (layer - 1, neuron)}
    beside["up"] = (layer + 1, neuron)
    near = {
        name: f"{at[0]}.{at[1]}"
        for name, at in beside.items()
        if 0 <= at[0] < explorer.model.n_layers and 0 <= at[1] < sizes[at[0]]
    }
    return fragment("memory_form.html", query=query, near=near, model=explorer.model)


def moved(query: Query) -> str | None:
    """The address that has the neuron in its path."""
    at = query.neuron()
    return None if at is None else query.address(f"{PATH}/{at[0]}.{at[1]}", neuron=None)


def read_place(explorer: Explorer, query: Query) -> tuple[int, int]:
    """The neuron that is asked for; raises InputError, OutOfRangeError."""
    at = query.neuron()
    if at is None:
        raise InputError("no memory is named: write LAYER.NEURON, such as 3.17")
    return explorer.model.layer(at[0]), explorer.model.neuron(*at)


def memory_view(explorer: Explorer, query: Query, progress: Progress) -> View:
    """What it writes and reads in tokens, where it fires, its role, its neighbours, and its wires on request."""
    if "neuron" not in query:
        return View("Memory", fragment("memory_start.html", model=explorer.model))
    layer, neuron = read_place(explorer, query)
    part = query.choice("part", PARTS, "")
    model, name = explorer.model, f"{layer}.{neuron}"
    projected = explorer.cached(("projected", layer, neuron), lambda: projection(explorer, layer, neuron))
    told = [
        (words, chips(projected, side, sign, lens))
        for (side, sign, lens), words in SAID.items()
        if ((projected["side"] == side) & (projected["lens"] == lens)).any()
    ]
    of_store, lack = None, ""
    if explorer.store is not None:
        of_store, lack = explorer.cached(("card", layer, neuron), lambda: store_card(explorer, layer, neuron, progress))
    work = model.d_mlp * model.d_vocab * model.d_model
    asked = part == "role" or work <= ROLES_AT_ONCE or explorer.made.get(("roles", layer)) is not None
    role = role_of(explorer, layer, neuron, progress) if asked else None
    wires = None
    if part == "wires":
        wires = explorer.cached(
            ("wires", layer, neuron), lambda: virtual_weights(model, layer, neuron, k=WIRES, progress=progress)
        )
    found = None
    if part == "meanings" and explorer.store is not None:
        store = explorer.store
        found = explorer.cached(
            ("meanings", layer, neuron),
            lambda: meanings(store, layer, neuron, model, k=3, progress=progress).sheet(),
        )
    values = {
        "name": name,
        "told": told,
        "card": of_store,
        "lack": lack,
        "store": explorer.store,
        "model": model,
        "role": role,
        "neighbours": explorer.cached(("neighbours", layer, neuron), lambda: neighbours(explorer, layer, neuron)),
        "wires": None if wires is None else [side.to_dict("records") for side in (wires.incoming, wires.outgoing)],
        "compared": None if wires is None else wires.compared,
        "meanings": None if found is None else of_sheet(found),
        "address": address,
    }
    body = fragment("memory.html", **values)
    promoted, suppressed = told[0][1], told[1][1]
    return View(
        title=f"Memory {name}",
        body=body,
        conclusion=fragment(
            "memory_sentence.html", promoted=promoted[:4], suppressed=suppressed[:3], card=of_store, role=role
        ),
        downloads={
            "csv": csv_of(lambda: projected, f"memory-{name}"),
            "png": png_of(lambda: drawn(explorer, of_store, wires, projected, name), f"memory-{name}"),
            "html": html_of(lambda: page_of(explorer, of_store, name, body), f"memory-{name}"),
            "json": json_of(
                lambda: {
                    "layer": layer,
                    "neuron": neuron,
                    "tokens": projected.to_dict("records"),
                    "role": role,
                    **({} if wires is None else {"wires": wires.to_dict()}),
                    **({} if of_store is None else {"store": neuron_of(of_store).to_dict()}),
                    "provenance": model.provenance().to_dict(),
                },
                f"memory-{name}",
            ),
        },
    )


def projection(explorer: Explorer, layer: int, neuron: int) -> pd.DataFrame:
    """The tokens that it writes and reads, of its value through the Jacobian lens too where there is one."""
    model = explorer.model
    frames = [project(model, layer, neuron, k=TOKENS)]
    try:
        load_lens(model, JACOBIAN)
    except (InputError, ModelError):  # none of these weights: the page shows the logit lens alone
        pass
    else:
        frames.append(project(model, layer, neuron, k=TOKENS, side="value", lens=JACOBIAN))
    return pd.concat(frames, ignore_index=True)


def chips(projected: pd.DataFrame, side: str, sign: str, lens: str) -> list[Chip]:
    """Tokens of one side, sign and lens, best first."""
    asked = (projected["side"] == side) & (projected["sign"] == sign) & (projected["lens"] == lens)
    return [Chip(row.token, sign, f"score {row.score:+.3f}") for row in projected[asked].itertuples()]


def store_card(explorer: Explorer, layer: int, neuron: int, progress: Progress) -> tuple[Card, str]:
    """What the store knows of it, its examples shaded; or unshaded, and why."""
    store = explorer.store
    assert store is not None
    one: Neuron = store.neuron(layer, neuron)
    try:
        return card(store.shaded([one], EXAMPLES, progress=progress)[0], EXAMPLES), ""
    except ModelError as error:
        return card(one, EXAMPLES), f"Tokens are not shaded: {error}."


def neuron_of(found: Card) -> Neuron:
    """The neuron of :func:`store_card`."""
    assert isinstance(found.neuron, Neuron)
    return found.neuron


def role_of(explorer: Explorer, layer: int, neuron: int, progress: Progress) -> dict[str, Any]:
    """The roles that its weights give it, the first one first."""
    frame = explorer.cached(("roles", layer), lambda: roles(explorer.model, layer=layer, progress=progress))
    played = frame.iloc[neuron]
    every = [role for role in known_roles(frame) if bool(played[role.column])]
    return {
        "name": "" if played["role"] == NONE else str(played["role"]),
        "all": [(role.name, role.statistic.replace("_", " "), float(played[role.statistic])) for role in every],
        "numbers": [
            ("kurtosis of its cosines with the vocabulary", float(played["cosine_kurtosis"])),
            ("cosine of key and value", float(played["io_cosine"])),
        ],
    }


@dataclass(frozen=True)
class Neighbour:
    """Another memory whose vector lies near. ``cosine``: as norms in front and behind leave the two."""

    layer: int
    neuron: int
    cosine: float
    tokens: Sequence[str]


def neighbours(explorer: Explorer, layer: int, neuron: int) -> list[tuple[str, list[Neighbour]]]:
    """The memories of all layers whose keys (gates) and whose values point most nearly the same or the opposite way,
    as directions of the residual stream: a key through the gain of the norm in front of it."""
    wires = Wires(explorer.model, None)
    found = []
    for side in sides_of(explorer.model):
        near = nearest(wires, side, layer, neuron)
        tokens = promoted_tokens(explorer.model, pd.DataFrame(near, columns=["layer", "neuron", "cosine"]), 4)
        found.append((side, [Neighbour(*one, tokens[one[0], one[1]]) for one in near]))
    return found


def nearest(wires: Wires, side: str, layer: int, neuron: int) -> list[tuple[int, int, float]]:
    """The neurons with the largest \\|cosine\\|, this one left out."""
    one = next(unit for at, unit in units(wires, side, [layer]))[neuron]
    best: list[tuple[int, int, float]] = []
    for at, rows in units(wires, side, range(wires.model.n_layers)):
        cosines = rows @ one
        if at == layer:
            cosines[neuron] = 0.0
        top = cosines.abs().topk(min(NEIGHBOURS, len(cosines))).indices.tolist()
        best += [(at, other, float(cosines[other])) for other in top]
    return sorted(best, key=lambda found: -abs(found[2]))[:NEIGHBOURS]


def units(wires: Wires, side: str, layers: Sequence[int]) -> Iterator[tuple[int, Float[Tensor, "d_mlp d_model"]]]:
    """What the neurons of layers write, or read by one side, at length 1."""
    with torch.no_grad():
        for at in layers:
            rows = wires.writes(at) if side == "value" else wires.reads(at, side)
            yield at, torch.nn.functional.normalize(rows.float(), dim=-1)


def drawn(explorer: Explorer, of_store: Card | None, wires: VirtualWeights | None, projected: Any, name: str) -> Any:
    """Its wires where these are shown; its histogram where there is a store; else its tokens."""
    if wires is not None and len(wires.edges):
        return wires.plot()
    if of_store is not None:
        return picture("histogram")(neuron_of(of_store))
    return picture("tokens")(projected, title=f"Tokens of {name} of {explorer.model.name}")


def page_of(explorer: Explorer, of_store: Card | None, name: str, body: Markup) -> str:
    """Its page of a report where there is a store; else what is shown here."""
    if of_store is not None and explorer.store is not None:
        return page_html(explorer.store, [of_store])
    return saved_page(f"Memory {name} of {explorer.model.name}", body, explorer.model.provenance().to_dict())
