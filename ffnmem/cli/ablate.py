"""``ffnmem ablate``: what the absence of neurons does to an answer, beside what attribution says."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

import ffnmem as fm

from ..core.errors import InputError
from ..show.records import emit
from . import click_options as options
from .click_guard import Command
from .click_options import ModelChoice, option, read_neurons
from .figures import save_axes
from .progress import late_bar

HOWS = ("zero", "mean")
ATTRIBUTIONS = ("direct", "paths", "integrated-gradients")


@click.command(cls=Command, short_help="What the absence of single neurons does to an answer.")
@options.prompt
@options.answer
@option(
    "--neurons",
    multiple=True,
    metavar="LAYER.NEURON",
    help="Which neurons, such as 3.17,4.2 (repeatable).  [default: those that attribution puts first]",
)
@options.top("How many neurons to remove, one at a time.")
@option(
    "--how",
    type=click.Choice(HOWS),
    default="zero",
    help="What a removed neuron's coefficient becomes: zero, or its mean over the prompt.",
)
@options.at
@option(
    "--attribution",
    type=click.Choice(ATTRIBUTIONS),
    default="direct",
    help="What puts neurons first: direct effects on the logit, paths from all positions through attention (which see "
    "what the subject's neurons wrote), or integrated-gradients of the probability.",
)
@options.plot("the total against the direct effects")
@options.bos
@options.model
@options.output
def ablate(
    prompt: str,
    neurons: tuple[str, ...],
    top: int,
    how: str,
    positions: tuple[int, ...],
    attribution: str,
    plot: Path | None,
    choice: ModelChoice,
    form: str,
    **answer: Any,
) -> None:
    """Remove neurons one at a time and see what becomes of an answer: the direct effect, and the total one.

    PROMPT is a text; the answer is the token that the model is to say next. The direct effect is what attribution
    says: the neuron's own write into the logit, all else frozen. The total effect is the logit with it minus the logit
    without it, later layers reacting. Where the two differ much, attribution alone misleads.

    \b
    Examples
      ffnmem ablate "The Eiffel Tower is located in the city of"
      ffnmem ablate "The Eiffel Tower is located in the city of" \\
          --target " Paris" --neurons 5.349,5.171 --how mean --at -1
      ffnmem ablate "The capital of France is" --attribution paths
      ffnmem ablate "The capital of France is" --top 64 --plot effects.png

    --csv has layer, neuron, coefficient (at the answer), direct, logit (the total effect), probability, loss,
    peak_position and peak (where the neuron fires most, and how strongly, which is what the table shows), and with
    integrated gradients attribution. Positive ones add to the answer; loss is what the neuron saves. --json has these
    and more.
    """
    from ..vocabulary.projections import promoted_tokens  # needs torch

    asked = read_neurons(neurons) if neurons else None
    gradients = attribution == "integrated-gradients"
    if gradients and answer["foil"] is not None:
        raise InputError("--foil does not go with integrated-gradients, which explain a probability: leave it out")
    model = choice.load()
    capture = fm.capture(model, choice.asked(model, prompt))
    attributed = None
    if gradients:
        del answer["foil"]
        attributed = fm.interventions.knowledge_neurons(capture, **answer).neurons
        if asked is None:
            asked = list(attributed[["layer", "neuron"]].head(top).itertuples(index=False, name=None))
    with late_bar() as report:
        found = fm.ablate(
            capture,
            neurons=asked,
            top=top,
            by="paths" if attribution == "paths" else "direct",
            how=how,
            positions=positions or None,
            progress=report,
            **answer,
        )
    table = found.neurons
    if attributed is not None:  # as a last column
        table = table.merge(attributed[["layer", "neuron", "attribution"]], on=["layer", "neuron"], how="left")
    emit(
        found,
        form,
        sheet=lambda: found.sheet(None, promoted=promoted_tokens(model, table, fired="peak"), attributed=table),
        data=lambda: {**found.to_dict(), "neurons": table.to_dict("records")},
        frame=lambda: table,
    )
    if plot is not None:
        save_axes([partial(fm.plots.ablation, found)], plot)
