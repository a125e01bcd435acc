"""``ffnmem edit``: rewrite a fact, see what that changes, save it, and make or unmake edited checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import ffnmem as fm

from ..core.errors import InputError, ModelError, quoted
from ..core.files import check_new_folder
from ..core.resources import EMBEDDED
from ..core.sheets import Facts, Sheet
from ..core.types import EDITORS
from ..show.records import emit, print_json
from . import click_options as options
from .click_guard import Command, note
from .click_options import OWN, PAGE, ModelChoice, OneOf, argument, file_to_write, given, option
from .editors import arguments_of, editor_options
from .progress import late_bar

if TYPE_CHECKING:
    from ..editing.edit import Edit
    from ..facts.fact import Fact
    from ..models.model import Model


OF_FACTS = ("subject", "wanted", "true", "paraphrases", "neighbours", "source")
MAKING = (*OF_FACTS, "editor", "layer", "moment", "force", "assigned", "seed", "out", "unreached")
SHOWING = ("report", "site", "lora", "top")
NOT_REACHED = 1  # the exit status
MOST_DOUBTS = 8  # that are noted of one edit, which may be of a thousand facts


@click.command(cls=Command, short_help="Rewrite a fact: before, after, and what else moved.")
@argument("prompts", nargs=-1, metavar="[PROMPT]...")
@option("--subject", metavar="TEXT", help="What the prompt is about, spelled as it is there.")
@option("--target", "wanted", metavar="TEXT", help='The new target, such as " Rome" or Rome.')
@option(
    "--true",
    metavar="TEXT",
    help="The target that is true.  [default: the known fact's, else the model's own word, if that can be a fact]",
)
@option("--editor", type=OneOf(EDITORS), default="rome", metavar="EDITOR", help=", ".join(EDITORS))
@editor_options
@options.seed("Of the contexts that an editor samples.")
@option(
    "--facts",
    "source",
    metavar="SOURCE",
    help="Facts to find the prompt and subject in, for paraphrases and neighbours.  [default: those of atlas for it]",
)
@option("--paraphrase", "paraphrases", multiple=True, metavar="TEXT", help="The same in other words (repeatable).")
@option(
    "--neighbour",
    "neighbours",
    multiple=True,
    metavar="PROMPT",
    help="A prompt about another subject with the same true target (repeatable).",
)
@option(
    "--unreached",
    is_flag=True,
    help="Exit with status 0 also where the model does not say the target with the edit.",
)
@option("-o", "--out", callback=file_to_write(OWN), metavar="FILE", help="Save the edit: FILE.safetensors, a few kB.")
@option("--report", callback=file_to_write(PAGE), metavar="FILE", help="Also write a page about the edit: FILE.html.")
@options.site("names of neurons lead", "With --report")
@option("--export", metavar="DIR", help="Write the edited model as a new Hugging Face checkpoint.")
@option("--lora", metavar="DIR", help="Write the edit as a PEFT adapter, of rank one where it is that.")
@option("--apply", "files", multiple=True, metavar="FILE", help="Use a saved edit (repeatable).")
@option("--revert", "undone", multiple=True, metavar="FILE", help="Undo this edit of an exported checkpoint.")
@option(
    "--original",
    metavar="MODEL",
    help="With --revert: the model before its edits.  [default: the one that the edit names]",
)
@options.top("How many memories to list: those whose contribution changed most.", default=8)
@options.bos
@options.model
@options.full
@options.output
@click.pass_context
def edit(
    context: click.Context, /, prompts: tuple[str, ...], choice: ModelChoice, full: bool, form: str, **asked: Any
) -> int:
    """Rewrite a fact, and print what the model says before and after: to PROMPT, to its paraphrases, to prompts about
    its neighbours; and what else moved. The model's files are never changed: an edit is a small file of its own.

    PROMPT ends where the target begins. --apply shows saved edits, on the prompts given or those of their facts, and
    with --export writes the edited model into a new folder. --revert takes a checkpoint that was made so (--model) back
    to the original: it is copied, not computed, after a check that the checkpoint is the original with these edits and
    nothing else.

    An edit is verified: where the model, with the weights changed, does not give the target to PROMPT as its likeliest
    answer, that is said on standard error and the exit status is 1; all is written all the same.

    \b
    Examples
      ffnmem edit "The Eiffel Tower is located in the city of" \\
          --subject "Eiffel Tower" --target " Rome" -o eiffel.safetensors
      ffnmem edit "The capital of France is" --subject France \\
          --target Rome --editor memit --layer 1 --report france.html
      ffnmem edit --apply eiffel.safetensors "The Eiffel Tower is in"
      ffnmem edit --apply eiffel.safetensors --export edited
      ffnmem edit --revert eiffel.safetensors --model edited --export plain

    --csv has a row a prompt: fact, kind, prompt, true, target, and before and after the edit the probabilities of both
    and the likeliest token. --json has these, the memories, drift and the provenance; with --full the edit, all
    components and where it writes too.
    """
    check_options(context)
    for name in ("export", "lora"):  # before minutes of work
        if asked[name] is not None:
            check_new_folder(asked[name])
    if asked["undone"]:
        revert_checkpoint(asked["undone"], choice, asked["original"], asked["export"], form)
        return 0
    found = loaded(asked["files"]) if asked["files"] else None
    model = choice.load()
    if asked["report"] is not None:
        from ..pages.links import to_site

        to_site(asked["site"], Path(asked["report"]), model.fingerprint)
    if found is None:
        found = made(model, prompts[0], asked)
    show(model, found, prompts if asked["files"] and prompts else None, form, asked, full)
    return NOT_REACHED if found.unreached and not asked["files"] and not asked["unreached"] else 0


def check_options(context: click.Context) -> None:
    """Raise InputError unless one thing is asked for, with only those options that do something with it."""
    values, flags = context.params, given(context)
    if values["prompts"]:
        flags["prompts"] = "a PROMPT"
    else:
        flags.pop("prompts", None)
    applying, reverting = bool(values["files"]), bool(values["undone"])
    if applying and reverting:
        raise InputError("--apply and --revert exclude each other: give one of them")
    if "site" in flags and values["report"] is None:
        raise InputError("--site is for the page: give --report FILE, too")
    if applying or reverting:
        idle = (*MAKING, "original") if applying else (*MAKING, *SHOWING, "prompts")
        for name, flag in flags.items():
            if name in idle:
                raise InputError(f"{flag} does not go with {'--apply' if applying else '--revert'}: leave it out")
        if reverting and values["export"] is None:
            raise InputError("--revert writes a checkpoint without the edit: say where with --export DIR")
        return
    if "original" in flags:
        raise InputError("--original goes with --revert: leave it out")
    if len(values["prompts"]) != 1:
        count = len(values["prompts"])
        what = "no PROMPT" if not count else f"{count} prompts"
        raise InputError(f"{what} to edit at: give one, in quotes, or --apply FILE to look at a saved edit")
    for name, flag in (("subject", "--subject"), ("wanted", "--target")):
        if values[name] is None:
            raise InputError(f"{flag} is missing: an edit needs a PROMPT, its --subject and a new --target")


def made(model: Model, prompt: str, asked: dict[str, Any]) -> Edit:
    """The edit that the options ask for."""
    source = asked["source"]
    known = own_facts(source, model.name)
    if source is not None and not any(fact.subject == asked["subject"] for fact in known):
        raise InputError(f"{source} has no fact about {quoted(asked['subject'])}: leave --facts out")
    fact, target = fact_of(
        model,
        prompt,
        asked["subject"],
        asked["wanted"],
        known,
        true=asked["true"],
        paraphrases=asked["paraphrases"],
        neighbours=asked["neighbours"],
    )
    name = asked["editor"]
    arguments = arguments_of([name], *(asked[key] for key in ("assigned", "layer", "moment", "force")))
    from ..evaluation.editors import edit_by  # needs torch

    with late_bar() as report:
        return edit_by(name, model, fact, target, asked["seed"], arguments, report)


def show(
    model: Model, found: Edit, prompts: Sequence[str] | None, form: str, asked: dict[str, Any], full: bool
) -> None:
    """Before and after, what else moved, and the files that were asked for."""
    from ..editing.edit_record import unreached_words
    from ..evaluation.effects import Effects, moved_neighbours
    from ..vocabulary.projections import promoted_tokens  # these need torch

    effects = Effects(found, model).told(None if prompts is None else list(prompts), asked["top"], asked["seed"])
    unreached = [unreached_words(found)] if found.unreached else []
    doubts = (*found.warnings, *unreached, *moved_neighbours(effects.prompts))
    effects = replace(effects, warnings=doubts)
    said = doubts if asked["files"] else doubts[len(found.warnings) :]  # the editor has said its own
    for line in said[:MOST_DOUBTS]:
        note(f"warning: {line}")
    if len(said) > MOST_DOUBTS:
        note(f"warning: {len(said) - MOST_DOUBTS:,} more doubts, which --json lists")
    paths: dict[str, Path] = {}
    if asked["out"] is not None:
        paths["edit"] = found.save(asked["out"])
    if asked["export"] is not None:
        paths["checkpoint"] = found.export(model, asked["export"])
    if asked["lora"] is not None:
        paths["adapter"] = found.export_lora(model, asked["lora"])
    if asked["report"] is not None:
        paths["report"] = fm.pages.edit(found, model, out=asked["report"], site=asked["site"])

    def data() -> dict[str, Any]:
        values = effects.to_dict() if full else effects.brief()
        provenance = values.pop("provenance")
        return {**values, "files": {name: str(path) for name, path in paths.items()}, "provenance": provenance}

    memories = effects.memories
    emit(
        effects,
        form,
        sheet=lambda: effects.sheet(
            None if memories is None else promoted_tokens(model, memories.neurons, fired="coefficient_after")
        ),
        data=data,
    )
    for path in paths.values():
        note(f"wrote {path}")


# The fact that a prompt, a subject and a new target make: a known one where there is one, else a new one.


def own_facts(source: str | None, name: str) -> list[Fact]:
    """The facts of a source; by default those that ship with an embedded model, and none for others."""
    if source is None:
        return fm.load_facts(name) if name in EMBEDDED else []
    return fm.load_facts(source)


def fact_of(
    model: Model,
    prompt: str,
    subject: str,
    target: str,
    known: Sequence[Fact],
    *,
    true: str | None = None,
    paraphrases: Sequence[str] = (),
    neighbours: Sequence[str] = (),
) -> tuple[Fact, str]:
    """The fact to rewrite, and the new target as it was given.

    Args:
        model: asked for what is true where nothing else says it.
        prompt: ends where the target begins; holds the subject, or ``{}`` in its place.
        subject: as it is spelled there.
        target: the new target, with its space or without.
        known: facts to find it in, by their prompt or a paraphrase.
        true: the true target. paraphrases, neighbours: further ones, as whole prompts.

    Raises: InputError: the subject is not in a prompt, or an empty target.
    """
    from ..facts.fact import fact_about
    from ..facts.templates import as_spelled, check_marked_once, prompt_template

    if not target.strip():
        raise InputError("the new target is empty: give a word, such as --target Rome")
    check_marked_once(prompt, subject)
    subject = as_spelled(prompt, subject)
    template, notes = prompt_template(prompt, subject)
    for one in notes:
        note(f"note: {one}")
    found = fact_about(template, subject, known, true, partial(true_target, model), target.strip())
    more = tuple(prompt_template(text, subject)[0] for text in paraphrases)
    return (
        replace(
            found,
            target_new=target.strip(),
            paraphrases=(*found.paraphrases, *more),
            neighbour_prompts=(*found.neighbour_prompts, *neighbours),
        ),
        target,
    )


def true_target(model: Model, text: str) -> str:
    """What the model itself says after a prompt; empty where that is likely no fact, of which the editor warns."""
    from ..facts.questions import doubt_word, own_answer  # needs torch

    try:
        word = own_answer(model, text)
        return "" if doubt_word(model, text, word) else word
    except InputError:
        return ""


# Saved edits put together, and an edited checkpoint taken back to its original.


def loaded(files: Sequence[str]) -> Edit:
    """The edits of some files as one; raises FileError, and InputError where they do not go together."""
    from ..editing.edit import Edit

    found = Edit.load(files[0])
    for file in files[1:]:
        found = found + Edit.load(file)
    return found


def revert_checkpoint(files: Sequence[str], choice: ModelChoice, original: str | None, folder: str, form: str) -> None:
    """Write the model that a checkpoint was before its edits into a new folder, and say so.

    Subtracting an edit would not give back the bits that adding it rounded away. So the original is copied, once it is
    sure that it is the edit's own, and that with the edits it is the checkpoint, so that nothing else is lost.

    Raises: ModelError: another original, or a checkpoint that is not the original with these edits.
    """
    from ..core.files import appearing
    from ..editing.saving import plain_network, plain_tokenizer
    from ..models.configs import quiet

    if form == "csv":
        raise InputError("--csv has no table to print with --revert: use --json, or leave it out")
    edit = loaded(files)
    checkpoint = choice.load()
    name = edit.provenance.model if original is None else original
    model = ModelChoice(name, choice.device, choice.dtype, choice.prepend_bos).load()
    if model.fingerprint != edit.fingerprint:
        raise ModelError(
            f"{name} ({model.fingerprint}) is not the model that {edit.title} was made for ({edit.fingerprint}): name "
            "that with --original"
        )
    with edit.applied(model):
        edited = model.fingerprint
    if checkpoint.fingerprint != edited:
        raise ModelError(
            f"{choice.name} ({checkpoint.fingerprint}) is not {name} with {edit.title} and nothing else ({edited}): "
            "name all of its edits, and --dtype as it was; nothing was written"
        )
    path = check_new_folder(folder)
    with appearing(path) as place, quiet():
        plain_network(model).save_pretrained(place)  # type: ignore[operator]  # a Hugging Face model's own
        plain_tokenizer(model).save_pretrained(place)
    words = {"checkpoint": choice.name, "reverted": edit.title, "original": name, "fingerprint": model.fingerprint}
    if form == "json":
        print_json({**words, "edits": list(edit.parts), "files": {"checkpoint": str(path)}})
    else:
        from ..show.terminal import show

        show(Sheet.of(Facts(words)))
    note(f"wrote {path}")
