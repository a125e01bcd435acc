"""``ffnmem report``: the answer to a prompt on one page, or neurons of a store as a page or a table."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import click

import ffnmem as fm

from ..core.errors import InputError
from .guard import Command, note
from .options import COUNT, ModelChoice, answer_options, bos_option, given, model_options, text, top_option
from .progress import late_bar
from .project import read_neurons

if TYPE_CHECKING:
    import pandas as pd

    from ..scanning.store import Store

MEASURES = ("firing_rate", "kurtosis", "max")
OF_STORES = {"neurons", "layer", "top_by"}
OF_BOTH = {"prompt", "store", "out", "show", "help"}


@click.command(cls=Command, short_help="Which memories wrote an answer, or what a scan found, as a file.")
@click.argument("prompt", type=text, required=False)
@click.option("--store", type=text, metavar="DIR", help="Report neurons of this store instead of a prompt.")
@click.option("--neurons", type=text, metavar="LIST", help="With --store: these, such as 0.18,3.17.")
@click.option("--layer", type=int, metavar="LAYER", help="With --store: this layer's; -1 is the last.")
@click.option(
    "--top-by",
    type=(click.Choice(MEASURES), COUNT),
    metavar="MEASURE N",
    help="With --store: the N neurons, of all layers or of --layer, with the highest firing_rate, kurtosis or max.",
)
@click.option(
    "-o",
    "--out",
    type=text,
    metavar="FILE",
    help="The file to write, in a folder that exists; an older one is replaced. A prompt's is a page; that of neurons "
    "is what its suffix says: .html, .md, .csv or .parquet.  [default: report.html; neurons.html with --store]",
)
@answer_options
@top_option("How many memories to list.")
@click.option(
    "--tokens",
    type=COUNT,
    default=8,
    show_default=True,
    metavar="N",
    help="How many promoted and suppressed tokens to show for each memory.",
)
@click.option("--open", "show", is_flag=True, help="Open the page in the browser.")
@bos_option
@model_options
@click.pass_context
def report(
    context: click.Context,
    prompt: str | None,
    store: str | None,
    neurons: str | None,
    layer: int | None,
    top_by: tuple[str, int] | None,
    out: str | None,
    target: str | int | None,
    foil: str | int | None,
    first_token: bool,
    position: int,
    top: int,
    tokens: int,
    show: bool,
    choice: ModelChoice,
) -> None:
    """Write a page on which memories made the model answer PROMPT, or on neurons of a store; print its path.

    Of a prompt, one HTML file that needs no network: its tokens, the model's top predictions, a map of the FFNs by
    layer and position, the top memories in tokens, and the components that sum to the logit.

    Of a store, cards of neurons as such a page or as Markdown (at most 500 neurons), or all their examples with their
    texts as CSV or Parquet (any number).

    \b
    Examples
      ffnmem report "The Eiffel Tower is located in the city of" -o eiffel.html
      ffnmem report "The capital of Italy is" --target " Rome" --open
      ffnmem report --store runs/atlas --neurons 0.18,3.17 -o neurons.html
      ffnmem report --store runs/atlas --layer 3 --top-by kurtosis 5 -o peaked.md
    """
    check_options(context)
    if store is not None:
        path = report_neurons(store, neurons, layer, top_by, "neurons.html" if out is None else out)
    else:
        assert prompt is not None
        path = fm.report(
            choice.load(),
            prompt,
            target=target,
            foil=foil,
            out="report.html" if out is None else out,
            top=top,
            tokens=tokens,
            position=position,
            first_token=first_token,
        )
    click.echo(path)
    if show and not webbrowser.open(Path(path).resolve().as_uri()):
        note(f"no browser could be opened here: open {path} in one")


def check_options(context: click.Context) -> None:
    """Raise InputError unless there is a prompt or a store, and only options that do something with it."""
    of_store = context.params["store"] is not None
    if of_store == (context.params["prompt"] is not None):
        raise InputError(
            "PROMPT and --store exclude each other: give one of them"
            if of_store
            else "nothing to report: give a PROMPT, or --store DIR and its --neurons"
        )
    for name, parameter in given(context).items():
        if name not in OF_BOTH and (name in OF_STORES) != of_store:
            raise InputError(
                f"{parameter.opts[0]} does not go with {'--store' if of_store else 'a PROMPT'}: leave it out"
            )


def report_neurons(
    folder: str, neurons: str | None, layer: int | None, top_by: tuple[str, int] | None, out: str
) -> Path:
    """The report of the neurons chosen, with a bar on standard error where it takes long."""
    from ..pages.neuron_pages import neurons as neuron_report
    from ..scanning.store import open_store

    if (neurons is None) == (layer is None and top_by is None):
        raise InputError("which neurons: give --neurons LIST, or --layer LAYER and --top-by MEASURE N, or one of these")
    store = open_store(folder)
    chosen = read_neurons([neurons]) if neurons is not None else choose(store, layer, top_by)
    with late_bar() as progress:
        return neuron_report(store, chosen, out, progress=progress)


def choose(store: Store, layer: int | None, top_by: tuple[str, int] | None) -> pd.DataFrame:
    """Rows of the store's stats: a layer's in order, or those with the highest measure first."""
    rows = store.stats(layer)
    if top_by is None:
        return rows
    measure, count = top_by
    return rows.dropna(subset=measure).sort_values(measure, ascending=False, kind="stable").head(count)
