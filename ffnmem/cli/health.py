"""``ffnmem health``: which neurons never fire, which pass no gradient, and how much of it each one carries."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from ..errors import InputError
from ..show.records import print_csv, print_json
from ..show.terminal import captioned, console, decimals, number, percent, plain_table, provenance_line
from .figure import check_figure, save_axes
from .guard import Command
from .options import (
    COUNT,
    ModelChoice,
    bos_option,
    column_option,
    documents_option,
    given,
    model_options,
    output_options,
    plot_option,
    seed_option,
    text,
    top_option,
)
from .progress import Progress

if TYPE_CHECKING:
    from rich.table import Table

    from ..health import NeuronHealth


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
    without --no-flow flow_coefficient, flow_pre and both with _rms. --json has the layers, the neurons listed and
    where the numbers come from.
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
    if form == "csv":
        print_csv(list(found.neurons.columns), found.neurons.to_dict("records"))
    elif form == "json":
        print_json(described(found, top))
    else:
        print_health(found, top)
    if figure is not None:
        from ..health_plots import plot_health

        save_axes([partial(plot_health, found, what) for what in ("shares", "flow")[: 1 + found.flow]], figure)


def described(found: NeuronHealth, top: int) -> dict[str, Any]:
    """The layers and the listed neurons as plain values."""
    tables = {"layers": found.layers, "neurons": found.extremes(top)}
    return {**{name: frame.to_dict("records") for name, frame in tables.items()}, **found.about()}


def print_health(found: NeuronHealth, top: int) -> None:
    out = console()
    for part in (layer_table(found), neuron_table(found, top)):
        out.print(part)
        out.print()
    provenance = found.provenance.as_dict()
    hidden = ("tolerance", "saturated", "batch_tokens", "corpus_hash")
    out.print(provenance_line({k: v for k, v in provenance.items() if k not in hidden}, out.width))


def layer_table(found: NeuronHealth) -> Table:
    """A row a layer."""
    names = ("fires", "dead", "stuck", "saturated", "act'", *(("dL/dpre", "half") if found.flow else ()))
    loss = "" if found.loss is None else f", loss {found.loss:.3f} nats"
    title = f"{len(found.neurons):,} neurons ({found.activation}) over {found.positions:,} positions{loss}"
    table = plain_table("layer", "neurons", *names, title=title)
    places = decimals(found.layers["flow_pre"], 3) if found.flow else 0
    for row in found.layers.to_dict("records"):
        table.add_row(
            str(row["layer"]),
            f"{row['neurons']:,}",
            *(percent(row[name]) for name in ("fires", "dead", "stuck", "saturated")),
            number(row["local_gradient"], 3, sign=True),
            *((number(row["flow_pre"], places), percent(row["half_flow"])) if found.flow else ()),
        )
    flow = "; half: neurons that carry half of dL/dpre" if found.flow else ""
    return captioned(table, f"fires, act': means over neurons; dead, stuck, saturated: shares of neurons{flow}")


def flags_of(row: dict[str, Any]) -> list[str]:
    """What a neuron is; that a stuck one is saturated too goes without saying."""
    return [flag for flag in ("dead", "stuck", "saturated") if row[flag] and not (flag == "saturated" and row["stuck"])]


def neuron_table(found: NeuronHealth, top: int) -> Table:
    """The neurons at both ends."""
    rows = found.extremes(top).to_dict("records")
    columns = ("dL/dpre",) if found.flow else ()
    table = plain_table(
        "ends", "neuron", "fires", "flat", "linear", "act'", *columns, "is", left=["ends"], wraps=["is"]
    )
    places = decimals((row["flow_pre"] for row in rows), 3) + 1 if found.flow else 0
    previous = None
    for row in rows:
        first, previous = row["kind"] != previous, row["kind"]
        table.add_row(
            previous if first else "",
            f"{row['layer']}.{row['neuron']}",
            *(percent(row[name]) for name in ("fires", "flat", "linear")),
            number(row["local_gradient"], 3, sign=True),
            *((number(row["flow_pre"], places),) if found.flow else ()),
            Text(", ".join(flags_of(row))),
        )
    return table
