"""What an edit does to a model and to what it says, on one page that needs nothing but a browser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..core.errors import InputError
from ..core.files import check_destination, write_whole
from ..core.progress import Progress
from ..core.token_text import visible
from ..core.types import Count, Seed, checked
from ..editing.differing import EditDiff
from ..editing.edit import Edit
from ..evaluation.effects import Asked, Effects, moved_neighbours, prompts_of
from ..facts.answers import word_ids
from ..facts.fact import Fact
from ..models.model import Model
from ..models.turns import in_turn
from ..show.notebook import signed
from ..tracing.traces import Trace, kind_in_words
from ..tracing.tracing import trace_fact
from .links import Links, nowhere, to_site
from .prompts import with_bars, with_tokens
from .rendering import render

FACTS = 20  # whose prompts are listed
TOKENS = 6
LABEL = 16  # characters of a token beside a map
NEW = 24  # tokens of a continuation
TITLES = {"prompt": "The prompt", "paraphrase": "The same in other words", "neighbour": "About neighbours",
          "other": "Another prompt"}  # fmt: skip


@checked
@in_turn
def edit(
    edit: Edit,
    model: Model,
    trace: Trace | bool | None = None,
    *,
    out: str | Path = "edit.html",
    top: Count = 20,
    seed: Seed = 0,
    site: str | Path | None = None,
) -> Path:
    """Write the report of an edit as one HTML file that needs nothing but a browser; its one script sorts and
    filters tables.

    Args:
        edit: of facts, made for the model.
        model: with the edit or without it, which stays as it is.
        trace: a causal trace of its first fact; default it is traced now, where the model knows it; False for none.
        out: the file to write, in a folder that exists; replaced only once the new one is complete.
        top: how many memories to list.
        seed: of the trace, and of the texts for drift.
        site: the folder of a site of the model's neurons (:func:`ffnmem.pages.site`), to which their names lead.

    Returns: The path written.

    Raises:
        FileError: ``out`` is a folder, its folder is missing, or it cannot be written. InputError: an edit without
            facts. ModelError: an edit of another model.
    """
    path = check_destination(out)
    others = to_site(site, path, edit.provenance.fingerprint)
    if not edit.facts:
        raise InputError(f"{edit.title} names no facts, which a report is about")
    effects = Effects(edit, model)
    traced, reason = trace_of(effects, trace, seed)
    write_whole(path, edit_html(effects, traced, reason, top, seed, others))
    return path


def trace_of(effects: Effects, trace: Trace | bool | None, seed: int) -> tuple[Trace | None, str]:
    """The trace of the edit's first fact in the unedited model, or why there is none."""
    if isinstance(trace, Trace):
        return trace, ""
    if trace is False:
        return None, ""
    with effects.unedited():
        return trace_or_reason(effects.model, effects.edit.facts[0], seed)


def trace_or_reason(
    model: Model, fact: Fact, seed: int = 0, progress: Progress | None = None
) -> tuple[Trace | None, str]:
    """The trace of a fact, or why there is none."""
    if not fact.target_true:
        return None, "what is true was not named, so there is no answer to trace: name it with true= (--true)"
    try:
        return trace_fact(model, fact, seed=seed, progress=progress), ""
    except InputError as error:
        return None, str(error)


def edit_html(effects: Effects, trace: Trace | None, reason: str, top: int, seed: int, links: Links = nowhere) -> str:
    """The page of an edit."""
    fact = effects.edit.facts[0]
    texts = [fact.ask(template) for template in fact.generation_prompts] or [fact.text]
    return render("edit.html", links=links, **edit_values(effects, top, seed, texts), **trace_values(trace, reason))


def trace_values(trace: Trace | None, reason: str) -> dict[str, Any]:
    """What the template says of a trace, or of why there is none."""
    return {
        "trace": trace,
        "maps": [map_of(trace, kind) for kind in trace.kinds] if trace is not None else [],
        "reason": reason,
    }


def edit_values(
    effects: Effects, top: int, seed: int, texts: Sequence[str], more: Sequence[Asked] = (), new: int = NEW
) -> dict[str, Any]:
    """What the template says of an edit.

    Args:
        top: how many memories. seed: of the texts for drift.
        texts: that the model continues before and after, by ``new`` tokens. more: prompts besides those of its facts.
    """
    edit, model = effects.edit, effects.model
    pairs = list(zip(edit.facts, edit.targets, strict=True))
    fact, target = pairs[0]
    prompts = effects.on([*(one for pair in pairs[:FACTS] for one in prompts_of(*pair)), *more])
    found = edit.diff(model, fact, top)
    doubts = [*moved_neighbours(prompts), *edit.warnings]
    return {
        "fact": fact,
        "target": target,
        "method": edit.method,
        "more": len(edit.facts) - 1,
        "hidden": max(0, len(edit.facts) - FACTS),
        "prompts": prompts,
        "first": prompts.iloc[0].to_dict(),
        "doubts": doubts[:FACTS],
        "more_doubts": max(0, len(doubts) - FACTS),
        "groups": prompt_groups(prompts),
        "continued": effects.continued(texts, new),
        "changes": effects.changes(),
        "numbers": editor_numbers(edit),
        "drift": effects.drift(seed),
        "diff": found,
        "memories": moved_memories(effects, found, word_ids(model, fact.text, target)[0]),
        "writes": with_bars(found.writes, "norm"),
        "settings": [(name, in_words(value)) for name, value in edit.settings.items()],
        "provenance": {**edit.provenance.to_dict(), "edit": edit.digest},
    }


def prompt_groups(prompts: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of prompts by fact and kind."""
    found = []
    for (_, true, target, kind), rows in prompts.groupby(["fact", "true", "target", "kind"], sort=False):
        found.append({"true": true, "target": target, "title": TITLES[str(kind)], "rows": rows.to_dict("records")})
    return found


def editor_numbers(edit: Edit) -> list[tuple[str, Any]]:
    """What the editor measured of the first fact, names in words."""
    names = {
        "steps": "steps",
        "loss": "loss at the end",
        "delta": "‖δ‖ / ‖v₀‖",
        "rarity": "rarity of k* on text",
        "stretch": "times as long as found",
        "key_u": "k·u",
        "neurons": "neurons",
    }
    row = edit.numbers.iloc[0].to_dict() if len(edit.numbers) else {}
    return [(words, row[name]) for name, words in names.items() if name in row and row[name] == row[name]]


def map_of(trace: Trace, kind: str) -> dict[str, Any]:
    """The indirect effects of a kind: title, the largest one, where it is, and for each token its label and cells by
    layer. ``step``: from one layer's number on the axis to the next."""
    effects = trace.indirect(kind)
    limit = float(np.abs(effects).max()) or 1.0
    most = np.unravel_index(int(np.abs(effects).argmax()), effects.shape)
    step = next(step for step in (1, 2, 5, 10, 20, 50) if trace.n_layers <= 10 * step or step == 50)
    rows = []
    for position, token in enumerate(trace.tokens):
        label = visible(token, LABEL) + "*" * (position in trace.subject)
        cells = [
            {
                "strength": abs(effect) / limit,
                "adds": effect >= 0,
                "title": f"layer {layer}: {signed(100 * effect, 1)}%",
            }
            for layer, effect in enumerate(effects[:, position].tolist())
        ]
        rows.append((label, cells))
    finding = f"most, {signed(100 * float(effects[most]), 1)}%, at {rows[most[1]][0]} in layer {int(most[0])}"
    words = kind_in_words(kind, trace.window)
    return {"title": words, "limit": limit, "finding": finding, "step": step, "rows": rows}


def moved_memories(effects: Effects, found: EditDiff, named: int) -> list[Any]:
    """The memories whose contribution changed most, with the tokens that their values before the edit promote."""
    with effects.unedited():
        return with_bars(with_tokens(effects.model, found.neurons, TOKENS, (named,), "coefficient_after"), "change")


def in_words(value: Any) -> str:
    """A setting of the editor; lists, such as contexts, one item after the other."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {in_words(inner)}" for name, inner in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " | ".join(map(in_words, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
