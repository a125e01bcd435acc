"""``ffnmem trace``: where in a model, and at which token, a fact is recalled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import ffnmem as fm

from ..core.defaults import TRACE_SAMPLES
from ..core.errors import InputError
from ..core.types import TRACE_KINDS, TRACE_PARTS, KnownBy
from ..show.records import emit
from . import click_options as options
from .click_guard import Command
from .click_options import COUNT, ModelChoice, exclusive, option, refuse
from .fact_choice import WITH_FACTS, model_and_facts, with_facts
from .figures import save_figure
from .progress import Progress, late_bar

if TYPE_CHECKING:
    from ..tracing.traces import Trace, Traces


@click.command(cls=Command, short_help="Where a fact is recalled: causal tracing of one, or of many.")
@options.optional_prompt
@option("--subject", metavar="TEXT", help="What the prompt is about: the words that noise hides.")
@option(
    "--target",
    "known",
    metavar="TEXT",
    help="What is true; the trace is refused if the model says something else.  [default: whatever the model says]",
)
@with_facts("Trace")
@option("-o", "--out", metavar="DIR", help="With --facts: keep each result there; the same call goes on with it.")
@option(
    "--kind",
    "kinds",
    type=click.Choice(TRACE_KINDS),
    multiple=True,
    default=TRACE_KINDS,
    metavar="KIND",
    help="What is restored: state, ffn or attention (repeatable).  [default: all]",
)
@option(
    "--severed",
    type=click.Choice(TRACE_PARTS),
    multiple=True,
    metavar="PART",
    help="Also states whose later ffn or attention is kept as it was corrupted (repeatable).",
)
@option(
    "--window",
    type=COUNT,
    metavar="N",
    help="Layers whose FFN or attention is restored at once.  [default: 10 of every 48, at least 3]",
)
@option("--samples", type=COUNT, default=TRACE_SAMPLES, metavar="N", help="Runs with noise.")
@option(
    "--noise",
    type=float,
    metavar="SIGMA",
    help="Its standard deviation.  [default: three times that of the subjects' embeddings]",
)
@options.seed("Of the noise, and of facts drawn.")
@options.plot("a heat map for each kind (with --facts, the means by layer)")
@options.bos
@options.model
@options.full
@options.output
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
    known_only: bool,
    out: str | None,
    plot: Path | None,
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
      ffnmem trace --facts atlas --known --limit 2 --samples 2 --severed ffn

    --csv has a row a cell: kind, layer, position, token, score, indirect; with --facts a row a group: kind, group,
    layer, mean, low, high, n. --json has the best layers, the probabilities and the provenance; with --full every cell.
    """
    nothing = "nothing to trace: give a PROMPT and its --subject, or --facts SOURCE"
    if exclusive(prompt, source, "--facts", nothing):
        refuse(context, ("subject", "known", "chat"), "--facts")
        known_by: KnownBy | None = "first" if known_only else None  # as a trace reads the answer: its first token
        model, facts = model_and_facts(
            choice, str(source), relation=relation, limit=limit, seed=settings["seed"], known_by=known_by
        )
        with Progress() as bars:
            found: Trace | Traces = fm.tracing.trace_facts(model, facts, out=out, progress=bars.report, **settings)
    else:
        refuse(context, (*WITH_FACTS, "out"), "a PROMPT")
        if subject is None:
            raise InputError("--subject is missing: say which words of the prompt to hide")
        model = choice.load()
        text = choice.asked(model, str(prompt))
        with late_bar() as report:
            found = fm.trace_fact(model, text, subject, target=known, progress=report, **settings)
    emit(found, form, full=full)
    if plot is not None:
        save_figure(found, plot)
