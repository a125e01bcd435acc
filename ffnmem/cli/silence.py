"""``ffnmem silence``: what an answer cannot do without."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import ffnmem as fm

from ..core.errors import InputError
from ..core.types import TRACE_PARTS, KnownBy
from ..show.records import emit
from . import click_options as options
from .click_guard import Command
from .click_options import COUNT, ModelChoice, exclusive, option, refuse
from .fact_choice import WITH_FACTS, model_and_facts, with_facts
from .figures import save_figure
from .progress import Progress, late_bar

if TYPE_CHECKING:
    from ..tracing.silences import Silencing, Silencings


@click.command(cls=Command, short_help="What an answer loses where FFNs write nothing: by token and layer.")
@options.optional_prompt
@option("--subject", metavar="TEXT", help="What the prompt is about: its tokens are marked, and silenced together too.")
@options.known
@with_facts("Ask")
@option(
    "--kind",
    "kinds",
    type=click.Choice(TRACE_PARTS),
    multiple=True,
    default=("ffn",),
    metavar="KIND",
    help="What is silenced: ffn or attention (repeatable).  [default: ffn]",
)
@option(
    "--window",
    type=COUNT,
    metavar="N",
    help="Layers that are silenced at once.  [default: 10 of every 48, at least 3]",
)
@option("--mean", metavar="STORE", help="Silenced FFNs write what they write on the mean over STORE, not nothing.")
@option("-o", "--out", metavar="DIR", help="With --facts: keep each result there; the same call goes on with it.")
@options.seed("Of facts drawn.")
@options.plot("a heat map for each kind (with --facts, the means by layer)")
@options.bos
@options.model
@options.full
@options.output
@click.pass_context
def silence(
    context: click.Context,
    /,
    prompt: str | None,
    subject: str | None,
    known: str | None,
    source: str | None,
    relation: str | None,
    limit: int | None,
    known_only: bool,
    mean: str | None,
    seed: int,
    out: str | None,
    plot: Path | None,
    choice: ModelChoice,
    full: bool,
    form: str,
    **settings: Any,
) -> None:
    """Take away what FFNs write at one token, in a window of layers, and see how much of the answer is lost.

    PROMPT is a text that ends where the answer begins. A trace says which outputs are enough to bring an answer back;
    this says which it cannot do without. With --facts, the losses of many facts are averaged by where tokens stand
    towards the subject, and a group's tokens are silenced together; facts that the model does not know are skipped.

    \b
    Examples
      ffnmem silence "The Eiffel Tower is located in the city of" \\
          --subject "Eiffel Tower" --window 1 --plot eiffel.png
      ffnmem silence "The capital of France is" --subject France \\
          --kind ffn --kind attention
      ffnmem silence --facts atlas --known --limit 3

    --csv has a row a cell: kind, layer, place, positions, score, loss, share; with --facts a row a group: kind, group,
    layer, loss, low, high, share, share_low, share_high, n. --json has the worst layers, the probabilities and the
    provenance; with --full every cell.
    """
    nothing = "nothing to ask: give a PROMPT and its --subject, or --facts SOURCE"
    found: Silencing | Silencings
    if exclusive(prompt, source, "--facts", nothing):
        refuse(context, ("subject", "known", "chat"), "--facts")
        settings["mean"] = None if mean is None else fm.open_store(mean)
        known_by: KnownBy | None = "first" if known_only else None  # as the answer is read: its first token
        model, facts = model_and_facts(
            choice, str(source), relation=relation, limit=limit, seed=seed, known_by=known_by
        )
        with Progress() as bars:
            found = fm.tracing.silence_facts(model, facts, out=out, progress=bars.report, **settings)
    else:
        refuse(context, (*WITH_FACTS, "seed", "out"), "a PROMPT")
        if subject is None:
            raise InputError("--subject is missing: say which words of the prompt it is about")
        settings["mean"] = None if mean is None else fm.open_store(mean)
        model = choice.load()
        text = choice.asked(model, str(prompt))
        with late_bar() as report:
            found = fm.tracing.silence_fact(model, text, subject, target=known, progress=report, **settings)
    emit(found, form, full=full)
    if plot is not None:
        save_figure(found, plot)
