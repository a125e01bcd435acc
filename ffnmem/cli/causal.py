"""``ffnmem causal``: which firings an answer hangs on, and whether a few of them are enough."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

import ffnmem as fm

from ..core.errors import InputError
from ..core.types import CAUSAL_RULES
from ..show.records import emit
from . import click_options as options
from .click_guard import Command
from .click_options import ModelChoice, option, refuse
from .figures import save_axes, save_figure
from .progress import late_bar


@click.command(cls=Command, short_help="Which firings an answer hangs on, and how few are enough.")
@options.prompt
@options.answer
@option(
    "--rule",
    type=click.Choice(CAUSAL_RULES),
    help="gradient is best for the effect of single firings, relp for choosing a set, ig sums to the change of all.  "
    "[default: gradient; relp with --faithfulness and --minimal]",
)
@click.option("--follow-attention", is_flag=True, help="Of relp: follow attention patterns, in place of freezing them.")
@option("--mean", metavar="STORE", help="A firing's reference is its neuron's mean over STORE, in place of zero.")
@click.option(
    "--faithfulness",
    "curve",
    is_flag=True,
    help="Keep the largest firings, set all others to their reference, and print how much of the answer is left.",
)
@option(
    "--minimal",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SHARE",
    help="Look for the fewest firings that keep this share of the answer, such as .9.",
)
@click.option(
    "--recorded",
    is_flag=True,
    help="With --faithfulness or --minimal: kept firings stay as they were, whatever then stands below them.",
)
@options.seed("Of random sets.")
@options.top("How many firings to list.")
@options.plot("the map of layers and positions and the top firings (with --faithfulness, the curve)")
@options.bos
@options.model
@options.output
@click.pass_context
def causal(
    context: click.Context,
    /,
    prompt: str,
    rule: str | None,
    follow_attention: bool,
    mean: str | None,
    curve: bool,
    minimal: float | None,
    recorded: bool,
    seed: int,
    top: int,
    plot: Path | None,
    choice: ModelChoice,
    form: str,
    **answer: Any,
) -> None:
    """Say what the answer to PROMPT would lose without each firing of each neuron, all of them from one backward pass.

    A firing is a neuron at a position. "ablate" removes neurons one at a time, exactly; this tells about the same of
    all firings at once, later layers' reactions included, to first order. That can be wrong, even in sign: the firings
    listed are also removed one by one, exactly, at the cost of one run of PROMPT each (--top of them).

    \b
    Examples
      ffnmem causal "The Eiffel Tower is located in the city of" \\
          --target " Paris" --foil " Rome"
      ffnmem causal "The capital of France is" --rule relp --plot causal.png
      ffnmem causal "The capital of France is" --faithfulness
      ffnmem causal "The capital of France is" --minimal .9 --json

    --csv has the firings: layer, neuron, position, token, coefficient, score, exact, share; with --faithfulness the
    curve: size, share, faithfulness, completeness (what all others keep), random and its range; with --minimal the
    firings of the set: layer, neuron, position, token, without (what the set keeps without it; in a set too large to
    try each, worth in its place). --json has these and more.
    """
    if curve and minimal is not None:
        raise InputError("--faithfulness and --minimal exclude each other: give one of them")
    kept = curve or minimal is not None
    if not kept:
        refuse(context, ("recorded",), "scores alone")
    if not curve:
        refuse(context, ("seed",), "anything but --faithfulness")
    if minimal is not None:
        refuse(context, ("plot",), "--minimal")
    rule = rule or ("relp" if kept else "gradient")
    if rule != "relp":
        refuse(context, ("follow_attention",), f"--rule {rule}")
    model = choice.load()
    source = None if mean is None else fm.open_store(mean)
    capture = fm.capture(model, choice.asked(model, prompt))
    with late_bar() as report:
        scores = fm.causal_scores(
            capture, rule=rule, mean=source, frozen=not follow_attention, exact=0 if kept else top, progress=report,
            **answer,
        )  # fmt: skip
        if curve:
            found = fm.faithfulness(
                capture, firings=scores, mean=source, recorded=recorded, seed=seed, progress=report, **answer
            )
        elif minimal is not None:
            circuit = fm.minimal_circuit(
                capture,
                firings=scores,
                faithfulness=minimal,
                mean=source,
                recorded=recorded,
                progress=report,
                **answer,
            )
    if curve:
        emit(found, form)
    elif minimal is not None:
        emit(circuit, form, sheet=lambda: circuit.sheet(top))
    else:
        emit(
            scores,
            form,
            sheet=lambda: scores.sheet(top),
            data=lambda: scores.to_dict(top),
            frame=lambda: scores.top(top),
        )
    if plot is not None:
        if curve:
            save_axes([partial(fm.plots.faithfulness, found)], plot)
        else:
            save_figure(scores, plot, top)
