"""``ffnmem evaluate``: what edits of many facts do, by editor, by layer, or one after another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import ffnmem as fm

from ..core.choices import EDITORS
from ..core.errors import InputError, counted, quoted
from ..facts.listing import choose_facts
from ..show.records import emit
from .editors import force_option, layer_option, moment_option, options_of, set_option
from .figures import check_figure, save_axes
from .guard import Command, note
from .options import (
    COUNT,
    ModelChoice,
    bos_option,
    full_option,
    given,
    model_options,
    output_options,
    plot_option,
    seed_option,
    text,
)
from .progress import Progress

if TYPE_CHECKING:
    from ..evaluation.scores import Scores
    from ..evaluation.series import Decay, Sweep
    from ..facts.fact import Fact
    from ..models.model import Model

EVERY = (*EDITORS, "none")
OF_SCORES = ("compare", "relations", "cases", "generate")


def names(value: str) -> tuple[str, ...]:
    """A click type: editors with commas between them."""
    found = tuple(part.strip() for part in value.split(","))
    unknown = next((name for name in found if name not in EVERY), None)
    if unknown is not None:
        raise click.BadParameter(f"{quoted(unknown)} is no editor: choose among {', '.join(EVERY)}.")
    return found


def points(value: str) -> tuple[int, ...]:
    """A click type: numbers of edits with commas between them."""
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() and part.isascii() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"{quoted(value)} are no numbers of edits: write them as 1,10,100.")
    return tuple(map(int, parts))


@click.command(cls=Command, short_help="Edit many facts and measure what the edits do.")
@click.option(
    "--editor", type=click.Choice(EVERY), default="rome", show_default=True, metavar="EDITOR", help=", ".join(EVERY)
)
@click.option(
    "--compare", type=names, default=None, metavar="EDITORS", help="Further editors of the same facts: memit,ft_l,none."
)
@click.option("--facts", "source", type=text, default="atlas", show_default=True, metavar="SOURCE", help="Which facts.")
@click.option("--relation", type=text, metavar="NAME", help="Facts of this relation, or of all that begin so.")
@click.option("--limit", type=COUNT, metavar="N", help="At most N facts, drawn with the seed.  [default: all]")
@click.option("--known", is_flag=True, help="Only facts that the model says by itself.")
@layer_option
@moment_option
@set_option
@force_option
@click.option("--sweep", is_flag=True, help="Edit in every layer (with --layer in that one) and compare them.")
@click.option(
    "--trace", "traced", is_flag=True, help="With --sweep and --plot: draw the facts' causal trace beside it."
)
@click.option(
    "--sequential",
    "at",
    type=points,
    metavar="N,N...",
    help="Make the edits one after another and keep them; measure after so many, such as 1,10,100.",
)
@click.option("--generate", is_flag=True, help="Let the edited models write, for GE: how varied their text is.")
@click.option("--relations", is_flag=True, help="Also print the main scores of each relation.")
@click.option("--cases", is_flag=True, help="With --csv: a row an edit instead of the summary.")
@seed_option("Of facts drawn, contexts, texts, generation and intervals.")
@click.option(
    "-o", "--out", type=text, metavar="DIR", help="Keep results there (Parquet, JSON); the same call goes on with it."
)
@plot_option("the scores with their intervals")
@bos_option
@model_options
@full_option
@output_options
@click.pass_context
def evaluate(context: click.Context, /, choice: ModelChoice, full: bool, form: str, **options: Any) -> None:
    """Edit each fact by itself, from the unedited model, and measure: does the model say the new target (ES), in other
    words too (PS), and still the old one of neighbours (NS)? S is their harmonic mean.

    NS+ asks about neighbours right after the edit's own sentence; NKL is how much their next token's distribution
    moves; drift the same on unrelated text. Facts without a new target, and edits that would break the model, are
    failures: they are listed with their reason, and count in no mean. Intervals are 95% bootstraps over facts.

    \b
    Examples
      ffnmem evaluate --limit 2 --compare memit
      ffnmem evaluate --relation landmark.city --limit 2 --set steps=10 --csv
      ffnmem evaluate --limit 1 --sweep --set steps=5 --plot layers.png
      ffnmem evaluate --editor ft_l --limit 3 --sequential 1,3 --json

    --csv has editor (layer, edits), metric, mean, low, high, n. --json has these, why a metric is missing, the
    failures, the settings and the provenance; with --full the cases and relations too.
    """
    check_options(context)
    path = None if options["plot"] is None else check_figure(options["plot"])
    editors = [options["editor"], *(options["compare"] or ())]
    layer = None if options["sweep"] else options["layer"]
    arguments = options_of(editors, options["chosen"], layer, options["moment"], options["force"])
    facts = choose_facts(options["source"], relation=options["relation"], limit=options["limit"], seed=options["seed"])
    model = choice.load()
    if options["known"]:
        facts = known_facts(model, facts)
    with Progress() as bars, goes_on(options["out"]):
        report = bars.report
        if options["at"] is not None:
            found: Scores | Sweep | Decay = decay(model, facts, options, arguments, report)
        elif options["sweep"]:
            found = sweep(model, facts, options, arguments, report)
        else:
            found = scores(model, facts, options, arguments, report)
    show(found, form, options, full)
    if path is not None:
        draw(model, facts, found, path, options)
        note(f"wrote {path}")


@contextmanager
def goes_on(out: str | None) -> Iterator[None]:
    """A block after whose Ctrl-C the user is told where the work is."""
    try:
        yield
    except KeyboardInterrupt:
        if out is not None:
            note(f"stopped: what is done is kept in {out}, and the same command goes on from there")
        raise


def check_options(context: click.Context) -> None:
    """Raise InputError for options that exclude each other, or that would do nothing."""
    values, options = context.params, given(context)
    if values["sweep"] and values["at"] is not None:
        raise InputError("--sweep and --sequential exclude each other: give one of them")
    mode = "--sweep" if values["sweep"] else "--sequential" if values["at"] is not None else ""
    for name, parameter in options.items():
        if mode and name in OF_SCORES:
            raise InputError(f"{parameter.opts[-1]} does not go with {mode}: leave it out")
    if values["at"] is not None and values["out"] is not None:
        raise InputError("-o does not go with --sequential, whose edits build on each other: use --json")
    if values["traced"] and not (values["sweep"] and values["plot"]):
        raise InputError("--trace goes with --sweep and --plot: give both, or leave it out")
    if values["relations"] and values["as_csv"] and values["cases"]:
        raise InputError("--relations and --cases exclude each other with --csv: give one of them")
    if values["sweep"] and any(name == "layers" for name, _ in values["chosen"]):
        raise InputError("--set layers does not go with --sweep, whose layers they would be: leave it out")
    if values["cases"] and not values["as_csv"]:
        raise InputError("--cases goes with --csv: give that, or leave it out (--json has the cases)")


def known_facts(model: Model, facts: list[Fact]) -> list[Fact]:
    """Those that the model says by itself; raises InputError where it says none."""
    found = list(fm.facts.filter_known(model, facts).facts)
    if not found:
        raise InputError(
            f"{model.name} knows none of the {counted(len(facts), 'fact')}: leave out --known, or choose others"
        )
    note(f"{model.name} knows {len(found):,} of {counted(len(facts), 'fact')}")
    return found


def scores(model: Model, facts: list[Fact], options: dict[str, Any], arguments: dict[str, Any], report: Any) -> Scores:
    from .. import evaluation as library  # needs torch

    return library.evaluate(
        model,
        facts,
        options["editor"],
        compare=options["compare"] or (),
        seed=options["seed"],
        out=options["out"],
        generate=options["generate"],
        progress=report,
        **arguments,
    )


def sweep(model: Model, facts: list[Fact], options: dict[str, Any], arguments: dict[str, Any], report: Any) -> Sweep:
    from .. import evaluation as library  # needs torch

    layers = None if options["layer"] is None else [options["layer"]]
    return library.layer_sweep(
        model, facts, options["editor"], layers, seed=options["seed"], out=options["out"], progress=report, **arguments
    )


def decay(model: Model, facts: list[Fact], options: dict[str, Any], arguments: dict[str, Any], report: Any) -> Decay:
    from .. import evaluation as library  # needs torch

    return library.sequential(
        model, facts, options["editor"], options["at"], seed=options["seed"], progress=report, **arguments
    )


def show(found: Scores | Sweep | Decay, form: str, options: dict[str, Any], full: bool) -> None:
    """The summary in the form that was asked for; with CSV, on standard error what a table of means does not show."""
    from ..evaluation.scores import Scores  # these need torch
    from ..prompts.attribution import plain_records

    if not isinstance(found, Scores):
        emit(found, form, full=full)
        return

    def relations() -> dict[str, Any]:
        return {"relations": plain_records(found.relations)} if options["relations"] else {}

    frame = found.cases if options["cases"] else found.relations if options["relations"] else found.with_unedited
    emit(
        found,
        form,
        sheet=lambda: found.sheet(options["relations"], options["out"]),
        data=lambda: found.to_dict() if full else {**found.brief(), **relations()},
        frame=lambda: frame,
    )
    if form == "csv" and len(failures := found.failures):
        reason = failures["failure"].iloc[0]
        note(f"{len(failures)} of {len(found.cases)} edits were not made, the first because: {reason}")


def draw(model: Model, facts: list[Fact], found: Scores | Sweep | Decay, path: Path, options: dict[str, Any]) -> None:
    """The library's figure, with the trace of the facts beside a sweep where that was asked for."""
    from ..evaluation.series import Sweep

    if not isinstance(found, Sweep):
        save_axes([found.plot], path)
    elif options["traced"]:
        with Progress() as bars:
            traces = fm.tracing.trace_facts(
                model, facts, kinds=("state", "ffn"), seed=options["seed"], progress=bars.report
            )
        save_axes([partial(found.plot, traces)], path)
    else:
        save_axes([partial(found.plot, None)], path)
