"""The find view: memories that write or read words, or that a text fires most; by layer, role and verdict; sorted by
any column."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from pydantic import Field

from ..core.errors import InputError, check_choice, counted, quoted
from ..core.progress import Progress
from ..core.types import ROLE_NAMES, TEXT_ROLES, VERDICTS
from ..models.model import Model
from ..neurons.role_assignment import roles
from ..neurons.survey import stronger_verdicts
from ..prompts.captures import capture
from ..scanning.store import Store
from ..vocabulary.projections import WHY, end_tokens, standings, token_moments
from ..vocabulary.vectors import SIGNS, everything, sides_of
from .queries import Query, Text, choice_of, form_field
from .rendering import fragment
from .views import Explorer, View, view

WORDS = 16
LISTED, MOST = 50, 1000
ANY = "any"
HEADS = {
    "memory": "memory",
    "standing": "standing",
    "why": "why",
    "weight": "writes",
    "coefficient": "coefficient",
    "token": "fires at",
    "firing_rate": "fires",
    "kurtosis": "excess kurtosis",
    "role": "role",
    "verdict": "verdict",
}
"""The columns that there may be, and what they are called."""
ROLES = tuple(name for name in ROLE_NAMES if name not in TEXT_ROLES)
"""Those that weights alone tell."""
TEXTS = ("memory", "why", "token", "role", "verdict")
"""Columns that are sorted upwards first."""
ENDS = {why: end for end, why in WHY.items()}
SHOWN = {"": "not shown", ANY: "shown, all"}


class FindQuery(Query):
    """Words, a text, and filters."""

    path: ClassVar[str] = "/find"
    words: str = form_field("words, with commas between", hint="Paris, London", wide=True, max_length=400)
    side: str = form_field("in")
    text: Text = form_field("or a text that fires it", wide=True)
    layer: int | None = form_field("layer", None)
    role: Annotated[str, choice_of("role", (ANY, *ROLES))] = form_field(
        "role by weights", words=SHOWN | dict(zip(ROLES, ROLES, strict=True))
    )
    verdict: Annotated[str, choice_of("verdict", (ANY, *VERDICTS))] = form_field("verdict")
    sort: str = ""
    order: Literal["", "down", "up"] = ""
    top: int = Field(default=LISTED, ge=1, le=MOST)


def find_choices(explorer: Explorer) -> Mapping[str, Mapping[str, str]]:
    """The model's sides and layers, and verdicts where the store keeps them."""
    sides = sides_of(explorer.model)
    layers = [str(layer) for layer in range(explorer.model.n_layers)]
    verdicts = {} if read_verdicts(explorer) is None else SHOWN | dict(zip(VERDICTS, VERDICTS, strict=True))
    return {
        "side": {"": "values and keys", **{side: f"{side}s" for side in sides}} if len(sides) > 1 else {},
        "layer": {"": "all", **dict(zip(layers, layers, strict=True))},
        "verdict": verdicts,
    }


@view("Find", FindQuery, "the search through all memories", buttons=[("Find", "", "")], choices=find_choices)
def find_page(explorer: Explorer, query: FindQuery, progress: Progress) -> View:
    """A table of memories."""
    if query == FindQuery():
        return View("Find memories", fragment("find.html", start=True, store=explorer.store, text_roles=TEXT_ROLES))
    frame = find_memories(explorer, query, progress)
    columns = [name for name in HEADS if name == "memory" or name in frame]
    default = next(name for name in ("standing", "weight", "memory") if name in columns)
    sort = check_choice("sort", query.sort or default, columns)
    first = {name: "up" if name in TEXTS else "down" for name in columns}
    order = query.order or first[sort]
    by = ["layer", "neuron"] if sort == "memory" else [sort, "layer", "neuron"]
    frame = frame.sort_values(by, ascending=order == "up", kind="stable", na_position="last").reset_index(drop=True)
    shown = frame.head(query.top)
    ends = [ENDS[why] for why in shown["why"]] if "why" in shown else [("value", "promoted")] * len(shown)
    places = [(int(row.layer), int(row.neuron), *end) for row, end in zip(shown.itertuples(), ends, strict=True)]
    body = fragment(
        "find.html",
        start=False,
        query=query,
        heads=HEADS,
        columns=columns,
        texts=TEXTS,
        sort=sort,
        order=order,
        orders=first | {sort: "down" if order == "up" else "up"},
        rows=shown.to_dict("records"),
        tokens={end[:2]: some for end, some in end_tokens(explorer.model, places, 5).items()},
        more=min(MOST, 4 * len(shown)) if len(shown) < min(len(frame), MOST) else 0,
        total=len(frame),
    )
    provenance = explorer.model.provenance(basis="folded").to_dict()
    files: dict[str, Any] = {
        "csv": lambda: frame,
        "json": lambda: {"memories": shown.to_dict("records"), "total": len(frame), "provenance": provenance},
    }
    return View("Find memories", body, "memories", provenance, files)


def find_memories(explorer: Explorer, query: FindQuery, progress: Progress) -> pd.DataFrame:
    """One row a memory that passes every filter: layer, neuron, and a column of each thing asked about."""
    model, sides = explorer.model, sides_of(explorer.model)
    frame = pd.DataFrame(
        [(layer, neuron) for layer, ffn in enumerate(model.ffn) for neuron in range(ffn.d_mlp)],
        columns=["layer", "neuron"],
    )
    if query.side:
        sides = (check_choice("side", query.side, sides),)
    if query.words:
        ids = read_words(model, query.words)
        frame["standing"], frame["why"] = explorer.cached(
            ("words", *sides, *ids), lambda: score_words(explorer, ids, sides, progress)
        )
    if query.text:
        strongest = explorer.cached(("fired", query.text), lambda: strongest_firings(model, query.text))
        frame = frame.assign(**strongest)
    if explorer.store is not None:
        stats = explorer.cached("stats", explorer.store.stats)
        frame = frame.merge(stats[["layer", "neuron", "firing_rate", "kurtosis"]], on=["layer", "neuron"], how="left")
    if query.role:
        its = explorer.cached("roles", lambda: roles(model, progress=progress))
        table = its.neurons
        frame["role"] = table["role"].to_numpy()
        if query.role != ANY:
            column = next(one.column for one in its.roles if one.name == query.role)
            frame = frame[table[column].to_numpy()]
    if query.verdict:
        kept = read_verdicts(explorer)
        if kept is None:
            raise InputError("there are no verdicts: open a store of which ffnmem polysemanticity has kept its table")
        frame = frame.merge(kept, on=["layer", "neuron"], how="left")
        frame = frame if query.verdict == ANY else frame[frame["verdict"] == query.verdict]
    if query.layer is not None:
        frame = frame[frame["layer"] == model.layer(query.layer)]
    return frame.reset_index(drop=True)


def read_words(model: Model, typed: str) -> tuple[int, ...]:
    """The token of each word, as it stands in a text: after a space where that is one token, else as typed."""
    words = [word for word in typed.split(",") if word.strip()]
    if not 1 <= len(words) <= WORDS:
        raise InputError(f"type 1 to {WORDS} words, with commas between them, not {len(words)}")
    ids = {}
    for word in words:
        readings = [word] if word != word.strip() else []
        for reading in (*readings, f" {word.strip()}", word.strip()):
            with suppress(InputError):
                ids[model.token_id(reading)] = reading
                break
        else:
            parts = model.ids_of(f" {word.strip()}")
            raise InputError(
                f"{quoted(word.strip())} is {counted(len(parts), 'token')} of {model.name} ({model.token_line(parts)}):"
                " a memory is compared with single tokens, so type one of them"
            )
    return tuple(ids)


def score_words(
    explorer: Explorer, ids: tuple[int, ...], sides: tuple[str, ...], progress: Progress
) -> tuple[np.ndarray, list[str]]:
    """How far some tokens' mean score stands from that of all tokens, in standard deviations, on that side of each
    neuron where it is furthest, above or below; and which one that is. By layer and neuron."""
    model, scores = explorer.model, []
    steps = len(sides) * model.n_layers
    for side in sides:
        moments = explorer.cached(("moments", side), partial(token_moments, model, side))
        for layer in range(model.n_layers):
            scores.append(standings(model, layer, everything(model, layer), side, ids, moments).mean(1))
            progress("weights", len(scores), steps)
    by_side = np.concatenate(scores).reshape(len(sides), -1)
    best = np.abs(by_side).argmax(0)
    furthest = by_side[best, np.arange(len(best))]
    why = [WHY[sides[side], SIGNS[int(score < 0)]] for side, score in zip(best, furthest, strict=True)]
    return np.abs(furthest), why


def strongest_firings(model: Model, text: str) -> dict[str, Any]:
    """Where a text fires every neuron most: what is written there (\\|coefficient\\| times the value's length), the
    coefficient and the token. The beginning of sequence and other special tokens do not count."""
    captured = capture(model, text)  # of a long one too, and so not kept
    content = captured.content[0]
    if not bool(content.any()):
        raise InputError("the text has no token but special ones: type some words")
    places = content.nonzero()[:, 0]
    tokens = captured.token_strings()
    columns: dict[str, list[Any]] = {"weight": [], "coefficient": [], "token": [], "position": []}
    for layer, ffn in enumerate(model.ffn):
        m = captured.coefficients[layer][0, places].detach().float()
        at = m.abs().argmax(0)
        strongest = m.gather(0, at.unsqueeze(0))[0]
        positions = places[at].tolist()
        with torch.no_grad():
            columns["weight"] += (strongest.abs() * ffn.values.float().norm(dim=-1)).tolist()
        columns["coefficient"] += strongest.tolist()
        columns["position"] += positions
        columns["token"] += [tokens[position] for position in positions]
    return columns


def read_verdicts(explorer: Explorer) -> pd.DataFrame | None:
    """layer, neuron and verdict of its stronger side, where the store keeps a table of them."""

    def read(store: Store) -> pd.DataFrame | bool:
        kept = stronger_verdicts(store)
        return False if kept is None else kept[["layer", "neuron", "verdict"]]

    store = explorer.store
    table = None if store is None else explorer.cached("verdicts", partial(read, store))
    return table if isinstance(table, pd.DataFrame) else None
