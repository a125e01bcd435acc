"""``ffnmem trace``: where in a model, and at which token, a fact is recalled."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import ffnmem as fm

from ..errors import InputError
from ..show.records import print_csv, print_json
from .facts import chosen_facts
from .figure import check_figure, write_figure
from .guard import Command, note
from .late_bar import late_bar
from .options import (
    COUNT,
    ModelChoice,
    bos_option,
    given,
    model_options,
    output_options,
    plot_option,
    seed_option,
    text,
)
from .progress import Progress

if TYPE_CHECKING:
    from ..facts import Fact
    from ..models import Model
    from ..tracing import Trace, Traces

KINDS = ("state", "ffn", "attention")  # as in ffnmem.tracing, which needs torch
PARTS = ("ffn", "attention")
SAMPLES = 10
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
    type=click.Choice(KINDS),
    multiple=True,
    default=KINDS,
    metavar="KIND",
    help="What is restored: state, ffn or attention (repeatable).  [default: all]",
)
@click.option(
    "--severed",
    type=click.Choice(PARTS),
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
@click.option("--samples", type=COUNT, default=SAMPLES, show_default=True, metavar="N", help="Runs with noise.")
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
    layer, mean, low, high, n. --json has these, the probabilities and the provenance.
    """
    check_options(context)
    path = None if plot is None else check_figure(plot)
    chosen = {"kinds": kinds, "severed": severed, **settings}
    if source is None:
        assert prompt is not None
        model = choice.load()
        with late_bar("trace") as report:
            found = fm.trace_fact(model, prompt, subject, target=known, progress=report, **chosen)
        show(found, form, path)
    else:
        facts = chosen_facts(source, relation, limit, settings["seed"])
        show(traced(choice.load(), facts, out, chosen), form, path)


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


def traced(model: Model, facts: list[Fact], out: str | None, chosen: dict[str, Any]) -> Traces:
    """The traces of many facts, with a bar."""
    with Progress() as bars:
        return fm.trace_facts(model, facts, out=out, progress=partial(bars.report, "traces"), **chosen)


def show(found: Trace | Traces, form: str, path: Path | None) -> None:
    """Cells of one fact, or means over many, in the form that was asked for."""
    from ..tracing import Trace
    from .trace_tables import print_trace, print_traces  # needs numpy

    if form == "csv":
        frame = found.to_frame() if isinstance(found, Trace) else found.groups
        print_csv(list(frame.columns), frame.to_dict("records"))
    elif form == "json":
        print_json(found.to_dict())
    elif isinstance(found, Trace):
        print_trace(found)
    else:
        print_traces(found)
    if path is not None:
        draw(found, path)


def draw(found: Trace | Traces, path: Path) -> None:
    """The library's figure, written whole; raises InputError where nothing was traced."""
    from matplotlib.figure import Figure

    from ..tracing import Trace
    from ..tracing_plots import overall, plot_trace, plot_traces

    kinds = found.kinds if isinstance(found, Trace) else found.traces[0].kinds if len(found) else ()
    rows = len(found.tokens) if isinstance(found, Trace) else 8
    figure = Figure(figsize=(2.2 + 3.2 * max(1, len(kinds)), min(1.9 + 0.27 * rows, 14)), layout="constrained")
    panels = list(figure.subplots(1, max(1, len(kinds)), squeeze=False, sharey=not isinstance(found, Trace))[0])
    if isinstance(found, Trace):
        plot_trace(found, axes=panels)
        overall(
            panels[0],
            f"What brings back {found.answer!r}: {found.clean:.1%} clean, {found.corrupted:.1%} with noise on *",
        )
    else:
        plot_traces(found, axes=panels)
        overall(panels[0], f"Where {len(found):,} facts are recalled in {found.provenance.model}")
    write_figure(figure, path)
    note(f"wrote {path}")
