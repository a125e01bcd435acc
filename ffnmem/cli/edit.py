"""``ffnmem edit``: rewrite a fact, see what that changes, save it, and write edited checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from cyclopts.validators import Number

import ffnmem as fm

from ..core.errors import InputError, quoted
from ..core.resources import EMBEDDED
from ..core.types import WITHOUT_MOMENT, EditorName
from ..show.records import emit
from .guard import note
from .kinds import read_layer
from .options import (
    EditFile,
    Full,
    NewFolder,
    Output,
    Page,
    Prompt,
    ReaderChoice,
    Seed,
    Settings,
    Top,
    of_one,
    option_group,
)
from .progress import show_progress

if TYPE_CHECKING:
    from ..editing.edit import Edit
    from ..facts.fact import Fact
    from ..models.model import Model


EditedLayer = Annotated[
    int,
    Parameter(
        converter=of_one(read_layer),
        metavar="LAYER",
        help="Whose FFN is edited; the highest one of editors over several. [default: the one published for the "
        "model's name, else one that ships for it, else one by its depth]",
    ),
]


@option_group
class EditorSettings:
    """What editors edit with.

    Attributes:
        moment: The second moment of the model's coefficients, as ffnmem moment writes it. [default: the one that ships
            with atlas]
        settings: Any other setting of an editor, such as steps=40, clamp=2, keys=original or layers=2 (repeatable).
        force: Make an edit also where it changes a layer by more than twice its own norm.
    """

    moment: Annotated[str | None, Parameter(metavar="FILE")] = None
    settings: Settings | None = None
    force: bool = False

    def arguments(self, editors: Sequence[str], layer: int | None = None, expert: int | None = None) -> dict[str, Any]:
        """The editors' arguments: their own options by name, everything else of ``--set`` in ``settings``.

        Raises InputError for what there is not, or does nothing with these editors.
        """
        from ..editing.settings import EditSettings, unknown_words  # these need torch
        from ..evaluation.editors import EDITORS

        own = {name for editor in editors for name in EDITORS[editor].options} - {"force"}
        known = {"base", *(field.name for field in fields(EditSettings))} - {"layer"}
        options = {name: value for name, value in self.settings or () if name in own}
        settings = {name: value for name, value in self.settings or () if name not in own}
        if unknown := sorted({*settings} - known):
            raise InputError(f"unknown setting {unknown_words(unknown[0], sorted(own))}")
        editing = [name for name in editors if name != "none"]
        with_moment = [name for name in editing if name not in WITHOUT_MOMENT]
        for name, value, takers in (
            ("layer", layer, editing),
            ("expert", expert, [name for name in editing if EDITORS[name].procedure == "rome"]),
            ("moment", self.moment, with_moment),
            ("force", self.force or None, editing),
            ("settings", settings or None, with_moment),
        ):
            if value is not None:
                if not takers:
                    flag = f"--set {next(iter(settings))}" if name == "settings" else f"--{name}"
                    raise InputError(f"{flag} does nothing with {', '.join(editors)}: leave it out")
                options[name] = value
        return options


NOT_REACHED = 1  # the exit status
MOST_DOUBTS = 8  # that are noted of one edit, which may be of a thousand facts

Text = Annotated[str, Parameter(metavar="TEXT")]
edit = App(name="edit")


@option_group
class EditOutput(Output):
    """What is written and printed of an edit.

    Attributes:
        html: Also write a page about the edit: FILE.html.
        site: With --html: a site of the model's neurons (ffnmem site), to which names of neurons lead.
        trace: With --html: also trace where the fact is recalled.
        export: Write the edited model as a new Hugging Face checkpoint.
        lora: Write the edit as a PEFT adapter, of rank one where it is that.
    """

    html: Page | None = None
    site: Annotated[str | None, Parameter(metavar="DIR")] = None
    trace: Annotated[bool, Parameter(negative="")] = False
    export: NewFolder | None = None
    lora: NewFolder | None = None
    top: Top = 8
    full: Full = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, given in (("site", self.site), ("trace", self.trace)):
            if given and self.html is None:
                raise InputError(f"--{name} is for the page: give --html FILE, too")

    def load(self, choice: ReaderChoice) -> Model:
        """The model; a site that is not its own is refused."""
        model = choice.load()
        if self.html is not None:
            from ..pages.links import to_site

            to_site(self.site, Path(self.html), model.fingerprint)
        return model

    def emit(
        self,
        model: Model,
        edit: Edit,
        prompts: Sequence[str] | None = None,
        *,
        seed: int = 0,
        out: str | None = None,
        warned: int = 0,
    ) -> None:
        """What the model says before and after, what else moved, and the files that were asked for.

        Args:
            prompts: to ask; by default those of the edit's facts. seed: of the texts for drift.
            out: where to save the edit. warned: how many of its doubts the editor has said already.
        """
        from ..evaluation.effects import Effects, moved_neighbours
        from ..vocabulary.projections import promoted_tokens  # these need torch

        with show_progress() as progress:
            effects = Effects(edit, model).measure(prompts, self.top, seed, progress=progress)
        doubts = (*edit.warnings, edit.unreached_words, *moved_neighbours(effects.prompts))
        effects = replace(effects, warnings=tuple(filter(None, doubts)))
        unsaid = effects.warnings[warned:]
        for doubt in unsaid[:MOST_DOUBTS]:
            note(f"warning: {doubt}")
        if len(unsaid) > MOST_DOUBTS:
            note(f"warning: {len(unsaid) - MOST_DOUBTS:,} more doubts, which --json lists")
        files = {
            "edit": out and edit.save(out),
            "checkpoint": self.export and edit.export(model, self.export),
            "adapter": self.lora and edit.export_lora(model, self.lora),
        }
        if self.html:
            with show_progress() as progress:
                files["html"] = fm.pages.edit(edit, model, self.trace, out=self.html, site=self.site, progress=progress)
        written = {name: str(path) for name, path in files.items() if path}
        memories = effects.memories
        emit(
            effects,
            self.form,
            sheet=lambda: effects.sheet(
                None if memories is None else promoted_tokens(model, memories.neurons, fired="coefficient_after")
            ),
            data=lambda: {**(effects.to_dict() if self.full else effects.brief()), "files": written},
        )
        for path in written.values():
            note(f"wrote {path}")


@edit.default
def edit_fact(
    prompt: Prompt,
    /,
    *,
    subject: Text,
    target: Text,
    true: Text | None = None,
    editor: EditorName = "rome",
    layer: EditedLayer | None = None,
    expert: Annotated[int | None, Parameter(validator=Number(gte=0), metavar="N")] = None,
    settings: EditorSettings = EditorSettings(),
    seed: Seed = 0,
    facts: Annotated[str | None, Parameter(metavar="SOURCE")] = None,
    paraphrase: tuple[Text, ...] = (),
    neighbour: tuple[Text, ...] = (),
    unreached: bool = False,
    out: EditFile | None = None,
    output: EditOutput = EditOutput(),
    model: ReaderChoice = ReaderChoice(),
) -> int:
    """Rewrite a fact: before, after, and what else moved.

    Rewrites a fact, and prints what the model says before and after: to PROMPT, to its paraphrases, to prompts about
    its neighbours, about what else is known of the subject; and what else moved. The model's files are never changed:
    an edit is a small file of its own, which "edit apply" uses.

    An edit is verified: where the model, with the weights changed, does not give the target to PROMPT as its likeliest
    answer, that is said on standard error and the exit status is 1; all is written all the same.

    Examples
      ffnmem edit "The Eiffel Tower is located in the city of" \\
          --subject "Eiffel Tower" --target " Rome" -o eiffel.zip
      ffnmem edit "The capital of France is" --subject France \\
          --target Rome --editor memit --layer 1 --html france.html

    --csv has a row a prompt: fact, kind, prompt, true, target, and before and after the edit the probabilities of both
    and the likeliest token. --json has these, the memories, drift and the provenance; with --full the edit, all
    components and where it writes too.

    Args:
        subject: What the prompt is about, spelled as it is there.
        target: The new target, such as " Rome" or Rome.
        true: The target that is true. [default: the known fact's, else the model's own word, if that can be a fact]
        editor: How the fact is written.
        expert: With rome, in a layer of experts: change the values of this one alone, to which the subject must go.
            [default: those of the whole layer]
        facts: Facts to find the prompt and subject in, for paraphrases and neighbours. [default: those of atlas for it]
        paraphrase: The same in other words (repeatable).
        neighbour: A prompt about another subject with the same true target (repeatable).
        unreached: Exit with status 0 also where the model does not say the target with the edit.
        out: Save the edit: FILE.zip, some 20 kB.
    """
    word = target.strip()
    if not word:
        raise InputError("--target is empty: give a word, such as --target Rome")
    arguments = settings.arguments([editor], layer, expert)
    from ..evaluation.editors import edit_by  # these need torch
    from ..facts.fact import fact_about
    from ..facts.templates import as_spelled, check_marked_once, prompt_template

    loaded = output.load(model)
    check_marked_once(prompt, subject)
    known, subject = load_known_facts(facts, loaded, subject), as_spelled(prompt, subject)
    template, notes = prompt_template(prompt, subject)
    for words in notes:
        note(f"note: {words}")
    fact = fact_about(template, subject, known, true, lambda prompt: "", word)  # the editor asks what is true
    fact = replace(
        fact,
        target_new=word,
        paraphrases=(*fact.paraphrases, *(prompt_template(text, subject)[0] for text in paraphrase)),
        neighbour_prompts=(*fact.neighbour_prompts, *neighbour),
    )
    with show_progress() as progress:
        made = edit_by(editor, loaded, fact, target, seed, arguments, progress)
    output.emit(loaded, made, seed=seed, out=out, warned=len(made.warnings))
    return NOT_REACHED if made.unreached and not unreached else 0


def load_known_facts(source: str | None, model: Model, subject: str) -> list[Fact]:
    """The facts of a source that has some about the subject; by default those of an embedded model, none for others."""
    if source is None:
        return fm.load_facts(model.name) if model.name in EMBEDDED else []
    facts = fm.load_facts(source)
    if not any(fact.subject == subject for fact in facts):
        raise InputError(f"{source} has no fact about {quoted(subject)}: leave --facts out")
    return facts


@edit.command(name="apply")
def apply_edits(
    files: list[str],
    /,
    *,
    prompt: list[Text] | None = None,
    output: EditOutput = EditOutput(),
    model: ReaderChoice = ReaderChoice(),
) -> None:
    """Show what saved edits do, and write the edited model.

    Shows saved edits, on the prompts of their facts or on others, and with --export writes the edited model into a new
    folder. Several files are one edit.

    Examples
      ffnmem edit apply eiffel.zip --prompt "The Eiffel Tower is in"
      ffnmem edit apply eiffel.zip --export edited

    --csv and --json are as of ffnmem edit.

    Args:
        files: As ffnmem edit -o writes them.
        prompt: Show this prompt (repeatable). [default: those of the facts]
    """
    edits = reduce(add, map(fm.Edit.load, files))
    output.emit(output.load(model), edits, prompt)
