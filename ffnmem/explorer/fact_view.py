"""The view of a fact: where it is recalled, and what a rewrite of it does, made anew by whoever opens its address.

An edit stands in the model inside the request alone, on the one thread that uses the model: nobody else ever meets it,
and nothing is written to disk but the file that is asked for.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from ..core.errors import InputError, counted, unwarned
from ..core.json_values import plain
from ..core.pictures import picture
from ..core.progress import Progress
from ..core.resources import EMBEDDED
from ..core.types import EDITORS, WITHOUT_LAYER, WITHOUT_MOMENT
from ..editing.edit import Edit
from ..evaluation.editors import edit_by
from ..evaluation.effects import Asked as AskedPrompt
from ..evaluation.effects import Effects
from ..facts.answers import word_ids
from ..facts.fact import Fact, fact_about
from ..facts.questions import own_answer
from ..facts.templates import as_spelled, prompt_template
from ..pages.edits import edit_html, edit_values, trace_or_reason, trace_values
from ..pages.prompts import with_bars
from ..pages.rendering import script_of
from ..tracing.traces import Trace
from .circuit_view import hidden, to_memory
from .queries import Query, address
from .rendering import asset, csv_of, fragment, html_of, json_of, png_of, saved_page
from .views import Download, Explorer, View

PATH = "/fact"
QUESTION = ("text", "subject", "true", "target", "editor", "layer", "free")
PLAIN_EDITOR = "ft_l"
"""The editor that is offered for a model without a second moment."""
LISTED = 40  # facts
MEMORIES, REWRITTEN = 12, 10  # rows
BESIDE = 2  # paraphrases and neighbours whose continuations are shown, of each
NEW = 12  # tokens of a continuation
PREDICTED = 6
SHORT = 400  # characters of a subject or a target


# -- what an address asks for ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """What an address asks of a fact.

    Attributes:
        text, subject: the prompt and what it is about. true: what is true, where somebody says it.
        target: the new one. editor: by name; layer: None for the tool's choice. free: one more prompt.
        traced, edited: whether the fact is to be traced, and rewritten.
    """

    text: str
    subject: str
    true: str | None
    target: str | None
    editor: str
    layer: int | None
    free: str
    traced: bool
    edited: bool

    @classmethod
    def of(cls, explorer: Explorer, query: Query) -> Asked:
        """Raises InputError; OutOfRangeError: no such layer."""
        text = query.needed("text", what="the prompt")
        subject = query.needed("subject", most=SHORT, what="the subject").strip()
        editor = query.choice("editor", EDITORS, default_editor(explorer))
        layer = None
        if "layer" in query:
            n_layers = explorer.model.n_layers
            layer = explorer.model.layer(query.whole("layer", 0, least=-n_layers, most=10**6))
            if editor in WITHOUT_LAYER and query.flag("edit"):
                raise InputError(f"{editor} chooses its layers itself: leave the layer out")
        found = cls(
            text=text,
            subject=subject,
            true=query.text("true", most=SHORT, what="the true target").strip() or None,
            target=query.text("target", most=SHORT, what="the new target").strip() or None,
            editor=editor,
            layer=layer,
            free=query.text("free", what="the free prompt"),
            traced=query.flag("trace"),
            edited=query.flag("edit"),
        )
        if found.edited and found.target is None:
            raise InputError("the new target is missing: type what the model is to say instead")
        return found


def default_editor(explorer: Explorer) -> str:
    """ROME where there is a second moment, else an editor that needs none."""
    return EDITORS[0] if has_moment(explorer) else PLAIN_EDITOR


def has_moment(explorer: Explorer) -> bool:
    return explorer.moment is not None or explorer.model.name in EMBEDDED


def choice_address(fact: Fact) -> str:
    """The view of a fact of the list. Where its prompt holds the subject twice, it is asked by its template."""
    template, _ = prompt_template(fact.text, fact.subject)
    text = fact.text if template == fact.prompt else fact.prompt
    return address(PATH, text=text, subject=fact.subject, target=fact.target_new)


def chosen(explorer: Explorer, asked: Asked) -> tuple[Fact, tuple[str, ...]]:
    """The fact that is asked about, a known one where there is one, and what is to be noted about its prompt."""
    model = explorer.model
    subject = as_spelled(asked.text, asked.subject)
    template, notes = prompt_template(asked.text, subject)
    own = partial(own_answer, model)
    return explorer.cached(
        ("fact", template, subject, asked.true),
        lambda: fact_about(template, subject, explorer.facts, asked.true, own),
    ), notes


# -- the edit -----------------------------------------------------------------------------------------


def edited(explorer: Explorer, asked: Asked, fact: Fact, progress: Progress) -> Edit:
    """The edit that the address asks for: the same address makes the same one."""
    options: dict[str, Any] = {}
    if asked.layer is not None:
        options["layer"] = asked.layer
    if asked.editor not in WITHOUT_MOMENT and explorer.moment is not None:
        options["moment"] = explorer.moment
    assert asked.target is not None
    target = f" {asked.target}"  # a fact's targets are words after a space

    def run() -> Edit:
        with unwarned():  # the page has its doubts
            return edit_by(asked.editor, explorer.model, fact, target, options=options, progress=progress)

    try:
        return explorer.cached(("edit", *edit_key(asked, fact)), run)
    except InputError as error:
        if asked.editor in WITHOUT_MOMENT or has_moment(explorer):
            raise
        raise InputError(f"{error}; or choose {PLAIN_EDITOR}, which needs none") from None


def edit_key(asked: Asked, fact: Fact) -> tuple[Any, ...]:
    """All that an edit depends on."""
    return fact, asked.target, asked.editor, asked.layer


def effects_of(explorer: Explorer, asked: Asked, fact: Fact, edit: Edit, progress: Progress) -> dict[str, Any]:
    """What the edit does, as the page of an edit has it."""

    def run() -> dict[str, Any]:
        progress("effects", 1, 2)
        texts = [
            fact.text,
            *(fact.ask(template) for template in fact.paraphrases[:BESIDE]),
            *fact.prompts_about_neighbours[:BESIDE],
            *(fact.ask(template) for template in fact.generation_prompts[:1]),
            *([asked.free] if asked.free else []),
        ]
        more = [AskedPrompt("other", asked.free, fact.target_true, edit.targets[0], fact.name)] if asked.free else []
        effects = Effects(edit, explorer.model)
        return edit_values(effects, MEMORIES, 0, list(dict.fromkeys(texts)), more, NEW)

    return explorer.cached(("effects", *edit_key(asked, fact), asked.free), run)


def kept_words(explorer: Explorer, edit: Edit, prompts: pd.DataFrame) -> list[str]:
    """How many other wordings say the new target, and how many prompts about neighbours are answered as before."""
    new = explorer.model.token_strings(word_ids(explorer.model, edit.facts[0].text, edit.targets[0])[:1])[0]
    others = prompts[prompts["kind"] == "paraphrase"]
    neighbours = prompts[prompts["kind"] == "neighbour"]
    found = []
    if len(others):
        say = int((others["answer_after"] == new).sum())
        found.append(f"{say} of {counted(len(others), 'other wording')} say{'s' * (say == 1)} the new target")
    if len(neighbours):
        same = int((neighbours["answer_after"] == neighbours["answer_before"]).sum())
        found.append(
            f"{same} of {counted(len(neighbours), 'prompt')} about neighbours keep{'s' * (same == 1)} the answer"
        )
    return found


def saved_edit(edit: Edit, name: str) -> Download:
    """The edit as the file that :meth:`ffnmem.Edit.save` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = edit.save(Path(folder) / f"{name}.safetensors")
        return Download(path.name, "application/octet-stream", path.read_bytes())


# -- the view --------------------------------------------------------------------------------------------------------


def fact_form(explorer: Explorer, query: Query) -> Markup:
    """The fact, its rewrite, and what is done with it."""
    return fragment(
        "fact_form.html",
        query=query,
        editors=EDITORS,
        chosen=query.raw("editor", default_editor(explorer)),
        n_layers=explorer.model.n_layers,
        n_facts=len(explorer.facts),
        source=explorer.source,
        traced=query.raw("trace") == "1",
        typed=hidden(query, QUESTION) if "text" in query else [],
    )


def fact_view(explorer: Explorer, query: Query, progress: Progress) -> View:
    """A fact: what the model says, where that is recalled, and what a rewrite of it does."""
    if "text" not in query:
        return choosing(explorer, query)
    asked = Asked.of(explorer, query)
    fact, notes = chosen(explorer, asked)
    before = explorer.capture(fact.text)
    said = before.predictions(-1, PREDICTED)
    known = int(said["token_id"].iloc[0]) == word_ids(explorer.model, fact.text, fact.target_true)[0]
    mapped, reason = None, ""
    if asked.traced:
        found = partial(trace_or_reason, explorer.model, fact, progress=progress)
        mapped, reason = explorer.cached(("trace", fact), found)
    values = trace_values(mapped, reason)
    edit = edited(explorer, asked, fact, progress) if asked.edited else None
    if edit is not None:
        values |= effects_of(explorer, asked, fact, edit, progress)
        values["rewritten"] = with_bars(edit.value_changes(explorer.model, REWRITTEN), "norm")
        values["kept"] = kept_words(explorer, edit, values["prompts"])
    else:
        values |= {"provenance": before.provenance.to_dict()}
    body = fragment(
        "fact_view.html",
        frame="fragment.html",
        **values,
        edit=edit,
        asked=asked,
        about=fact,
        predictions=list(said.itertuples()),
        known=known,
        links=to_memory,
        circuit=address("/circuit", text=fact.text),
        prompt=address("/prompt", text=fact.text),
        trace_address=query.address(PATH, trace=1),
        untraced=query.address(PATH, trace=None),
        undone=query.address(PATH, edit=None),
        save=query.address(PATH, format="safetensors"),
    )
    title = f"{fact.subject}{'' if edit is None else f' → {edit.targets[0]}'}"
    return View(
        title=title,
        conclusion=fragment("fact_said.html", edit=edit, first=values.get("first"), fact=fact, known=known,
                            top=said.iloc[0], unreached=edit is not None and bool(edit.unreached)),
        body=body,
        downloads=downloads(explorer, fact, mapped, reason, edit, values, title, body),
        styles="\n".join((script_of("edit.css"), asset("fact_view.css"))),
        notes=notes,
    )  # fmt: skip


def downloads(
    explorer: Explorer,
    fact: Fact,
    trace: Trace | None,
    reason: str,
    edit: Edit | None,
    values: dict[str, Any],
    title: str,
    body: Markup,
) -> dict[str, Any]:
    """What can be saved: of an edit its prompts, its page and itself; of a trace its cells and its picture."""
    found: dict[str, Any] = {}
    if edit is not None:

        def page() -> str:
            return edit_html(Effects(edit, explorer.model), trace, reason, MEMORIES, 0)

        found["csv"] = csv_of(lambda: values["prompts"], "edit")
        found["html"] = html_of(page, "edit")
        found["json"] = json_of(
            lambda: {
                "edit": edit.to_dict(),
                "prompts": plain(values["prompts"].to_dict("records")),
                "memories": values["diff"].to_dict(),
            },
            "edit",
        )
        found["safetensors"] = lambda: saved_edit(edit, "edit")
    elif trace is not None:
        found["csv"] = csv_of(trace.to_frame, "trace")
        found["html"] = html_of(lambda: saved_page(title, body, trace.provenance.to_dict()), "trace")
        found["json"] = json_of(trace.to_dict, "trace")
    else:
        found["json"] = json_of(fact.to_dict, "fact")
    if trace is not None:
        found["png"] = png_of(lambda: picture("figure")(trace), "trace")
    return found


def choosing(explorer: Explorer, query: Query) -> View:
    """The facts that may be chosen: those that a search finds, else one of each relation."""
    words = query.text("find", most=SHORT, what="the search").lower().split()
    if words:
        matching = [fact for fact in explorer.facts if matches(fact, words)]
    else:
        matching = list({fact.relation or fact.subject: fact for fact in reversed(explorer.facts)}.values())[::-1]
    body = fragment(
        "fact_choose.html",
        facts=[(fact, choice_address(fact)) for fact in matching[:LISTED]],
        n_found=len(matching),
        n_facts=len(explorer.facts),
        source=explorer.source,
        find=query.raw("find"),
        model=explorer.model.name,
    )
    return View("Facts", body, styles=asset("fact_view.css"))


def matches(fact: Fact, words: Sequence[str]) -> bool:
    """Whether a fact has all the words, in whatever case."""
    text = f"{fact.text} {fact.target_true} {fact.target_new or ''} {fact.relation} {fact.id}".lower()
    return all(word in text for word in words)
