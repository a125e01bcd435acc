"""``ffnmem evaluate``: what edits of many facts do, by editor, by layer, or one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

import ffnmem as fm

from ..core.errors import FileError, InputError, counted
from ..core.files import user_folder, user_path
from ..core.types import EditorName, EvaluationProtocol, KnownBy
from .guard import note
from .kinds import read_layer
from .options import (
    Count,
    Full,
    Layers,
    ModelChoice,
    PlottedOutput,
    Positive,
    ReaderChoice,
    Seed,
    Settings,
    Tokens,
    of_one,
    option_group,
)
from .progress import show_progress

if TYPE_CHECKING:
    from ..evaluation.editors import MadeEdits
    from ..facts.fact import Fact
    from ..models.model import Model

evaluate = App(name="evaluate")


def read_numbers_of_edits(_kind: Any, tokens: Tokens) -> tuple[int, ...]:
    """Numbers of edits, in several options or with commas between them."""
    parts = [part.strip() for token in tokens for part in token.value.split(",")]
    if not all(part.isdecimal() and part.isascii() and int(part) > 0 for part in parts):
        raise InputError("write numbers of edits with commas between them, such as 1,10,100")
    return tuple(map(int, parts))


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

    def arguments(self, editors: Sequence[str], layer: int | None = None) -> dict[str, Any]:
        """The editors' arguments."""
        from ..evaluation.editors import editor_options

        return editor_options(editors, self.settings, layer=layer, moment=self.moment, force=self.force)


Editor = Annotated[
    Literal[EditorName, "none"],
    Parameter(help="How facts are written; none leaves the model. [default: rome, without --edits]"),
]
Folder = Annotated[
    str,
    Parameter(alias="-o", metavar="DIR", help="Keep results there (Parquet, JSON); the same call goes on with it."),
]
Drift = Annotated[
    str,
    Parameter(
        metavar="CORPUS",
        help="Ordinary text, of which 20 documents are drawn. [default: the corpus that ships with atlas; else none]",
    ),
]
Protocol = Annotated[
    EvaluationProtocol,
    Parameter(help="generated: besides, let the edited models write answers, greedily, and judge these."),
]


@option_group
class FactChoice:
    """Which facts of a source.

    Attributes:
        relation: Facts of this relation, or of all that begin so.
        limit: At most N facts, drawn with the seed. [default: all]
        known: Only facts that the model says by itself.
    """

    relation: Annotated[str | None, Parameter(metavar="NAME")] = None
    limit: Count | None = None
    known: bool = False

    def choose(
        self, every: Sequence[Fact], source: str, model: ModelChoice, seed: int, *, known_by: KnownBy = "target"
    ) -> tuple[Model, list[Fact]]:
        """The model, and those of all facts of a source that are asked for.

        What the model knows is asked as :func:`ffnmem.facts.filter_known` does by ``known_by``. Raises InputError where
        there are none.
        """
        from ..facts.listing import choose_facts, draw_facts

        limit = None if self.known else self.limit
        facts = choose_facts(every, source, relation=self.relation, limit=limit, seed=seed)
        loaded = model.load()
        if not self.known:
            return loaded, facts
        with show_progress() as report:
            known = fm.facts.filter_known(loaded, facts, known_by=known_by, progress=report)
        if not known.facts:
            raise InputError(
                f"{loaded.name} knows none of the {counted(len(facts), 'fact')}: leave out --known, or choose others"
            )
        chosen = draw_facts(known.facts, self.limit, seed)
        some = "" if len(chosen) == len(known) else f"; {len(chosen):,} of these are drawn"
        note(f"{loaded.name} knows {len(known):,} of {counted(len(facts), 'fact')}{some}")
        return loaded, chosen


@option_group
class EditedFacts(FactChoice):
    """The facts that are edited.

    Attributes:
        facts: Which facts. [default: atlas; with --edits those that they are of]
    """

    facts: Annotated[str | None, Parameter(metavar="SOURCE")] = None
    seed: Seed = 0

    def load(self, choice: ReaderChoice) -> tuple[fm.Model, list[Fact], list[Fact]]:
        """The model, the facts to edit, and all facts of the source."""
        source = self.facts or "atlas"
        every = fm.load_facts(source)
        model, facts = self.choose(every, source, choice, self.seed)
        return model, facts, every


@option_group
class ScoreOutput(PlottedOutput):
    """What is printed and drawn of scores.

    Attributes:
        table: With --csv, in place of the summary, and with --json besides: the scores of each relation, a row an edit,
            or, with --protocol generated, a row an answer.
    """

    table: Literal["relations", "cases", "transcripts"] | None = None
    full: Full = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.table in ("cases", "transcripts") and self.form == "table":
            raise InputError(f"--table {self.table} is long: give --csv or --json, too")


@evaluate.default
def evaluate_edits(
    *,
    editor: Editor | None = None,
    compare: list[Editor] | None = None,
    edits: Annotated[list[str] | None, Parameter(metavar="PATH")] = None,
    facts: EditedFacts = EditedFacts(),
    layer: EditedLayer | None = None,
    settings: EditorSettings = EditorSettings(),
    protocol: Protocol = "teacher_forced",
    drift: Drift | None = None,
    out: Folder | None = None,
    output: ScoreOutput = ScoreOutput(),
    model: ReaderChoice = ReaderChoice(),
) -> None:
    """Edit many facts and measure what the edits do.

    Edits each fact by itself, from the unedited model, and measures: does the model say the new target, in other words
    too, and still the old one of neighbours?

      ES, PS  how often the new target beats the true one: prompt, paraphrases
      NS      how often the true one beats the new: neighbours
      S       harmonic mean of ES, PS and NS
      EM, PM, NM  by how much: differences of probabilities behind ES, PS and NS
      NS+     NS right after the edit's own sentence
      NKL     how much the next token's distribution moves on neighbours (nats)

    With --edits nothing is edited but by --editor, if that is given: each fact gets the edit that is its own. A fact
    without one is a failure.

    With --protocol generated the model writes: to the prompt, in other words, negated, after a mention of the old
    object, about the subject's other relations (found among all facts of the source), about neighbours, and to
    questions that join facts. Answers end with their sentence, and are compared without case, articles and punctuation.

    Drift is how much the next token's distribution moves on unrelated text (--drift). Facts without a new target, and
    edits that would break the model, are failures: they are listed with their reason, and count in no mean. Edits that
    do not reach their target are listed with them, and count. Intervals are 95% bootstraps over facts.

    Examples
      ffnmem evaluate --limit 2 --compare memit
      ffnmem evaluate --edits eiffel.zip
      ffnmem evaluate --limit 2 --protocol generated --set steps=10
      ffnmem evaluate --relation landmark.city --limit 2 --set steps=10 --csv

    --csv has editor, metric, mean, low, high, n. --json has these, why a metric is missing, the failures, the settings
    and the provenance; with --full the cases, transcripts and relations too.

    Args:
        compare: A further editor of the same facts (repeatable).
        edits: Edits that are there already, a file or a folder of files as ffnmem edit -o writes them, beside --editor
            or in its place (repeatable); each is called by its name.
    """
    if output.table == "transcripts" and protocol != "generated":
        raise InputError("--table transcripts has what edited models write: give --protocol generated, too")
    made = [load_made_edits(path) for path in edits or ()]
    names = [*([] if made and editor is None else [editor or "rome"]), *(compare or ())]
    if not names and (layer is not None or settings != EditorSettings()):
        raise InputError("--edits alone makes no edit: leave out how to make one, or give --editor, too")
    if made and facts.facts is None:
        if facts != EditedFacts(seed=facts.seed):
            raise InputError("--edits alone are of their own facts: leave out which, or give --facts, too")
        arguments, loaded = settings.arguments(names, layer), model.load()
        every = chosen = facts_of_edits(made)
    else:
        arguments = settings.arguments(names, layer)
        loaded, chosen, every = facts.load(model)
    arguments |= written_by(protocol, every) | {"seed": facts.seed, "drift": drift}
    editors: list[Any] = [*names, *made]
    with show_progress() as report, resumable(out):
        scores = fm.evaluation.evaluate(
            loaded, chosen, editors[0], compare=editors[1:], out=out, progress=report, **arguments
        )
    table = getattr(scores, output.table or "with_unedited").drop(columns="written", errors="ignore")
    more: dict[str, Any] = {} if output.table is None else {output.table: table.to_dict("records")}
    output.emit(
        scores,
        sheet=lambda: scores.sheet(output.table == "relations", out),
        data=lambda: scores.to_dict() if output.full else {**scores.brief(), **more},
        frame=lambda: table,
    )
    if output.form == "csv" and len(failures := scores.failures):
        reason = failures["failure"].iloc[0]
        note(f"{len(failures)} of {len(scores.cases)} edits were not made or not reached, the first because: {reason}")


def written_by(protocol: EvaluationProtocol, every: Sequence[Fact]) -> dict[str, Any]:
    """The library's arguments of a protocol, which asks about other facts where models write."""
    return {"protocol": protocol, "others": every if protocol == "generated" else None}


def load_made_edits(path: str) -> MadeEdits:
    """The edits in a file, or in the files of a folder, by its name. Raises FileError, InputError."""
    place = user_folder(path)
    files = sorted(place.glob("*.zip")) if place.is_dir() else [place]
    if not files:
        raise FileError(f"{path} has no edits in it: ffnmem edit -o writes them, as NAME.zip")
    name = place.resolve().name if place.is_dir() else place.stem
    return fm.evaluation.made([fm.editing.Edit.load(file) for file in files], name)


def facts_of_edits(made: Sequence[MadeEdits]) -> list[Fact]:
    """The facts that edits are of, each once, with the target that the first of its edits gives it."""
    facts: dict[str, Fact] = {}
    for edit in (edit for edits in made for edit in edits.edits.values()):
        fact = replace(edit.facts[0], target_new=edit.targets[0])
        facts.setdefault(fact.name, fact)
    return list(facts.values())


@contextmanager
def resumable(out: str | None) -> Iterator[None]:
    """A block after whose Ctrl-C the user is told where the work is."""
    try:
        yield
    except KeyboardInterrupt:
        if out is not None and user_path(out).exists():
            note(f"stopped: what is done is kept in {out}, some facts at a time; the same command goes on from there")
        raise


@evaluate.command
def sweep(
    *,
    editor: EditorName = "rome",
    layer: Layers | None = None,
    facts: EditedFacts = EditedFacts(),
    settings: EditorSettings = EditorSettings(),
    out: Folder | None = None,
    model: ReaderChoice = ReaderChoice(),
    output: PlottedOutput = PlottedOutput(),
) -> None:
    """Edit in every layer and compare them.

    Examples
      ffnmem evaluate sweep --limit 1 --set steps=5 --plot layers.png

    --csv has layer, metric, mean, low, high, n. --json has these, the failures and the provenance.

    Args:
        editor: How facts are written.
        layer: Only in this layer (repeatable).
    """
    arguments = settings.arguments([editor])
    if "layers" in arguments:
        raise InputError("--set layers does not go with a sweep, whose layers they would be: leave it out")
    loaded, chosen, _ = facts.load(model)
    with show_progress() as report, resumable(out):
        result = fm.evaluation.layer_sweep(
            loaded, chosen, editor, layer, out=out, seed=facts.seed, progress=report, **arguments
        )
    output.emit(result)


@evaluate.command
def sequential(
    *,
    at: Annotated[
        tuple[int, ...] | None, Parameter(converter=read_numbers_of_edits, metavar="N,N...", n_tokens=1)
    ] = None,
    together: Count = 1,
    collapse: Annotated[Positive, Parameter(metavar="NATS")] = 1.0,
    editor: EditorName = "rome",
    facts: EditedFacts = EditedFacts(),
    layer: EditedLayer | None = None,
    settings: EditorSettings = EditorSettings(),
    protocol: Protocol = "teacher_forced",
    drift: Drift | None = None,
    transcripts: bool = False,
    out: Folder | None = None,
    full: Full = False,
    model: ReaderChoice = ReaderChoice(),
    output: PlottedOutput = PlottedOutput(),
) -> None:
    """Make edits one after another, keep them, and measure.

    The edits are made in an order drawn with the seed. The loss on unrelated text (--drift) and the size of the weights
    are read after every edit, and where the model collapses is told.

    Examples
      ffnmem evaluate sequential --at 1,3 --editor ft_l --limit 3 --json
      ffnmem evaluate sequential --editor memit --limit 2 --together 2

    --csv has edits, metric, mean, low, high, n. --json has these, the failures, the settings and the provenance, every
    step and where the model collapsed; with --full the transcripts too.

    Args:
        at: Measure after so many edits, such as 1,10,100. [default: 1, 10, 100 and so on, and after all]
        together: So many facts at a time, in one edit of memit or alphaedit.
        collapse: The model has collapsed where its loss on ordinary text is NATS a token higher.
        editor: How facts are written.
        transcripts: With --csv and --protocol generated: a row an answer.
    """
    if transcripts and not (output.csv and protocol == "generated"):
        raise InputError("--transcripts goes with --csv and --protocol generated: give both (or --json --full alone)")
    from ..facts.listing import shuffle_facts

    arguments = settings.arguments([editor], layer)
    loaded, chosen, every = facts.load(model)
    # Neighbours in a file are often alike: what one edit does to the next would be taken for what edits do.
    ordered = shuffle_facts(chosen, facts.seed)
    arguments |= written_by(protocol, every) | {"seed": facts.seed, "drift": drift}
    with show_progress() as report, resumable(out):
        result = fm.evaluation.sequential(
            loaded,
            ordered,
            editor,
            at,
            together=together,
            collapse=collapse,
            out=out,
            progress=report,
            **arguments,
        )
    frame = result.transcripts if transcripts else result.frame
    output.emit(result, sheet=lambda: result.sheet(out), frame=lambda: frame, full=full)
    if output.csv and result.collapsed is not None:
        note(result.collapse_words)
