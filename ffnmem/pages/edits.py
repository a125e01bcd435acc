"""What an edit does to a model and to what it says, on one page that needs nothing but a browser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.errors import InputError, counted
from ..core.files import check_destination, write_whole
from ..core.progress import Progress
from ..core.sheets import Column, Sheet, Table, Words, line, token
from ..core.types import Count, Seed, checked
from ..editing.edit import Edit
from ..evaluation.effects import EditEffects, Effects, moved_neighbours, prompt_tables
from ..facts.fact import Fact
from ..models.model import Model
from ..tracing.maps import Trace
from ..tracing.tracing import trace_fact
from ..vocabulary.projections import promoted_tokens
from .links import Links, nowhere, to_site
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
def edit(
    edit: Edit,
    model: Model,
    trace: Trace | bool = False,
    *,
    out: str | Path = "edit.html",
    top: Count = 20,
    seed: Seed = 0,
    site: str | Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write the report of an edit as one HTML file that needs nothing but a browser; its one script sorts and
    filters tables.

    Args:
        edit: of facts, made for the model.
        model: with the edit or without it, which stays as it is.
        trace: a causal trace of its first fact; True: it is traced now, if the model knows it.
        out: the file to write, in a folder that exists; replaced only once the new one is complete.
        top: how many memories to list.
        seed: of the trace, and of the texts for drift.
        site: the folder of a site of the model's neurons (:func:`ffnmem.pages.site`), to which their names lead.
        progress: called with the phases "effects" and, of a trace, "trace".

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
    given, reason = (trace, "") if isinstance(trace, Trace) else (None, "")
    if trace is True:
        with effects.unedited():
            given, reason = trace_or_reason(model, edit.facts[0], seed, progress)
    write_whole(path, edit_html(effects, given, reason, top, seed, others, progress))
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


def edit_html(
    effects: Effects,
    trace: Trace | None,
    reason: str,
    top: int,
    seed: int,
    links: Links = nowhere,
    progress: Progress | None = None,
) -> str:
    """The page of an edit."""
    edit, fact = effects.edit, effects.edit.facts[0]
    more = f" and {len(edit.facts) - 1:,} more" if len(edit.facts) > 1 else ""
    title = line(f"{fact.subject} → ", token(edit.targets[0], "strong"), more)
    provenance = {**edit.provenance.to_dict(), "edit": edit.digest}
    texts = [fact.ask(one) for one in fact.generation_prompts] or [fact.text]
    result = effects.measure(top=top, seed=seed, most=FACTS, progress=progress)
    sections = edit_sections(effects, result, texts, NEW)
    return page_html(title, [*sections[:3], *trace_section(trace, reason), *sections[3:]], provenance, links=links)


def edit_sections(effects: Effects, result: EditEffects, texts: Sequence[str], new: int) -> list[Section]:
    """What an edit does to the weights, to what the model says and writes, and to its memories, and how it was made.

    Args:
        effects, result: of the edit, from its ``measure``.
        texts: that the model continues before and after, by ``new`` tokens.
    """
    edit, prompts, memories = effects.edit, result.prompts, result.memories
    assert memories is not None
    with effects.unedited():
        promoted = promoted_tokens(effects.model, memories.neurons, TOKENS, fired="coefficient_after")
    left_out = len(edit.facts) - FACTS
    written = Table(
        tuple(Column(name, wraps=True) for name in ("beginning", "before", "after")),
        tuple(effects.continued(texts, new)),
    )
    return [
        Section(
            "What it does", Sheet.of(result.heading(), *warning_words([*moved_neighbours(prompts), *edit.warnings]))
        ),
        Section(
            "Before and after",
            Sheet.of(*prompt_tables(prompts)),
            READ + (f" The prompts of {counted(left_out, 'more fact')} are not shown." if left_out > 0 else ""),
        ),
        Section("What the model writes", Sheet.of(written), "The likeliest token each time."),
        Section("The memories that changed", Sheet.of(memories.neuron_table(promoted))),
        Section("Where the edit writes", Sheet.of(Table.of(memories.writes, "token layer norm share")), WRITES),
        Section("How it was made", Sheet.of({name: in_words(value) for name, value in edit.settings.items()})),
    ]


def trace_section(trace: Trace | None, reason: str) -> list[Section]:
    """Where the fact was recalled, or why that is not known; nothing where it was not asked."""
    if trace is None and not reason:
        return []
    sheet = Sheet.of(Words.of(f"Not traced: {reason}")) if trace is None else without_origin(trace.sheet())
    return [Section("Where the fact was recalled", sheet)]


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
    return f"{value:.6g}" if isinstance(value, float) else "none" if value is None else str(value)
