"""``ffnmem report``: the answer to a prompt on one page, or neurons of a store as a page or a table."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Any

import click

import ffnmem as fm

from ..core.errors import InputError
from ..core.types import LOGIT
from . import click_options as options
from .click_guard import Command, note
from .click_options import (
    CARDS,
    COUNT,
    EXAMPLES,
    PAGE,
    ModelChoice,
    exclusive,
    option,
    read_neurons,
    refuse,
)
from .neuron import opened
from .options import TABLE, check_replaceable
from .progress import late_bar

MEASURES = ("firing_rate", "kurtosis", "max")
OF_PROMPTS = (
    "chat",
    "site",
    "target",
    "foil",
    "first_token",
    "position",
    "top",
    "tokens",
    "prepend_bos",
    "name",
    "device",
    "dtype",
)
OF_OTHERS = (
    "prompt", "store", "neurons", "layer", "top_by", "every", "out", "shade", "lens", "show", *OF_PROMPTS
)  # fmt: skip


@click.command(cls=Command, short_help="Which memories wrote an answer, or what a scan found, as a file.")
@options.optional_prompt
@option(
    "--settings",
    metavar="FILE",
    help="Report what this TOML file asks for (prompts, neurons, facts, formats) into the folder that it names.",
)
@option("--store", metavar="DIR", help="Report neurons of this store instead of a prompt.")
@option("--neurons", metavar="LIST", help="With --store: these, such as 0.18,3.17.")
@option("--layer", type=options.LAYER, metavar="LAYER", help="With --store: this layer's; -1 is the last.")
@option(
    "--top-by",
    type=(click.Choice(MEASURES), COUNT),
    metavar="MEASURE N",
    help="With --store: the N neurons, of all layers or of --layer, with the highest firing_rate, kurtosis or max.",
)
@option(
    "--all", "every", is_flag=True, help="With --store: every neuron, as a site with a search, into the folder --out."
)
@options.site("names of neurons lead", "Of a PROMPT")
@option(
    "-o",
    "--out",
    metavar="FILE",
    help="The file to write, in a folder that exists; an older one is replaced. A prompt's is a page; that of neurons "
    "is what its suffix says: .html, .md, .csv or .parquet. With --all a folder, made if missing.  [default: "
    "report.html; neurons.html with --store; site with --all]",
)
@option(
    "--shade/--no-shade",
    is_flag=True,
    default=None,
    help="With --store: shade every token of a page's examples by the neuron's coefficient there, which the model "
    "computes.  [default: of at most 20 neurons]",
)
@options.lens
@options.answer
@options.top("How many memories to list.")
@option(
    "--tokens",
    type=COUNT,
    default=8,
    metavar="N",
    help="How many promoted and suppressed tokens to show for each memory.",
)
@option("--open", "show", is_flag=True, help="Open the page in the browser.")
@options.bos
@options.model
@click.pass_context
def report(
    context: click.Context,
    /,
    prompt: str | None,
    settings: str | None,
    store: str | None,
    neurons: str | None,
    layer: int | None,
    top_by: tuple[str, int] | None,
    every: bool,
    site: str | None,
    out: str | None,
    shade: bool | None,
    lens: str,
    show: bool,
    choice: ModelChoice,
    **page: Any,
) -> None:
    """Write a page on which memories made the model answer PROMPT, or on neurons of a store; print its path.

    Of a prompt, one HTML file that needs no network: its tokens, the model's top predictions, a map of the FFNs by
    layer and position, the top memories in tokens, and the components that sum to the logit.

    Of a store, cards of neurons as such a page or as Markdown (at most 500 neurons), or all their examples with their
    texts as CSV or Parquet (any number). With --all, a site: a page of every neuron and of every layer, and a search
    over all. It opens from disk, and goes on where it was stopped.

    With --settings, what a file asks for, such as one for every night: docs/guide/prompts.md has an example.

    \b
    Examples
      ffnmem report "The Eiffel Tower is located in the city of" -o eiffel.html
      ffnmem report "The capital of Italy is" --target " Rome" --open
      ffnmem report --store runs/atlas --neurons 0.18,3.17 -o neurons.html
      ffnmem report --store runs/atlas --layer 3 --top-by kurtosis 5 -o peaked.md
      ffnmem report --store runs/atlas --all -o site
      ffnmem report "The capital of Italy is" --site site -o italy.html
      ffnmem report --settings nightly.toml
    """
    path: str | Path
    if settings is not None:
        refuse(context, OF_OTHERS, "--settings")
        with late_bar() as progress:
            path = fm.pages.reports(settings, progress=progress)
        click.echo(path)
        return
    nothing = "nothing to report: give a PROMPT, or --store DIR and its --neurons, or --settings FILE"
    of_store = exclusive(prompt, store, "--store", nothing)
    if of_store:
        refuse(context, OF_PROMPTS, "--store")
        if every:
            refuse(context, ("neurons", "layer", "top_by", "shade", "lens"), "--all")
            path = report_all(str(store), "site" if out is None else out)
        else:
            path = report_neurons(
                str(store), neurons, layer, top_by, "neurons.html" if out is None else out, shade, lens
            )
    else:
        refuse(context, ("neurons", "layer", "top_by", "every", "shade"), "a PROMPT")
        out = "report.html" if out is None else out
        check_replaceable(out, PAGE)
        model = choice.load()
        path = fm.report(model, choice.asked(model, str(prompt)), out=out, lens=lens, site=site, **page)
    click.echo(path)
    if show and not webbrowser.open(Path(path).resolve().as_uri()):
        note(f"no browser could be opened here: open {path} in one")


def report_neurons(
    folder: str,
    neurons: str | None,
    layer: int | None,
    top_by: tuple[str, int] | None,
    out: str,
    shade: bool | None,
    lens: str,
) -> Path:
    """The report of the neurons chosen, with a bar on standard error where it takes long."""
    if (neurons is None) == (layer is None and top_by is None):
        raise InputError(
            "which neurons: give --neurons LIST, or --layer LAYER and --top-by MEASURE N, or one of these, or --all"
        )
    marks = {".html": PAGE, ".parquet": TABLE, ".md": CARDS, ".csv": EXAMPLES}
    check_replaceable(out, marks.get(Path(out).suffix.lower()))
    store = opened(folder, needed=lens != LOGIT or (shade is not False and Path(out).suffix.lower() == ".html"))
    chosen: Any
    if neurons is not None:
        chosen = read_neurons([neurons])
    else:
        chosen = store.stats(layer)
        if top_by is not None:
            measure, count = top_by
            chosen = chosen.dropna(subset=measure).sort_values(measure, ascending=False, kind="stable").head(count)
    with late_bar() as progress:
        return fm.pages.neurons(store, chosen, out, shade=shade, lens=lens, progress=progress)


def report_all(folder: str, out: str) -> Path:
    """The site of a store's neurons, with a bar on standard error where it takes long."""
    store = opened(folder)
    with late_bar() as progress:
        return fm.pages.site(store, out, progress=progress)
