"""The find view: memories that write or read words, or that a text fires most; by layer, role and verdict; sorted by
any column."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from markupsafe import Markup

from ..core.errors import InputError, counted, quoted
from ..core.pictures import picture
from ..core.progress import Progress
from ..core.types import ROLE_NAMES, TEXT_ROLES, VERDICTS
from ..neurons.measuring import opened
from ..neurons.role_assignment import known_roles, roles
from ..prompts.captures import capture
from ..vocabulary.projections import WHY, end_tokens, standings, token_moments
from ..vocabulary.vectors import SIGNS, everything, sides_of
from .queries import Query
from .rendering import csv_of, fragment, html_of, json_of, png_of, saved_page
from .views import Explorer, View

PATH = "/find"
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


def find_form(explorer: Explorer, query: Query) -> Markup:
    """Words, a text, and filters."""
    return fragment(
        "find_form.html",
        query=query,
        layers=range(explorer.model.n_layers),
        sides=sides_of(explorer.model),
        roles=ROLES,
        verdicts=VERDICTS if verdict_table(explorer) is not None else (),
    )


def find_view(explorer: Explorer, query: Query, progress: Progress) -> View:
    """A table of memories."""
    if not query:
        return View("Find memories", fragment("find_start.html", store=explorer.store, text_roles=TEXT_ROLES))
    frame = chosen(explorer, query, progress)
    columns = [name for name in HEADS if name == "memory" or name in frame]
    default = next(name for name in ("standing", "weight", "memory") if name in columns)
    sort = query.choice("sort", columns, default)
    down = query.choice("order", ("down", "up"), "up" if sort in TEXTS else "down") == "down"
    by = ["layer", "neuron"] if sort == "memory" else [sort, "layer", "neuron"]
    frame = frame.sort_values(by, ascending=not down, kind="stable", na_position="last").reset_index(drop=True)
    shown = frame.head(query.whole("top", LISTED, least=1, most=MOST))
    found = [ENDS[why] for why in shown["why"]] if "why" in shown else [("value", "promoted")] * len(shown)
    ends = [(int(row.layer), int(row.neuron), *end) for row, end in zip(shown.itertuples(), found, strict=True)]
    tokens = {end[:2]: some for end, some in end_tokens(explorer.model, ends, 5).items()}
    heads = [
        {
            "name": name,
            "words": HEADS[name],
            "order": ("descending" if down else "ascending") if name == sort else "",
            "address": query.address(PATH, sort=name, order=turned(name, sort, down)),
        }
        for name in columns
    ]
    body = fragment(
        "find.html",
        heads=heads,
        columns=columns,
        rows=shown.to_dict("records"),
        tokens=tokens,
        more=query.address(PATH, top=min(MOST, 4 * len(shown))) if len(shown) < min(len(frame), MOST) else "",
        total=len(frame),
    )
    provenance = explorer.model.provenance(basis="folded").to_dict()
    column = next((name for name in (sort, default) if name in frame and name not in TEXTS), "")
    return View(
        title="Find memories",
        body=body,
        conclusion=fragment("find_sentence.html", by=HEADS[sort], total=len(frame), first=shown.to_dict("records")[:3]),
        downloads={
            "csv": csv_of(lambda: frame, "memories"),
            **(
                {"png": png_of(lambda: picture("memories")(shown.head(20), column, label=HEADS[column]), "memories")}
                if column and len(shown)
                else {}
            ),
            "html": html_of(lambda: saved_page("Memories found", body, provenance), "memories"),
            "json": json_of(
                lambda: {"memories": shown.to_dict("records"), "total": len(frame), "provenance": provenance},
                "memories",
            ),
        },
    )


def turned(name: str, sort: str, down: bool) -> str:
    """The order that a click on a column's head asks for."""
    first = "up" if name in TEXTS else "down"
    return first if name != sort else "up" if down else "down"


def chosen(explorer: Explorer, query: Query, progress: Progress) -> pd.DataFrame:
    """One row a memory that passes every filter: layer, neuron, and a column of each thing asked about."""
    model = explorer.model
    side = query.choice("side", (ANY, *sides_of(model)), ANY)
    frame = pd.DataFrame(
        [(layer, neuron) for layer, ffn in enumerate(model.ffn) for neuron in range(ffn.d_mlp)],
        columns=["layer", "neuron"],
    )
    if "words" in query:
        ids = word_ids(explorer, query.text("words", most=400))
        sides = sides_of(model) if side == ANY else (side,)
        found = explorer.cached(("words", side, *ids), lambda: of_words(explorer, ids, sides, progress))
        frame["standing"], frame["why"] = found
    if "text" in query:
        text = query.text("text")
        for name, values in explorer.cached(("fired", text), lambda: of_text(explorer, text)).items():
            frame[name] = values
    if explorer.store is not None:
        stats = explorer.cached("stats", explorer.store.stats)
        frame = frame.merge(stats[["layer", "neuron", "firing_rate", "kurtosis"]], on=["layer", "neuron"], how="left")
    if "role" in query:
        role = query.choice("role", (ANY, *ROLES), ANY)
        table = explorer.cached("roles", lambda: roles(model, progress=progress))
        frame["role"] = table["role"].to_numpy()
        if role != ANY:
            column = next(one.column for one in known_roles(table) if one.name == role)
            frame = frame[table[column].to_numpy()]
    if "verdict" in query:
        verdict = query.choice("verdict", (ANY, *VERDICTS), ANY)
        kept = verdict_table(explorer)
        if kept is None:
            raise InputError("there are no verdicts: open a store of which ffnmem polysemanticity has kept its table")
        frame = frame.merge(kept, on=["layer", "neuron"], how="left")
        frame = frame if verdict == ANY else frame[frame["verdict"] == verdict]
    if "layer" in query:
        frame = frame[frame["layer"] == model.layer(query.whole("layer", 0, least=0, most=model.n_layers - 1))]
    return frame.reset_index(drop=True)


def word_ids(explorer: Explorer, typed: str) -> tuple[int, ...]:
    """The token of each word, as it stands in a text: after a space where that is one token, else as typed."""
    words = [word for word in typed.split(",") if word.strip()]
    if not 1 <= len(words) <= WORDS:
        raise InputError(f"type 1 to {WORDS} words, with commas between them, not {len(words)}")
    model, found = explorer.model, {}
    for word in words:
        readings = [word] if word != word.strip() else []
        for reading in (*readings, f" {word.strip()}", word.strip()):
            with suppress(InputError):
                found[model.token_id(reading)] = reading
                break
        else:
            ids = model.ids_of(f" {word.strip()}")
            raise InputError(
                f"{quoted(word.strip())} is {counted(len(ids), 'token')} of {model.name} ({model.token_line(ids)}): "
                "a memory is compared with single tokens, so type one of them"
            )
    return tuple(found)


def of_words(
    explorer: Explorer, ids: tuple[int, ...], sides: tuple[str, ...], progress: Progress
) -> tuple[np.ndarray, list[str]]:
    """How far some tokens' mean score stands from that of all tokens, in standard deviations, on that side of each
    neuron where it is furthest, above or below; and which one that is. By layer and neuron."""
    model, found = explorer.model, []
    steps = len(sides) * model.n_layers
    for side in sides:
        moments = explorer.cached(("moments", side), partial(token_moments, model, side))
        for layer in range(model.n_layers):
            found.append(standings(model, layer, everything(model, layer), side, ids, moments).mean(1))
            progress("weights", len(found), steps)
    of_sides = np.concatenate(found).reshape(len(sides), -1)
    best = np.abs(of_sides).argmax(0)
    stands = of_sides[best, np.arange(len(best))]
    why = [WHY[sides[side], SIGNS[int(stand < 0)]] for side, stand in zip(best, stands, strict=True)]
    return np.abs(stands), why


def of_text(explorer: Explorer, text: str) -> dict[str, Any]:
    """Where a text fires every neuron most: what is written there (\\|coefficient\\| times the value's length), the
    coefficient and the token. The beginning of sequence and other special tokens do not count."""
    captured = capture(explorer.model, text)  # of a long one too, and so not kept
    content = captured.content[0]
    if not bool(content.any()):
        raise InputError("the text has no token but special ones: type some words")
    places = content.nonzero()[:, 0]
    tokens = captured.token_strings()
    written: dict[str, list[Any]] = {"weight": [], "coefficient": [], "token": [], "position": []}
    for layer, ffn in enumerate(explorer.model.ffn):
        m = captured.coefficients[layer][0, places].detach().float()
        at = m.abs().argmax(0)
        strongest = m.gather(0, at.unsqueeze(0))[0]
        positions = places[at].tolist()
        with torch.no_grad():
            written["weight"] += (strongest.abs() * ffn.values.float().norm(dim=-1)).tolist()
        written["coefficient"] += strongest.tolist()
        written["position"] += positions
        written["token"] += [tokens[position] for position in positions]
    return written


def verdict_table(explorer: Explorer) -> pd.DataFrame | None:
    """layer, neuron and verdict, where the store keeps a table of them."""
    store = explorer.store
    if store is None:
        return None

    def read() -> pd.DataFrame | bool:
        kept = opened(store, "positive", {})
        if kept is None:
            return False
        return kept[0].file.read(columns=["layer", "neuron", "verdict"]).to_pandas()

    found = explorer.cached("verdicts", read)
    return found if isinstance(found, pd.DataFrame) else None
