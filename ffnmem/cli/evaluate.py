"""``ffnmem evaluate``: what edits of many facts do, by editor, by layer, or one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

import ffnmem as fm

from ..core.defaults import SWEPT
from ..core.errors import FileError, InputError, perhaps, quoted
from ..core.files import user_folder, user_path
from ..core.types import EDITORS, PROTOCOLS
from ..facts.listing import choose_facts, shuffled
from ..show.records import emit
from . import click_options as options
from .click_guard import Command, note
from .click_options import COUNT, ModelChoice, OneOf, given, option, refuse
from .editors import arguments_of, editor_options
from .fact_choice import model_and_facts
from .figures import save_figure
from .progress import Progress

if TYPE_CHECKING:
    from ..evaluation.editors import MadeEdits
    from ..evaluation.scores import Scores
    from ..evaluation.series import Decay
    from ..evaluation.sweeping import Sweep
    from ..facts.fact import Fact
    from ..tracing.traces import Traces


EVERY = (*EDITORS, "none")


def names(value: str) -> tuple[str, ...]:
    """A click type: editors with commas between them."""
    found = tuple(part.strip() for part in value.split(","))
    unknown = next((name for name in found if name not in EVERY), None)
    if unknown is not None:
        raise click.BadParameter(
            f"{quoted(unknown)} is no editor{perhaps(unknown, EVERY)}: choose among {', '.join(EVERY)}."
        )
    return found


def points(value: str) -> tuple[int, ...]:
    """A click type: numbers of edits with commas between them."""
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() and part.isascii() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"{quoted(value)} are no numbers of edits: write them as 1,10,100.")
    return tuple(map(int, parts))


@click.command(cls=Command, short_help="Edit many facts and measure what the edits do.")
@option("--editor", type=OneOf(EVERY), default="rome", metavar="EDITOR", help=", ".join(EVERY))
@option(
    "--compare", type=names, default=None, metavar="EDITORS", help="Further editors of the same facts: memit,ft_l,none."
)
@option(
    "--edits",
    "paths",
    multiple=True,
    metavar="PATH",
    help="Edits that are there already, a file or a folder of files as ffnmem edit -o writes them, beside --editor or "
    "in its place (repeatable); each is called by its name.",
)
@option(
    "--facts",
    "source",
    default="atlas",
    show_default=False,
    metavar="SOURCE",
    help="Which facts.  [default: atlas; with --edits those that they are of]",
)
@option("--relation", metavar="NAME", help="Facts of this relation, or of all that begin so.")
@option("--limit", type=COUNT, metavar="N", help="At most N facts, drawn with the seed.  [default: all]")
@option("--known", is_flag=True, help="Only facts that the model says by itself.")
@editor_options
@option(
    "--protocol",
    type=click.Choice(PROTOCOLS),
    default=PROTOCOLS[0],
    show_default=True,
    help="generated: besides, let the edited models write answers, greedily, and judge these.",
)
@option("--transcripts", is_flag=True, help="With --csv and --protocol generated: a row an answer.")
@option("--sweep", is_flag=True, help="Edit in every layer (with --layer in that one) and compare them.")
@option("--keep", is_flag=True, help="With --sweep: keep the best layer of this model, for --layer swept.")
@option(
    "--trace",
    "traced",
    is_flag=True,
    help="With --sweep: what the facts' causal trace tells of the scores; in --plot, too.",
)
@option(
    "--sequential",
    "at",
    type=points,
    metavar="N,N...",
    help="Make the edits one after another, in an order drawn with the seed, and keep them; measure after so many, "
    "such as 1,10,100.",
)
@option(
    "--together",
    type=COUNT,
    metavar="K",
    help="With --sequential: K facts at a time, in one edit of memit, emmet, alphaedit or encore.  [default: 1]",
)
@option(
    "--collapse",
    type=click.FloatRange(min=0, min_open=True),
    metavar="NATS",
    help="With --sequential: the model has collapsed where its loss on ordinary text is NATS a token higher.  "
    "[default: 1]",
)
@option(
    "--drift",
    metavar="CORPUS",
    help="Ordinary text, of which 20 documents are drawn.  [default: the corpus that ships with atlas; else none]",
)
@option("--generate", is_flag=True, help="Let the edited models write, for GE: how varied their text is.")
@option("--relations", is_flag=True, help="Also print the main scores of each relation.")
@option("--cases", is_flag=True, help="With --csv: a row an edit instead of the summary.")
@options.seed("Of facts drawn, contexts, texts, generation and intervals.")
@option("-o", "--out", metavar="DIR", help="Keep results there (Parquet, JSON); the same call goes on with it.")
@options.plot("the scores with their intervals")
@options.bos
@options.model
@options.full
@options.output
@click.pass_context
def evaluate(context: click.Context, /, choice: ModelChoice, full: bool, form: str, **asked: Any) -> None:
    """Edit each fact by itself, from the unedited model, and measure: does the model say the new target, in other words
    too, and still the old one of neighbours?

    \b
    Scores (percent, but for NKL)
      ES, PS  how often the new target beats the true one: prompt, paraphrases
      NS      how often the true one beats the new: neighbours
      S       harmonic mean of ES, PS and NS
      EM, PM, NM  by how much: differences of probabilities behind ES, PS and NS
      NS+     NS right after the edit's own sentence
      NKL     how much the next token's distribution moves on neighbours (nats)
      GE, RS  of text written about the subject (--generate): how varied it is,
              and, in Python, how like reference texts about the new target

    With --edits nothing is edited but by --editor, if that is given: each fact gets the edit that is its own. A fact
    without one is a failure.

    With --protocol generated the model writes: to the prompt, in other words, negated, after a mention of the old
    object, about the subject's other relations (found among all facts of the source), about neighbours, and to
    questions that join facts. Answers end with their sentence, and are compared without case, articles and punctuation.

    Drift is how much the next token's distribution moves on unrelated text (--drift). With --sequential the loss on
    that text and the size of the weights are read after every edit, and where the model collapses is told.

    Facts without a new target, and edits that would break the model, are failures: they are listed with their reason,
    and count in no mean. Edits that do not reach their target are listed with them, and count. Intervals are 95%
    bootstraps over facts.

    \b
    Examples
      ffnmem evaluate --limit 2 --compare memit
      ffnmem evaluate --edits eiffel.safetensors
      ffnmem evaluate --limit 2 --protocol generated --set steps=10
      ffnmem evaluate --relation landmark.city --limit 2 --set steps=10 --csv
      ffnmem evaluate --limit 1 --sweep --set steps=5 --plot layers.png
      ffnmem evaluate --editor ft_l --limit 3 --sequential 1,3 --json
      ffnmem evaluate --editor memit --limit 2 --sequential 2 --together 2

    --csv has editor (layer, edits), metric, mean, low, high, n. --json has these, why a metric is missing, the
    failures, the settings and the provenance, with --sequential every step and where the model collapsed; with --full
    the cases, transcripts and relations too.
    """
    check_options(context)
    editor, layer, seed, out = (asked[name] for name in ("editor", "layer", "seed", "out"))
    made = [made_edits(path) for path in asked["paths"]]
    named = [*([] if made and "editor" not in given(context) else [editor]), *(asked["compare"] or ())]
    if not named:
        refuse(context, ("layer", "moment", "force", "assigned"), "--edits alone")
    own = made and "source" not in given(context)
    if own:
        refuse(context, ("relation", "limit", "known"), "--edits without --facts")
    arguments = arguments_of(
        named, asked["assigned"], None if asked["sweep"] else layer, asked["moment"], asked["force"]
    )
    if own:
        model, facts = choice.load(), facts_of(made)
        every = facts
    else:
        every = choose_facts(asked["source"])
        model, facts = model_and_facts(
            choice,
            asked["source"],
            relation=asked["relation"],
            limit=asked["limit"],
            seed=seed,
            known_by="target" if asked["known"] else None,
            every=every,
        )
    from ..evaluation.sweeping import Sweep  # needs torch

    found: Scores | Sweep | Decay
    with Progress() as bars, goes_on(out):
        shared: dict[str, Any] = {"seed": seed, "progress": bars.report, **arguments}
        shared |= {name: asked[name] for name in ("drift", "together", "collapse") if asked[name] is not None}
        if asked["protocol"] == "generated":
            shared |= {"protocol": "generated", "others": every}
        if asked["at"] is not None:
            # Neighbours in a file are often alike: what one edit does to the next would be taken for what edits do.
            found = fm.evaluation.sequential(model, shuffled(facts, seed), editor, asked["at"], out=out, **shared)
        elif asked["sweep"]:
            layers = None if layer is None else [layer]
            found = fm.evaluation.layer_sweep(model, facts, editor, layers, out=out, **shared)
        else:
            editors: list[str | MadeEdits] = [*named, *made]
            found = fm.evaluation.evaluate(
                model, facts, editors[0], compare=editors[1:], out=out, generate=asked["generate"], **shared
            )
    traces = None
    if asked["traced"] and len(facts) < 3:
        note("a trace is compared with the scores of three facts or more: left out")
    elif asked["traced"]:
        with Progress() as bars:
            traces = fm.tracing.trace_facts(model, facts, kinds=("state", "ffn"), seed=seed, progress=bars.report)
    show(found, form, asked, full, traces)
    if asked["keep"] and isinstance(found, Sweep):  # after the table, which says what may be missing
        kept = found.choice()
        fm.editing.keep_choice(model, kept)
        note(f"kept {kept.summary()}: from now on edits of this model are made there where no --layer is given")
    if asked["plot"] is not None:
        # of a sweep with the facts' trace below it where that was asked for
        save_figure(found, asked["plot"], **({"trace": traces} if asked["sweep"] else {}))


def made_edits(path: str) -> MadeEdits:
    """The edits in a file, or in the files of a folder, by its name. Raises FileError, InputError."""
    place = user_folder(path)
    files = sorted(place.glob("*.safetensors")) if place.is_dir() else [place]
    if not files:
        raise FileError(f"{path} has no edits in it: ffnmem edit -o writes them, as NAME.safetensors")
    name = place.resolve().name if place.is_dir() else place.stem
    return fm.evaluation.made([fm.editing.Edit.load(file) for file in files], name)


def facts_of(made: Sequence[MadeEdits]) -> list[Fact]:
    """The facts that edits are of, each once, with the target that the first of its edits gives it."""
    found: dict[str, Fact] = {}
    for edit in (edit for one in made for edit in one.edits.values()):
        fact = replace(edit.facts[0], target_new=edit.targets[0])
        found.setdefault(fact.name, fact)
    return list(found.values())


@contextmanager
def goes_on(out: str | None) -> Iterator[None]:
    """A block after whose Ctrl-C the user is told where the work is."""
    try:
        yield
    except KeyboardInterrupt:
        if out is not None and user_path(out).exists():
            note(f"stopped: what is done is kept in {out}, some facts at a time; the same command goes on from there")
        raise


def check_options(context: click.Context) -> None:
    """Raise InputError for options that exclude each other, or that would do nothing."""
    values = context.params
    if values["sweep"] and values["at"] is not None:
        raise InputError("--sweep and --sequential exclude each other: give one of them")
    mode = "--sweep" if values["sweep"] else "--sequential" if values["at"] is not None else ""
    if mode:
        refuse(context, ("paths", "compare", "relations", "cases", "generate"), mode)
    if values["sweep"]:
        refuse(context, ("protocol", "transcripts", "drift"), mode)
    for name in ("together", "collapse"):
        if values[name] is not None and values["at"] is None:
            raise InputError(f"--{name} goes with --sequential: give that, or leave it out")
    for name in ("traced", "keep"):
        if values[name] and not values["sweep"]:
            raise InputError(f"--{name.removesuffix('d')} goes with --sweep: give that, or leave it out")
    if values["traced"] and values["layer"] is not None:
        raise InputError("--trace compares layers: leave out --layer")
    if values["sweep"] and values["layer"] == SWEPT:
        raise InputError("--layer swept does not go with --sweep, which finds it: leave it out")
    if values["transcripts"] and not (values["as_csv"] and values["protocol"] == "generated"):
        raise InputError("--transcripts goes with --csv and --protocol generated: give both (or --json --full alone)")
    if values["transcripts"] and (values["cases"] or values["relations"]):
        raise InputError("--transcripts excludes --cases and --relations: give one of them")
    if values["relations"] and values["as_csv"] and values["cases"]:
        raise InputError("--relations and --cases exclude each other with --csv: give one of them")
    if values["sweep"] and any(name == "layers" for name, _ in values["assigned"]):
        raise InputError("--set layers does not go with --sweep, whose layers they would be: leave it out")
    if values["cases"] and not values["as_csv"]:
        raise InputError("--cases goes with --csv: give that, or leave it out (--json has the cases)")


def show_traced(found: Sweep, traces: Traces, form: str) -> None:
    """A sweep, with what a causal trace of its facts tells of its scores."""
    from ..core.json_values import plain
    from ..core.sheets import Sheet
    from ..evaluation.traced import traced_table

    told = fm.evaluation.trace_against_layer(found, traces)

    def sheet() -> Sheet:
        *first, last = found.sheet().blocks
        return Sheet.of(*first, traced_table(told), last)

    emit(found, form, sheet=sheet, data=lambda: {**found.to_dict(), "trace": plain(told)})


def show(found: Scores | Sweep | Decay, form: str, asked: dict[str, Any], full: bool, traces: Traces | None) -> None:
    """The summary in the form that was asked for; with CSV, on standard error what a table of means does not show.

    Of a sweep with traces, also what these tell.
    """
    from ..core.json_values import plain
    from ..evaluation.scores import Scores  # these need torch
    from ..evaluation.series import Decay
    from ..evaluation.sweeping import Sweep

    if isinstance(found, Sweep) and traces is not None:
        show_traced(found, traces, form)
        return
    if isinstance(found, Decay):
        decay, table = found, found.transcripts if asked["transcripts"] else found.frame
        emit(decay, form, sheet=lambda: decay.sheet(asked["out"]), frame=lambda: table, full=full)
        if form == "csv" and decay.collapse_words:
            note(decay.collapse_words)
        return
    if not isinstance(found, Scores):
        emit(found, form, full=full)
        return

    def relations() -> dict[str, Any]:
        return {"relations": plain(found.relations)} if asked["relations"] else {}

    tables = {"transcripts": found.transcripts, "cases": found.cases.drop(columns="written", errors="ignore")}
    frame = next((table for name, table in tables.items() if asked[name]), None)
    if frame is None:
        frame = found.relations if asked["relations"] else found.with_unedited
    emit(
        found,
        form,
        sheet=lambda: found.sheet(asked["relations"], asked["out"]),
        data=lambda: found.to_dict() if full else {**found.brief(), **relations()},
        frame=lambda: frame,
    )
    if form == "csv" and len(failures := found.failures):
        reason = failures["failure"].iloc[0]
        note(f"{len(failures)} of {len(found.cases)} edits were not made or not reached, the first because: {reason}")
