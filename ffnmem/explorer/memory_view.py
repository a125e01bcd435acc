"""The memory view: all that is known of one neuron, with a store or without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import pandas as pd
import torch
from markupsafe import Markup

from ..core.errors import FfnmemError, InputError, ModelError
from ..core.neuron_names import read_neuron
from ..core.pictures import picture
from ..core.progress import Progress
from ..core.sheets import Facts, Sheet
from ..core.types import JACOBIAN, LOGIT
from ..neurons.concepts import meanings
from ..neurons.role_assignment import NONE, roles
from ..neurons.wiring import Wires, virtual_weights
from ..pages.prompts import Chip
from ..scanning.neuron import KEYS, Neuron
from ..scanning.neuron_sides import NEGATIVE
from ..scanning.store import Store
from ..vocabulary.lenses import load_lens
from ..vocabulary.projections import project_frame, promoted_tokens
from ..vocabulary.vectors import SIGNS, sides_of
from .queries import NeuronName, Query, form_field
from .rendering import fragment
from .views import Explorer, View, view

TOKENS = 12
NEIGHBOURS = 6
EXAMPLES = 6  # of each kind: those whose tokens are shaded take the model a while
WIRES = 12
ROLES_AT_ONCE = 10**10
"""Multiplications (memories of a layer × tokens × width) up to which roles need not be asked for."""

WORDS = {
    ("value", "promoted", LOGIT): "its value promotes",
    ("value", "suppressed", LOGIT): "and suppresses",
    ("value", "promoted", JACOBIAN): "promotes, through the Jacobian lens",
    ("value", "suppressed", JACOBIAN): "and suppresses there",
    ("key", "promoted", LOGIT): "its key reads",
    ("key", "suppressed", LOGIT): "is inhibited by",
    ("gate", "promoted", LOGIT): "its gate is raised by",
    ("gate", "suppressed", LOGIT): "and lowered by",
}


class MemoryQuery(Query):
    """A neuron. ``part``: what is computed only where it is asked for."""

    path: ClassVar[str] = "/memory"
    neuron: NeuronName = form_field("memory", hint="3.17", required=True)
    part: Literal["", "wires", "meanings", "role"] = ""


def beside_links(explorer: Explorer, typed: Mapping[str, Sequence[str]]) -> Markup:
    """Links to the memories beside the one that is shown."""
    model = explorer.model
    try:
        layer, neuron = read_neuron(typed["neuron"][-1].strip())
        layer, neuron = model.layer(layer), model.neuron(layer, neuron)
    except (KeyError, FfnmemError):
        return Markup("")
    beside = {("← previous", "prev"): (layer, neuron - 1), ("next →", "next"): (layer, neuron + 1),
              ("layer below", ""): (layer - 1, neuron), ("layer above", ""): (layer + 1, neuron)}  # fmt: skip
    sizes = dict(enumerate(ffn.d_mlp for ffn in model.ffn))
    near = [(*words, f"{at}.{n}") for words, (at, n) in beside.items() if 0 <= n < sizes.get(at, 0)]
    return fragment("memory_links.html", near=near)


@view("Memory", MemoryQuery, "the memory's numbers", buttons=[("Show", "", "")], links=beside_links)
def memory_page(explorer: Explorer, query: MemoryQuery, progress: Progress) -> View:
    """What it writes and reads in tokens, where it fires, its role, its neighbours, and its wires on request."""
    model, store = explorer.model, explorer.store
    if not query.neuron:
        return View("Memory", fragment("memory.html", start=True, model=model))
    layer, neuron = read_neuron(query.neuron)
    place = layer, neuron = model.layer(layer), model.neuron(layer, neuron)
    projected = explorer.cached(("projected", *place), lambda: project_neuron(explorer, *place))
    found = {key: list(some.itertuples()) for key, some in projected.groupby(["side", "sign", "lens"])}
    tokens = {
        words: [Chip(row.token, key[1], f"score {row.score:+.3f}") for row in found[key]]
        for key, words in WORDS.items()
        if key in found
    }
    stored, unshaded = None, ""
    if store is not None:
        stored, unshaded = explorer.cached(("stored", *place), lambda: read_stored(store, *place, progress))
    work = model.ffn[layer].d_mlp * model.d_vocab * model.d_model
    at_once = query.part == "role" or work <= ROLES_AT_ONCE or explorer.made.get(("roles", layer)) is not None
    role = role_of(explorer, *place, progress) if at_once else None
    wires = groups = None
    if query.part == "wires":
        wires = explorer.cached(("wires", *place), lambda: virtual_weights(model, *place, k=WIRES, progress=progress))
    if query.part == "meanings" and store is not None:
        groups = explorer.cached(
            ("meanings", *place), lambda: meanings(store, *place, model, k=3, progress=progress).sheet()
        )
    provenance = model.provenance().to_dict()
    side = stored.sides[0] if stored else None
    ends = list(tokens.values())[:2]
    if side and side.sign == NEGATIVE:  # where it fires most it writes minus its value
        ends = [[replace(chip, kind=SIGNS[sign]) for chip in ends[1 - sign]] for sign in (0, 1)]
    sizes = model.ffn[layer].expert_sizes
    body = fragment(
        "memory.html",
        start=False,
        expert="" if sizes is None else f"{layer}.{sizes.name(neuron)}",
        ends=ends,
        side=side,
        name=query.neuron,
        tokens=tokens,
        stored=stored,
        verdict=side.meanings.label if side and side.meanings else "",
        sheet=firing_sheet(stored) if stored else None,
        unshaded=unshaded,
        store=store,
        model=model,
        role=role,
        neighbours=explorer.cached(("neighbours", *place), lambda: neighbours(explorer, *place)),
        wires=wires,
        meanings=groups,
    )

    def values() -> dict[str, Any]:
        found = {"layer": layer, "neuron": neuron, "tokens": projected.to_dict("records"), "role": role}
        more = {} if wires is None else {"wires": wires.to_dict()}
        return found | more | ({} if stored is None else {"store": stored.to_dict()}) | {"provenance": provenance}

    files: dict[str, Any] = {"csv": lambda: projected, "json": values}
    if wires is not None and len(wires.edges):
        files["png"] = wires.plot
    elif stored is not None:
        files["png"] = lambda: picture("histogram")(stored)
    return View(f"Memory {query.neuron}", body, f"memory-{query.neuron}", provenance, files)


def project_neuron(explorer: Explorer, layer: int, neuron: int) -> pd.DataFrame:
    """The tokens that it writes and reads, of its value through the Jacobian lens too where there is one."""
    model = explorer.model
    frames = [project_frame(model, layer, neuron, k=TOKENS)]
    try:
        load_lens(model, JACOBIAN)
    except (InputError, ModelError):  # none of these weights: the page shows the logit lens alone
        pass
    else:
        frames.append(project_frame(model, layer, neuron, k=TOKENS, side="value", lens=JACOBIAN))
    return pd.concat(frames, ignore_index=True)


def read_stored(store: Store, layer: int, neuron: int, progress: Progress) -> tuple[Neuron, str]:
    """What the store knows of it, its examples shaded; or unshaded, and why."""
    stored = store.neuron(layer, neuron)
    try:
        return store.shaded([stored], EXAMPLES, progress=progress)[0], ""
    except ModelError as error:
        return stored, f"Tokens are not shaded: {error}."


def firing_sheet(stored: Neuron) -> Sheet:
    """A neuron's sheet without the tokens that it writes and reads, which stand above it."""
    blocks = stored.sheet(EXAMPLES, origin=False).blocks
    tokens = {"promotes", "suppresses", *KEYS.values()}
    return Sheet(
        tuple(
            replace(block, rows={name: value for name, value in block.rows.items() if name not in tokens})
            if isinstance(block, Facts) and not block.title  # of one side: what it then writes is said nowhere else
            else block
            for block in blocks
        )
    )


def role_of(explorer: Explorer, layer: int, neuron: int, progress: Progress) -> dict[str, Any]:
    """The roles that its weights give it, the first one first."""
    its = explorer.cached(("roles", layer), lambda: roles(explorer.model, layer=layer, progress=progress))
    row = its.neurons.iloc[neuron]
    return {
        "name": "" if row["role"] == NONE else str(row["role"]),
        "all": [
            (role.name, role.statistic.replace("_", " "), float(row[role.statistic]))
            for role in its.roles
            if bool(row[role.column])
        ],
        "numbers": [
            ("kurtosis of its cosines with the vocabulary", float(row["cosine_kurtosis"])),
            ("cosine of key and value", float(row["io_cosine"])),
        ],
    }


def neighbours(explorer: Explorer, layer: int, neuron: int) -> dict[str, pd.DataFrame]:
    """By side, the memories of all layers whose keys (gates) or values point most nearly the same or the opposite way,
    as directions of the residual stream (a key through the gain of the norm in front of it): layer, neuron, cosine and
    the tokens that each promotes."""
    wires = Wires(explorer.model, None)

    def directions(side: str, at: int) -> torch.Tensor:
        with torch.no_grad():
            rows = wires.writes(at) if side == "value" else wires.reads(at, side)
            return torch.nn.functional.normalize(rows.float(), dim=-1)

    found = {}
    for side in sides_of(explorer.model):
        own = directions(side, layer)[neuron]
        near = []
        for at in range(explorer.model.n_layers):
            cosines = directions(side, at) @ own
            if at == layer:
                cosines[neuron] = 0.0
            top = cosines.abs().topk(min(NEIGHBOURS, len(cosines))).indices.tolist()
            near += [(at, other, float(cosines[other])) for other in top]
        frame = pd.DataFrame(near, columns=["layer", "neuron", "cosine"])
        frame = frame.sort_values("cosine", key=abs, ascending=False, kind="stable").head(NEIGHBOURS)
        tokens = promoted_tokens(explorer.model, frame, 4)
        found[side] = frame.assign(
            tokens=[tokens[place] for place in zip(frame["layer"], frame["neuron"], strict=True)]
        )
    return found
