"""``ffnmem trace``: where in a model, and at which token, a fact is recalled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import ffnmem as fm

from ..core.choices import TRACE_KINDS, TRACE_PARTS, TRACE_SAMPLES
from ..core.errors import InputError
from ..facts.listing import choose_facts
from ..show.records import emit
from .figures import check_figure, write_figure
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
from .progress import Progress, late_bar

if TYPE_CHECKING:
    from ..tracing.traces import Trace, Traces

OF_ONE = ("subject", "known")
OF_MANY = ("relation", "limit", "out")


@click.command(cls=Command, short_help="Where a fact is recalled: causal tracing of one, or of many.")
@click.argument("prompt", type=text, required=False)
@click.option("--subject", type=text, metavar="TEXT", help="What the prompt is about: the words that noise hides.")
@click.option(
    "--target",
    "known",
    type=text,
    metavar="TEXT",
    help="What is true; the trace is refused if the model says something else.  [default: whatever the model says]",
)
@click.option("--facts", "source", type=text, metavar="SOURCE", help="Trace facts: atlas, or a file of them.")
@click.option("--relation", type=text, metavar="NAME", help="With --facts: of this relation, or of all that begin so.")
@click.option("--limit", type=COUNT, metavar="N", help="With --facts: at most N, drawn with the seed.  [default: all]")
@click.option(
    "-o", "--out", type=text, metavar="DIR", help="With --facts: keep each result there; the same call goes on with it."
)
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(TRACE_KINDS),
    multiple=True,
    default=TRACE_KINDS,
    metavar="KIND",
    help="What is restored: state, ffn or attention (repeatable).  [default: all]",
)
@click.option(
    "--severed",
    type=click.Choice(TRACE_PARTS),
    multiple=True,
    metavar="PART",
    help="Also states whose later ffn or attention is kept as it was corrupted (repeatable).",
)
@click.option(
    "--window",
    type=COUNT,
    metavar="N",
    help="Layers whose FFN or attention is restored at once.  [default: 10 of every 48, at least 3]",
)
@click.option("--samples", type=COUNT, default=TRACE_SAMPLES, show_default=True, metavar="N", help="Runs with noise.")
@click.option(
    "--noise",
    type=float,
    metavar="SIGMA",
    help="Its standard deviation.  [default: three times that of the subjects' embeddings]",
)
@seed_option("Of the noise.")
@plot_option("a heat map for each kind (with --facts, the means by layer)")
@bos_option
@model_options
@full_option
@output_options
@click.pass_context
def trace(
    context: click.Context,
    /,
    prompt: str | None,
    subject: str | None,
    known: str | None,
    source: str | None,
    relation: str | None,
    limit: int | None,
    out: str | None,
    kinds: tuple[str, ...],
    severed: tuple[str, ...],
    plot: str | None,
    choice: ModelChoice,
    full: bool,
    form: str,
    **settings: Any,
) -> None:
    """Hide a subject with noise, put one clean output back, and see how much of the answer returns: where it is
    recalled.

    PROMPT is a text that ends where the answer begins. The table shades each layer by the indirect effect: how much
    likelier the answer is for the output restored there. With --facts, the effects of many facts are averaged by where
    a token stands towards the subject; those that the model does not know are skipped, and counted.

    \b
    Examples
      ffnmem trace "The Eiffel Tower is located in the city of" \\
          --subject "Eiffel Tower" --plot eiffel.png
      ffnmem trace "The capital of France is" --subject France \\
          --target Paris --kind ffn --window 1 --samples 3
      ffnmem trace --facts atlas --relation landmark.city --limit 3 --samples 2

    --csv has a row a cell: kind, layer, position, token, score, indirect; with --facts a row a group: kind, group,
    layer, mean, low, high, n. --json has the best layers, the probabilities and the provenance; with --full every cell.
    """
    check_options(context)
    path = None if plot is None else check_figure(plot)
    chosen = {"kinds": kinds, "severed": severed, **settings}
    if source is None:
        assert prompt is not None
        model = choice.load()
        with late_bar() as report:
            found: Trace | Traces = fm.trace_fact(model, prompt, subject, target=known, progress=report, **chosen)
    else:
        facts = choose_facts(source, relation=relation, limit=limit, seed=settings["seed"])
        model = choice.load()
        with Progress() as bars:
            found = fm.tracing.trace_facts(model, facts, out=out, progress=bars.report, **chosen)
    emit(found, form, full=full)
    if path is not None:
        draw(found, path)


def check_options(context: click.Context) -> None:
    """Raise InputError unless there is a prompt or a source of facts, and only options that go with it."""
    values = context.params
    many = values["source"] is not None
    if many == (values["prompt"] is not None):
        raise InputError(
            "PROMPT and --facts exclude each other: give one of them"
            if many
            else "nothing to trace: give a PROMPT and its --subject, or --facts SOURCE"
        )
    for name, parameter in given(context).items():
        if name in (OF_ONE if many else OF_MANY):
            raise InputError(f"{parameter.opts[-1]} does not go with {'--facts' if many else 'a PROMPT'}: leave it out")
    if not many and values["subject"] is None:
        raise InputError("--subject is missing: say which words of the prompt to hide")


def draw(found: Trace | Traces, path: Path) -> None:
    """The library's figure, written whole; raises InputError where nothing was traced."""
    from ..plots.tracing import figure_of  # needs matplotlib

    write_figure(figure_of(found), path)
    note(f"wrote {path}")
