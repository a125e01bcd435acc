"""What an edit does to a model and to what it says, on one page that needs nothing but a browser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..core.errors import InputError, counted
from ..core.files import check_destination, write_whole
from ..core.progress import Progress
from ..core.sheets import Column, Sheet, Table, Words, line, token
from ..core.token_text import visible
from ..core.types import Count, Seed, checked
from ..editing.differing import EditDiff
from ..editing.edit import Edit
from ..evaluation.effects import Asked, EditEffects, Effects, moved_neighbours, prompt_table, prompts_of
from ..facts.answers import word_ids
from ..facts.fact import Fact
from ..models.model import Model
from ..models.turns import in_turn
from ..show.notebook import signed
from ..tracing.traces import Trace, kind_in_words
from ..tracing.tracing import trace_fact
from ..vocabulary.projections import promoted_tokens
from .links import Links, nowhere, to_site
from .prompts import with_bars, with_tokens
from .rendering import Section, page_html, without_origin

FACTS = 20  # whose prompts are listed
TOKENS = 6
NEW = 24  # tokens of a continuation
READ = (
    "The same in other words should change with the prompt; neighbours should keep their answer. Probabilities of a "
    "target of several tokens are the geometric mean of its tokens'."
)
WRITES = (
    "The norm of what the edit adds to the FFN's output at each token of the prompt, and its share of the whole "
    "output's norm: large at the subject's last token, small elsewhere."
)


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
    reason = ""
    if not isinstance(trace, Trace):
        with effects.unedited():
            trace, reason = (None, "") if trace is False else trace_or_reason(model, edit.facts[0], seed)
    write_whole(path, edit_html(effects, trace, reason, top, seed, others))
    return path


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
    edit = effects.edit
    more = f" and {len(edit.facts) - 1:,} more" if len(edit.facts) > 1 else ""
    title = line(f"{edit.facts[0].subject} → ", token(edit.targets[0], "strong"), more)
    provenance = {**edit.provenance.to_dict(), "edit": edit.digest}
    return page_html(title, edit_sections(effects, trace, reason, top, seed), provenance, links=links)


def edit_sections(
    effects: Effects,
    trace: Trace | None,
    reason: str,
    top: int,
    seed: int,
    *,
    more: Sequence[Asked] = (),
    texts: Sequence[str] = (),
    new: int = NEW,
) -> list[Section]:
    """What an edit does to the weights, to what the model says and writes, and to its memories, and how it was made.

    Args:
        trace, reason: of its first fact, or why there is none; neither to say nothing of it.
        top: how many memories. seed: of the texts for drift. more: prompts besides those of its facts.
        texts: that the model continues before and after, by ``new`` tokens; default those of its first fact.
    """
    edit, fact = effects.edit, effects.edit.facts[0]
    pairs = list(zip(edit.facts, edit.targets, strict=True))[:FACTS]
    prompts = effects.on([*(one for pair in pairs for one in prompts_of(*pair)), *more])
    memories = edit.diff(effects.model, fact, top)
    with effects.unedited():
        promoted = promoted_tokens(effects.model, memories.neurons, TOKENS, fired="coefficient_after")
    result = EditEffects(edit, prompts, effects.changes(), effects.drift(seed), memories)
    written = effects.continued(texts or [fact.ask(one) for one in fact.generation_prompts] or [fact.text], new)
    left_out = len(edit.facts) - len(pairs)
    recalled = Sheet.of(Words.of(f"Not traced: {reason}")) if trace is None else without_origin(trace.sheet())
    return [
        Section(
            "What it does", Sheet.of(result.heading(), *warning_words([*moved_neighbours(prompts), *edit.warnings]))
        ),
        Section(
            "Before and after",
            Sheet.of(*prompt_tables(prompts)),
            READ + (f" The prompts of {counted(left_out, 'more fact')} are not shown." if left_out else ""),
        ),
        Section(
            "What the model writes",
            Sheet.of(
                Table(tuple(Column(name, wraps=True) for name in ("beginning", "before", "after")), tuple(written))
            ),
            "The likeliest token each time.",
        ),
        *([Section("Where the fact was recalled", recalled)] if trace is not None or reason else []),
        Section("The memories that changed", Sheet.of(memories.neuron_table(promoted))),
        Section("Where the edit writes", Sheet.of(Table.of(memories.writes, "token layer norm share")), WRITES),
        Section("How it was made", Sheet.of({name: in_words(value) for name, value in edit.settings.items()})),
    ]


def prompt_tables(prompts: pd.DataFrame) -> list[Table]:
    """What the model says to the prompts of each fact, before and after."""
    facts = prompts.groupby(["fact", "true", "target"], sort=False)
    return [prompt_table(some, str(true), str(target)) for (_, true, target), some in facts]


def warning_words(warnings: Sequence[str]) -> list[Words]:
    """The first warnings, and how many more there are."""
    shown = [f"Warning: {warning}" for warning in warnings[:FACTS]]
    if len(warnings) > FACTS:
        shown.append(f"… and {counted(len(warnings) - FACTS, 'more warning')}")
    return [Words.of(warning) for warning in shown]


def in_words(value: Any) -> str:
    """A setting of the editor; lists, such as contexts, one item after the other."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {in_words(inner)}" for name, inner in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " | ".join(map(in_words, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# What the view of a fact says in templates of its own.

LABEL = 16  # characters of a token beside a map
TITLES = {"prompt": "The prompt", "paraphrase": "The same in other words", "neighbour": "About neighbours",
          "other": "Another prompt"}  # fmt: skip


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
    for position, text in enumerate(trace.tokens):
        label = visible(text, LABEL) + "*" * (position in trace.subject)
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
