"""``edited`` and ``edit_effects``: a fact rewritten, and what an edit does to what a model says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from ..core.errors import InputError, counted, quoted, warn
from ..core.neuron_names import LayerName
from ..core.number_text import format_probability, format_share
from ..core.progress import Progress, log
from ..core.provenance import Provenance
from ..core.resources import EMBEDDED
from ..core.types import Count, EditorName, NewFolder, ResultFile, Seed, Whole, checked
from ..editing.differing import EditDiff
from ..editing.edit import Edit
from ..editing.preparing import Moment, Settings
from ..facts.fact import Fact, fact_about
from ..facts.formats import load_facts
from ..facts.templates import as_spelled, check_marked_once, prompt_template
from ..models.model import Model
from ..show.result import Result
from .editors import edit_by, editor_options
from .effects import AskedPrompt, Effects, prompts_of
from .texts import DRIFT

LAYER_BY = {
    "name": "published for the model's name",
    "shipped": "the best one of a sweep, which ships with ffnmem",
    "depth": "by the model's depth, for want of anything better",
    "tried": "the first tried where the edit is reached; in that by the model's depth it is not",
}
"""Of a layer that nobody gave, how it was chosen."""
TITLES = {
    "prompt": "The prompt",
    "paraphrase": "The same in other words",
    "neighbour": "About neighbours",
    "unrelated": "What else is known",
    "other": "Other prompts",
}
STAYING = {"neighbour": "about neighbours", "unrelated": "about what else is known"}
"""Prompts that should be answered as before."""


@checked
@dataclass(frozen=True, eq=False, repr=False)
class EditEffects(Result):
    """What an edit does to a model. Made by :func:`ffnmem.evaluation.edited` and ``edit_effects``.

    Attributes:
        edit: which.
        prompts: one row a prompt, as :meth:`ffnmem.evaluation.effects.Effects.on` has them.
        changes: the edited layers, and how large the change is beside the weights.
        drift: of text about other things; empty where there is none.
        memories: the neurons whose contribution changed most on the first prompt; None for an edit without facts.
        written: what the model writes on some beginnings, without the edit and with it.
    """

    heading = "layer_chosen not_asked routing"
    tables: ClassVar = {
        "doubts": "warning",
        "asked": "fact prompt true> target> answer>",
        "written": "*",
        "changes": "*",
        "elsewhere": "*",
        "neurons": "neuron coefficient> logit> change promotes|written",
        "components": "|*",
        "writes": "|token layer norm share",
        "how_it_was_found": "|fact steps loss delta stretch rarity unseen tried",
        "settings": "|*",
    }
    main, only_shown, only_data, uncut = "prompts", "asked", "title", "changes"

    edit: Edit
    prompts: pd.DataFrame
    changes: pd.DataFrame
    drift: pd.DataFrame
    memories: EditDiff | None
    written: pd.DataFrame
    model: Model | None = None

    @property
    def provenance(self) -> Provenance:
        return self.edit.provenance.with_settings(edit=self.edit.digest)

    @property
    def title(self) -> str:
        """The editor, and what was rewritten."""
        return self.edit.title

    @property
    def status(self) -> int:
        """1 where the model does not say a target with the edit."""
        return int(bool(self.edit.unreached))

    @property
    def verdict(self) -> str:
        """What the model says now, and whether it says so to other wordings and leaves other facts alone."""
        own = self.prompts[self.prompts["kind"] == "prompt"]
        said = [prompt_words(own.iloc[0], not self.status)] if len(own) == 1 else []
        if len(own) > 1:
            said.append(
                f"The model says the new target to {len(own) - len(self.edit.unreached):,} of {len(own):,} prompts."
            )
        more, stay = [], []
        for kind, some in self.prompts.groupby("kind", sort=False):
            same = int((some["answer_after"] == some["answer_before"]).sum())
            if kind == "paraphrase" and len(own) == 1:
                like = int((some["answer_after"] == own.iloc[0]["answer_after"]).sum())
                more.append(f"{like} of {counted(len(some), 'other wording')} get the same answer")
            elif kind in STAYING:
                stay.append(f"{same} of {len(some)} {STAYING[str(kind)]}")
        if stay:
            more.append(f"of the prompts that should keep their answer, {' and '.join(stay)} do")
        return " ".join([*said, *([f"{'; '.join(more)}.".capitalize()] if more else [])])

    @property
    def layer_chosen(self) -> str | None:
        """How the layer was chosen, where nobody gave it."""
        by = str(self.edit.settings.get("layer_by"))
        return (
            "the best of those tried; the edit is reached in none"
            if by == "tried" and self.status
            else LAYER_BY.get(by)
        )

    @property
    def not_asked(self) -> str | None:
        alone = set(self.prompts["kind"]) == {"prompt"}
        return "paraphrases, neighbours, other facts (--facts, --neighbours)" if alone else None

    @property
    def routing(self) -> str | None:
        """How many tokens of the prompts go to other experts with the edit."""
        if "rerouted" not in self.prompts or self.prompts["rerouted"].isna().all():
            return None
        shares = self.prompts.groupby("kind", sort=False)["rerouted"].mean()
        parts = [f"{format_share(share)} ({TITLES[str(kind)].lower()})" for kind, share in shares.items()]
        return f"tokens that go to other experts in the layers behind: {', '.join(parts)}"

    @property
    def doubts(self) -> pd.DataFrame:
        """What is doubtful about it."""
        said = (*self.edit.warnings, self.edit.unreached_words, *moved_neighbours(self.prompts))
        return pd.DataFrame({"warning": list(filter(None, said))}, dtype=object)

    @cached_property
    def asked(self) -> dict[str, pd.DataFrame]:
        """Before the edit and with it: the probabilities of the true and the new target, and the likeliest token."""
        shown = self.prompts if self.prompts["fact"].nunique() > 1 else self.prompts.drop(columns="fact")
        return {TITLES[str(kind)]: some for kind, some in shown.groupby("kind", sort=False)}

    @property
    def elsewhere(self) -> pd.DataFrame:
        """How far the predictions on text about other things moved: KL divergence in nats a token, and perplexity as a
        multiple of what it was."""
        return self.drift

    @property
    def neurons(self) -> pd.DataFrame | None:
        """The neurons whose contribution to the first prompt's answer changed most."""
        return None if self.memories is None else self.memories.neurons

    @property
    def components(self) -> pd.DataFrame | None:
        """What each component adds to the first prompt's answer, before and after."""
        return None if self.memories is None else self.memories.components

    @property
    def writes(self) -> pd.DataFrame | None:
        """The norm of what the edit adds to the FFN's output at each token of the first prompt, and its share of the
        whole output's norm."""
        return None if self.memories is None else self.memories.writes

    @property
    def how_it_was_found(self) -> pd.DataFrame:
        """How the editor found what to write, a row a fact."""
        return self.edit.rewrites

    @property
    def settings(self) -> pd.DataFrame:
        """What the editor was run with."""
        return self.edit.made_with

    @property
    def lens(self) -> str:
        return "logit"


def prompt_words(row: pd.Series, reached: bool) -> str:
    """What the model says to a prompt, in a sentence."""
    chances = [format_probability(row[f"target_{when}"]) for when in ("after", "before")]
    chance = f"probability {chances[0]}, was {chances[1]}"
    now, was = row["answer_after"].strip() or row["answer_after"], row["answer_before"].strip() or row["answer_before"]
    if not reached:
        return f"The edit is not reached: the model says {quoted(now)}, not {quoted(row['target'])} ({chance})."
    if now == was:
        return f"The model says {quoted(row['target'])}, as it did before the edit ({chance})."
    return f"The model now says {quoted(row['target'])} instead of {quoted(was)} ({chance})."


def moved_neighbours(table: pd.DataFrame) -> list[str]:
    """Of a table of :meth:`Effects.on`, that prompts which should stay are answered otherwise; empty where none is."""
    found = []
    for kind, words in STAYING.items():
        asked = table[table["kind"] == kind]
        moved = asked[asked["answer_before"] != asked["answer_after"]]
        if len(moved):
            one = moved.iloc[0]
            found.append(
                f"{len(moved)} of {len(asked)} prompts {words} are answered otherwise now: {quoted(one['prompt'])} "
                f"with {one['answer_after']!r} instead of {one['answer_before']!r}"
            )
    return found


@checked
def edit_effects(
    edit: Edit,
    model: Model,
    prompts: Sequence[str] = (),
    *,
    generate: Whole = 0,
    seed: Seed = 0,
    k: Count = 8,
    export: NewFolder | None = None,
    lora: NewFolder | None = None,
    progress: Progress | None = None,
) -> EditEffects:
    """What a saved edit does to what the model says; writes the edited model.

    The model is asked without the edit and with it: the prompts of its facts, their paraphrases, prompts about
    neighbours, and what else is known of the subjects. Its weights stay as they are.

    Args:
        edit: one, or a sum of some.
        model: that it was made for, with the edit or without it.
        prompts: asked besides those of its facts.
        generate: so many tokens are written on the prompts, without the edit and with it, the likeliest each time.
        seed: of the texts about other things.
        k: how many neurons to keep.
        export: write the edited model into this new folder, as a Hugging Face checkpoint.
        lora: write the edit into this new folder, as a PEFT adapter.
        progress: called as ("effects", done, 4) before each of its steps.

    Returns: An :class:`EditEffects`.

    Raises:
        InputError: prompts for an edit that names no facts, or longer than the model reads.
        ModelError: an edit of another model. FileError: a folder that cannot be made, or holds something.

    Example:
        $ ffnmem apply eiffel.zip --prompts "The Eiffel Tower is in"
        $ ffnmem apply eiffel.zip --export edited
    """
    effects, facts = Effects(edit, model), list(zip(edit.facts, edit.targets, strict=True))
    asked = [one for fact, target in facts for one in prompts_of(fact, target)]
    asked += [AskedPrompt("other", text, *effects.targets_of(text), fact="") for text in prompts]
    beginnings = [*(fact.text for fact in edit.facts[:1]), *prompts]
    beginnings += [fact.ask(one) for fact in edit.facts[:1] for one in fact.generation_prompts]
    steps: list[Callable[[], Any]] = [
        lambda: effects.on(asked),
        effects.changes,
        lambda: effects.drift(seed),
        lambda: edit.diff(model, asked[0].text, k) if facts else None,
    ]
    found: list[Any] = []
    for done, step in enumerate(steps):
        if progress is not None:
            progress("effects", done, len(steps))
        found.append(step())
    answers, changes, drift, memories = found
    written = effects.continued(beginnings, generate) if generate else []
    for what, write in ((export, edit.export), (lora, edit.export_lora)):
        if what is not None:
            log.info("wrote %s", write(model, what))
    return EditEffects(
        edit,
        answers,
        changes,
        pd.DataFrame([drift] if drift else [], columns=["texts", *DRIFT]),
        memories,
        pd.DataFrame([map(str.strip, row) for row in written], columns=["beginning", "before", "after"]),
        model,
    )


@checked
def edited(
    model: Model,
    fact: Fact | str,
    target: str,
    subject: str | None = None,
    *,
    true: str | None = None,
    editor: EditorName = "rome",
    layer: LayerName | None = None,
    expert: Whole | None = None,
    moment: Moment = None,
    settings: Settings = None,
    force: bool = False,
    facts: str | Path | None = None,
    paraphrases: Sequence[str] = (),
    neighbours: Sequence[str] = (),
    out: ResultFile = None,
    generate: Whole = 0,
    seed: Seed = 0,
    k: Count = 8,
    progress: Progress | None = None,
) -> EditEffects:
    """Rewrite a fact: before, after, and what else moved.

    The model is asked before and after: the prompt, its paraphrases, prompts about neighbours, and what else is known
    of the subject. Its weights and files stay as they are: an edit is a small file of its own (--out), which "apply"
    uses. Where the model, with the edit, does not give the target as its likeliest answer, the exit status is 1.

    Args:
        model: from :func:`ffnmem.load`.
        fact: a fact, or a prompt: a text that ends where the answer begins, or a template with ``{}`` for the subject.
        target: the new target, such as Rome.
        subject: of a prompt, as it is spelled there.
        true: the target that is true; default the known fact's, else the model's own word, if that can be a fact.
        editor: how the fact is written.
        layer: whose FFN is edited, the highest one of editors over several; default the one published for the model's
            name, else one that ships for it, else one by its depth.
        expert: with rome, in a layer of experts: change the values of this one alone, to which the subject must go.
        moment: the second moment of the model's coefficients, a file as "ffnmem moment" writes it; default the one
            that ships with atlas.
        settings: any other setting of the editor, such as steps=40, clamp=2, keys=original or layers=2.
        force: make an edit also where it changes a layer by more than twice its own norm.
        facts: a file of facts in which the prompt's paraphrases and neighbours are found; default those of atlas.
        paraphrases: the same in other words.
        neighbours: prompts about other subjects with the same true target.
        out: save the edit in this file, FILE.zip.
        generate: so many tokens are written on the prompt before and after, the likeliest each time.
        seed: of the editor's contexts, and of the texts about other things.
        k: how many neurons to keep.
        progress: called with "edit", then with "effects".

    Returns: An :class:`EditEffects`, whose ``edit`` is the edit.

    Raises:
        InputError: no such subject in the prompt, no second moment for the model, a setting that there is not or that
            does nothing with this editor, a change that is too large. FileError: a file that cannot be written.

    Example:
        $ ffnmem edit "The Eiffel Tower is located in the city of" \\
            "Eiffel Tower" Rome --out eiffel.zip
        $ ffnmem edit "The capital of France is" France Rome \\
            --editor memit --layer 1 --html france.html
    """
    check_edited(target, editor, layer, expert, moment, settings, force)
    options = editor_options([editor], settings, layer=layer, expert=expert, moment=moment, force=force)
    word = target.strip()
    if isinstance(fact, str):
        fact = find_fact(model, fact, subject, facts, true, word)
    elif subject is not None:
        raise InputError(f"the fact has a subject, {quoted(fact.subject)}: give a prompt to rewrite {quoted(subject)}")
    fact = replace(
        fact,
        target_new=word,
        paraphrases=(*fact.paraphrases, *(prompt_template(text, fact.subject)[0] for text in paraphrases)),
        neighbour_prompts=(*fact.neighbour_prompts, *neighbours),
    )
    edit = edit_by(editor, model, fact, target, seed, options, progress)
    if out is not None:
        log.info("wrote %s", edit.save(out))
    return edit_effects(edit, model, generate=generate, seed=seed, k=k, progress=progress)


def check_edited(
    target: str,
    editor: EditorName = "rome",
    layer: LayerName | None = None,
    expert: int | None = None,
    moment: Moment = None,
    settings: Settings = None,
    force: bool = False,
) -> None:
    """Raise InputError for an empty target, and for settings that are unknown or do nothing with the editor."""
    if not target.strip():
        raise InputError("the target is empty: give a word, such as Rome")
    editor_options([editor], settings, layer=layer, expert=expert, moment=moment, force=force)


def find_fact(
    model: Model, prompt: str, subject: str | None, source: str | Path | None, true: str | None, target: str
) -> Fact:
    """The fact that a prompt asks for, among those of a source that are about its subject, or a new one."""
    if subject is None:
        raise InputError(f"a subject is needed to rewrite {quoted(prompt)}: which of its words it is about")
    check_marked_once(prompt, subject)
    subject = as_spelled(prompt, subject)
    known = load_facts(source or model.name) if source or model.name in EMBEDDED else []
    if source and not any(fact.subject == subject for fact in known):
        raise InputError(f"{source} has no fact about {quoted(subject)}: leave facts out (--facts)")
    template, notes = prompt_template(prompt, subject)
    for words in notes:
        warn(words)
    return fact_about(template, subject, known, true, lambda prompt: "", target)  # the editor asks what is true
