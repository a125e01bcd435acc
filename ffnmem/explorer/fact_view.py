"""The view of a fact: where it is recalled, and what a rewrite of it does, made anew by whoever opens its address.

An edit stands in the model inside the request alone, on the one thread that uses the model: nobody else ever meets it,
and nothing is written to disk but the file that is asked for.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pandas as pd
from pydantic import Field, model_validator

from ..core import sheets
from ..core.errors import InputError, counted, unwarned
from ..core.pictures import picture
from ..core.progress import Progress
from ..core.resources import EMBEDDED
from ..core.sheets import Sheet
from ..core.types import EDITORS, WITHOUT_MOMENT
from ..editing.edit import Edit
from ..evaluation.edited import EditEffects, edit_effects
from ..evaluation.editors import edit_by
from ..facts.answers import word_ids
from ..facts.fact import Fact, fact_about
from ..facts.questions import own_answer
from ..facts.templates import as_spelled, prompt_template
from ..models.model import Model
from ..pages.rendering import Section, split_sheet, without_origin
from ..tracing.maps import Trace
from ..tracing.tracing import trace_fact
from .queries import CARRIED, Query, Text, choice_of, form_field, memory_address
from .rendering import fragment
from .views import Explorer, View, view

PLAIN_EDITOR = "ft_l"
"""The editor that is offered for a model without a second moment."""
LISTED = 40  # facts
MEMORIES = 12  # rows
NEW = 12  # tokens of a continuation
PREDICTED = 6

Words = Annotated[str, Field(max_length=400)]


class FactQuery(Query):
    """A fact: the words that look it up, or a prompt and its subject; its rewrite; and what is done with it.

    ``true``: what is true, where somebody says it. ``free``: one more prompt. ``trace``, ``edit``: whether the fact is
    traced, and rewritten.
    """

    path: ClassVar[str] = "/fact"
    find: Words = form_field("find a fact", hint="words of it", wide=True)
    text: Text = form_field("or its prompt", hint="The Eiffel Tower is located in the city of", wide=True)
    subject: Words = form_field("subject", hint="Eiffel Tower")
    target: Words = form_field("new target", hint="Rome")
    true: Words = form_field("what is true", hint="as the fact says")
    editor: Annotated[str, choice_of("editor", EDITORS)] = form_field("editor")
    layer: int | None = form_field("layer", None, hint="its own", number=True)
    free: Text = form_field("also ask", hint="any other prompt", wide=True)
    trace: bool = Field(default=False, json_schema_extra=CARRIED)
    edit: bool = False

    @model_validator(mode="after")
    def check_whole(self) -> FactQuery:
        if self.text and not self.subject:
            raise InputError("the subject is missing: type the words of the prompt that it is about")
        if self.edit and not self.target:
            raise InputError("the new target is missing: type what the model is to say instead")
        return self


def editor_choices(explorer: Explorer) -> Mapping[str, Mapping[str, str]]:
    """The editors, first the one that is taken where none is chosen."""
    first = default_editor(explorer)
    return {"editor": {"": first, **{one: one for one in EDITORS if one != first}}}


def default_editor(explorer: Explorer) -> str:
    """ROME where there is a second moment, else an editor that needs none."""
    return EDITORS[0] if has_moment(explorer) else PLAIN_EDITOR


def has_moment(explorer: Explorer) -> bool:
    """Whether editors that need a second moment have one."""
    return explorer.moment is not None or explorer.model.name in EMBEDDED


BUTTONS = [("Rewrite it", "edit", "1"), ("Ask", "", ""), ("Trace where it is recalled", "trace", "1")]


@view("Fact", FactQuery, "the fact: its trace or its rewrite", buttons=BUTTONS, choices=editor_choices)
def fact_page(explorer: Explorer, query: FactQuery, progress: Progress) -> View:
    """A fact: what the model says, where that is recalled, and what a rewrite of it does."""
    if not query.text:
        return list_facts(explorer, query)
    model = explorer.model
    subject = as_spelled(query.text, query.subject.strip())
    template, notes = prompt_template(query.text, subject)
    true = query.true.strip() or None
    fact = explorer.cached(
        ("fact", template, subject, true),
        lambda: fact_about(template, subject, explorer.facts, true, partial(own_answer, model)),
    )
    before = explorer.capture(fact.text)
    predictions = before.predictions(-1, PREDICTED)
    known = int(predictions["token_id"].iloc[0]) == word_ids(model, fact.text, fact.target_true)[0]
    trace, reason = None, ""
    if query.trace:
        trace, reason = explorer.cached(("trace", fact), partial(trace_or_reason, model, fact, progress=progress))
    sections, edit, result, kept = trace_section(trace, reason), None, None, []
    if query.edit:
        edit = make_edit(explorer, query, fact, progress)
        result, more = sections_of_edit(explorer, query, edit)
        sections = [*more, *sections]
        kept = count_kept(explorer, edit, result.prompts)
    body = fragment(
        "fact_view.html",
        sections=sections,
        links=memory_address,
        query=query,
        edit=edit,
        about=fact,
        first=None if result is None else result.prompts.iloc[0].to_dict(),
        kept=kept,
        top=predictions.iloc[0],
        predictions=list(predictions.itertuples()),
        known=known,
    )
    files: dict[str, Any] = {"json": fact.to_dict}
    if trace is not None:
        files = {"csv": trace.to_frame, "json": trace.to_dict, "png": lambda: picture("figure")(trace)}
    if edit is not None and result is not None:
        files |= dict[str, Any](csv=result.to_frame, json=result.to_dict, zip=lambda: edit_bytes(edit))
    return View(
        title=fact.subject + ("" if edit is None else f" → {edit.targets[0]}"),
        body=body,
        name="fact" if edit is None and trace is None else "trace" if edit is None else "edit",
        provenance=before.provenance.to_dict() if edit is None else {**edit.provenance.to_dict(), "edit": edit.digest},
        files=files,
        notes=notes,
    )


def make_edit(explorer: Explorer, query: FactQuery, fact: Fact, progress: Progress) -> Edit:
    """The edit that the address asks for: the same address makes the same one."""
    editor = query.editor or default_editor(explorer)
    options: dict[str, Any] = {}
    if query.layer is not None:
        options["layer"] = explorer.model.layer(query.layer)
    if editor not in WITHOUT_MOMENT and explorer.moment is not None:
        options["moment"] = explorer.moment
    target = f" {query.target.strip()}"  # a fact's targets are words after a space

    def run() -> Edit:
        with unwarned():  # the page has its warnings
            return edit_by(editor, explorer.model, fact, target, options=options, progress=progress)

    try:
        return explorer.cached(("edit", fact, target, editor, query.layer), run)
    except InputError as error:
        if editor in WITHOUT_MOMENT or has_moment(explorer):
            raise
        raise InputError(f"{error}; or choose {PLAIN_EDITOR}, which needs none") from None


def sections_of_edit(explorer: Explorer, query: FactQuery, edit: Edit) -> tuple[EditEffects, list[Section]]:
    """What the edit does, as the page of an edit has it."""

    def run() -> tuple[EditEffects, list[Section]]:
        result = edit_effects(edit, explorer.model, [query.free] if query.free else [], generate=NEW, k=MEMORIES)
        sheet = without_origin(result.sheet(full=True))
        return result, [section for section in split_sheet(sheet) if section.title]

    return explorer.cached(("effects", edit.digest, query.free), run)


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


def trace_section(trace: Trace | None, reason: str) -> list[Section]:
    """Where the fact was recalled, or why that is not known; nothing where it was not asked."""
    if trace is None and not reason:
        return []
    sheet = Sheet.of(sheets.Words.of(f"Not traced: {reason}")) if trace is None else without_origin(trace.sheet())
    return [Section("Where the fact was recalled", sheet)]


def count_kept(explorer: Explorer, edit: Edit, prompts: pd.DataFrame) -> list[str]:
    """How many other wordings say the new target, of those that said the old one, and how many prompts about neighbours
    are answered as before."""
    model, fact = explorer.model, edit.facts[0]
    wordings = prompts[prompts["kind"] == "paraphrase"]
    neighbours = prompts[prompts["kind"] == "neighbour"]
    kept = []
    if len(wordings) and fact.target_true:
        ids = [word_ids(model, fact.text, word)[0] for word in (fact.target_true, edit.targets[0])]
        old, new = model.token_strings(ids)
        known = wordings[wordings["answer_before"] == old]
        say = int((known["answer_after"] == new).sum())
        which = f"of {counted(len(known), 'other wording')} that said the old target"
        less = f" ({len(wordings) - len(known)} did not)" if len(known) < len(wordings) else ""
        kept.append(f"{say} {which}{less} say{'s' * (say == 1)} the new one")
    if len(neighbours):
        same = int((neighbours["answer_after"] == neighbours["answer_before"]).sum())
        kept.append(
            f"{same} of {counted(len(neighbours), 'prompt')} about neighbours keep{'s' * (same == 1)} the answer"
        )
    return kept


def edit_bytes(edit: Edit) -> bytes:
    """The edit as the file that :meth:`ffnmem.Edit.save` writes."""
    with tempfile.TemporaryDirectory() as folder:
        return Path(edit.save(Path(folder) / "edit.zip")).read_bytes()


def list_facts(explorer: Explorer, query: FactQuery) -> View:
    """The facts that may be chosen: those that have all words of a search, else one of each relation."""
    facts = list({fact.relation or fact.subject: fact for fact in reversed(explorer.facts)}.values())[::-1]
    if words := query.find.lower().split():
        texts = {
            fact: f"{fact.text} {fact.target_true} {fact.target_new or ''} {fact.relation} {fact.id}".lower()
            for fact in explorer.facts
        }
        facts = [fact for fact, text in texts.items() if all(word in text for word in words)]
    addresses = [fact_address(fact) for fact in facts[:LISTED]]
    body = fragment("fact_choose.html", explorer=explorer, query=query, found=facts, addresses=addresses)
    return View("Facts", body)


def fact_address(fact: Fact) -> str:
    """The view of a fact of the list. Where its prompt holds the subject twice, it is asked by its template."""
    template, _ = prompt_template(fact.text, fact.subject)
    text = fact.text if template == fact.prompt else fact.prompt
    return FactQuery(text=text, subject=fact.subject, target=fact.target_new or "").address()
