"""``ffnmem knockout``: where the position of an answer has to look."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import ffnmem as fm

from ..core.errors import InputError
from ..core.types import KnownBy
from ..show.records import emit
from . import click_options as options
from .click_guard import Command
from .click_options import COUNT, ModelChoice, exclusive, option, refuse
from .fact_choice import WITH_FACTS, model_and_facts, with_facts
from .figures import save_figure
from .progress import Progress, late_bar

if TYPE_CHECKING:
    from ..tracing.knockouts import Knockout, Knockouts


@click.command(cls=Command, short_help="What an answer loses where its position cannot look at a token: by layer.")
@options.optional_prompt
@option("--subject", metavar="TEXT", help="What the prompt is about: its tokens are marked, and blocked together too.")
@options.known
@with_facts("Ask")
@option(
    "--window",
    type=COUNT,
    metavar="N",
    help="Layers in which edges are blocked at once.  [default: 9 of every 48, at least 3]",
)
@option(
    "--at",
    "positions",
    type=int,
    multiple=True,
    metavar="POSITION",
    help="Block this position too, together with others so given (repeatable): 0 is the first token, -1 the last.",
)
@option("-o", "--out", metavar="DIR", help="With --facts: keep each result there; the same call goes on with it.")
@options.seed("Of facts drawn.")
@options.plot("a heat map (with --facts, the means by layer)")
@options.bos
@options.model
@options.full
@options.output
@click.pass_context
def knockout(
    context: click.Context,
    /,
    prompt: str | None,
    subject: str | None,
    known: str | None,
    source: str | None,
    relation: str | None,
    limit: int | None,
    known_only: bool,
    positions: tuple[int, ...],
    seed: int,
    out: str | None,
    plot: Path | None,
    choice: ModelChoice,
    full: bool,
    form: str,
    **settings: Any,
) -> None:
    """Block attention from the last token to one token, in a window of layers, and see how much of the answer is lost.

    PROMPT is a text that ends where the answer begins. What attention writes there goes on, of the tokens that are
    left. The share of the answer's probability that is lost says in which layers its position fetches something from
    where. With --facts, the shares of many facts are averaged by where tokens stand towards the subject, and a group's
    tokens are blocked together; facts that the model does not know are skipped.

    \b
    Examples
      ffnmem knockout "The Eiffel Tower is located in the city of" \\
          --subject "Eiffel Tower" --window 1 --plot eiffel.png
      ffnmem knockout "The capital of France is" --subject France \\
          --at 1 --at 2
      ffnmem knockout --facts atlas --known --limit 3

    --csv has a row a cell: kind, layer, place, positions, score, loss, share; with --facts a row a group: kind, group,
    layer, share, low, high, loss, n. --json has the worst layers, the probabilities and the provenance; with --full
    every cell.
    """
    nothing = "nothing to ask: give a PROMPT and its --subject, or --facts SOURCE"
    found: Knockout | Knockouts
    if exclusive(prompt, source, "--facts", nothing):
        refuse(context, ("subject", "known", "positions", "chat"), "--facts")
        known_by: KnownBy | None = "first" if known_only else None  # as the answer is read: its first token
        model, facts = model_and_facts(
            choice, str(source), relation=relation, limit=limit, seed=seed, known_by=known_by
        )
        with Progress() as bars:
            found = fm.tracing.knockout_facts(model, facts, out=out, progress=bars.report, **settings)
    else:
        refuse(context, (*WITH_FACTS, "seed", "out"), "a PROMPT")
        if subject is None:
            raise InputError("--subject is missing: say which words of the prompt it is about")
        settings["positions"] = positions or None
        model = choice.load()
        text = choice.asked(model, str(prompt))
        with late_bar() as report:
            found = fm.knockout(model, text, subject, target=known, progress=report, **settings)
    emit(found, form, full=full)
    if plot is not None:
        save_figure(found, plot)
