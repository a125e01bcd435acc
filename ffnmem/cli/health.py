"""``ffnmem health``: which neurons never fire, which pass no gradient, and how much of it each one carries."""

from __future__ import annotations

from functools import partial

import click

from ..errors import InputError
from ..show.records import emit
from .figure import check_figure, save_axes
from .guard import Command
from .options import (
    COUNT,
    ModelChoice,
    bos_option,
    column_option,
    documents_option,
    full_option,
    given,
    model_options,
    output_options,
    plot_option,
    seed_option,
    text,
    top_option,
)
from .progress import Progress


@click.command(cls=Command, short_help="Dead, stuck and saturated neurons, and the gradient that each carries.")
@click.argument("corpus", type=text, default="atlas")
@click.option(
    "--tokens",
    type=COUNT,
    default=20_000,
    show_default=True,
    metavar="N",
    help="Read whole sequences, drawn at random, until they hold so many tokens.",
)
@click.option("--all", "everything", is_flag=True, help="Read all of the corpus instead.")
@click.option(
    "--context",
    type=COUNT,
    metavar="N",
    help="The longest sequence in tokens, BOS included.  [default: 128, or what the model reads]",
)
@click.option(
    "--batch-tokens",
    type=COUNT,
    default=2048,
    show_default=True,
    metavar="N",
    help="Tokens of one pass; fewer need less memory.",
)
@click.option("--no-flow", is_flag=True, help="Leave the way back out: no gradients of the loss, half the time.")
@top_option("Neurons to list at each end.", 5)
@seed_option("Of the draw of sequences.")
@plot_option("shares by layer, and the gradient by neuron,")
@column_option
@documents_option
@bos_option
@model_options
@full_option
@output_options
@click.pass_context
def health(
    setting: click.Context,
    /,
    corpus: str,
    tokens: int,
    everything: bool,
    context: int | None,
    batch_tokens: int,
    no_flow: bool,
    top: int,
    seed: int,
    plot: str | None,
    column: str,
    documents: str | None,
    choice: ModelChoice,
    full: bool,
    form: str,
) -> None:
    """Read a sample of CORPUS, forward and back, and say how every neuron fares.

    dead: never fires. stuck: passes no gradient at any position read (|act'| < 0.01 at all), as every dead ReLU neuron;
    a dead GELU neuron need not be. saturated: in one regime at 99% of positions, flat (|act'| < 0.01) or linear
    (|act' - 1| < 0.01). dL/dpre: the mean size of the loss's gradient at the pre-activation, where the loss is summed
    over a sequence: nats for one unit at one position. half: the share of neurons that carries half of it.

    CORPUS is what ffnmem scan takes; default atlas, the corpus that comes with ffnmem.

    \b
    Examples
      ffnmem health atlas
      ffnmem health texts.jsonl --tokens 5000 --no-flow --top 10
      ffnmem health atlas --plot health.png
      ffnmem health atlas --csv > neurons.csv

    --csv has one row a neuron: layer, neuron, fires, dead, local_gradient, flat, linear, stuck, saturated, and
    without --no-flow flow_coefficient, flow_pre and both with _rms. --json has the layers, the neurons listed (with
    --full all) and where the numbers come from.
    """
    if everything and "tokens" in given(setting):
        raise InputError("--all reads everything: leave --tokens out")
    if form == "csv" and "top" in given(setting):
        raise InputError("--csv has every neuron: leave --top out")
    figure = None if plot is None else check_figure(plot)
    model = choice.load()
    from ..health import neuron_health

    with Progress() as bars:
        found = neuron_health(
            model,
            corpus,
            tokens=None if everything else tokens,
            context=context,
            batch_tokens=batch_tokens,
            prepend_bos=choice.prepend_bos,
            flow=not no_flow,
            seed=seed,
            text=column,
            documents=documents,
            progress=bars.report,
        )
    emit(found, form, sheet=lambda: found.sheet(top), data=lambda: found.to_dict(None if full else top))
    if figure is not None:
        from ..health_plots import plot_health

        save_axes([partial(plot_health, found, what) for what in ("shares", "flow")[: 1 + found.flow]], figure)
