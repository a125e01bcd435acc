"""``ffnmem neuron``: a neuron's card."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import click

from ..core.choices import CASE_SHOWN, CASES, EXAMPLE_KINDS, EXAMPLES_SHOWN, SEARCHED
from ..core.errors import InputError
from ..core.files import check_destination
from ..core.sheets import Origin, together
from ..show.records import emit
from .figures import check_figure
from .guard import Command
from .options import COUNT, full_option, given, output_options, plot_option, store_argument, text
from .progress import late_bar
from .project import read_neurons


@click.command(cls=Command, short_help="What fires a neuron, how often, how strongly, and what it writes.")
@store_argument
@click.argument("neurons", type=text, nargs=-1, metavar="[NEURON]...")
@click.option(
    "--kind",
    "kinds",
    type=click.Choice((*EXAMPLE_KINDS, *CASES)),
    metavar="KIND",
    multiple=True,
    help='Which examples: "top" or "bottom" for the largest or smallest coefficients, "quantile" for random sequences '
    'by quantile, "random" for random positions, or a sign case of a gated neuron, such as "gate+ linear-"; give it '
    "several times for several.  [default: top, or the four cases of a gated neuron, and quantile]",
)
@click.option(
    "--top",
    type=COUNT,
    metavar="N",
    help=f"How many examples of each kind, and of each quantile band; or rows of a search.  [default: "
    f"{EXAMPLES_SHOWN}, {CASE_SHOWN} a case and 3 a band; with --full and --csv all that the store keeps]",
)
@click.option(
    "--context",
    type=click.IntRange(min=0),
    default=12,
    show_default=True,
    metavar="N",
    help="How many tokens of text on each side of an example.",
)
@click.option(
    "--html", type=text, metavar="FILE", help="Write the cards as a page into FILE instead, and print its path."
)
@plot_option("the histograms of the coefficients")
@click.option("--search", type=text, metavar="TEXT", help="List the neurons whose tokens contain TEXT, in any case.")
@click.option(
    "--where",
    type=click.Choice(SEARCHED),
    default="values",
    show_default=True,
    help="Where to search: in the tokens that values promote and suppress, or in those at which neurons fire.",
)
@output_options
@full_option
@click.pass_context
def neuron(
    setting: click.Context,
    store: str,
    neurons: tuple[str, ...],
    kinds: tuple[str, ...],
    top: int | None,
    context: int,
    html: str | None,
    plot: str | None,
    search: str | None,
    where: str,
    form: str,
    full: bool,
) -> None:
    """Show what a scan, which left STORE, found out about each NEURON, such as 3.17: layer 3, neuron 17.

    A card tells how often the neuron fires (its pre-activation is above 0), how its coefficient is distributed, which
    tokens its value promotes and suppresses, which frequent tokens excite it, and where in the corpus it fires. The
    largest coefficients alone mislead; the quantiles show what is typical.

    A gated neuron's coefficient is act(gate) times a linear part. Its card also tells which tokens its two keys read,
    and treats the four cases of signs (above 0, or not) of gate and linear part apart: the coefficient is positive
    where both agree, so its largest values mix two cases. Its pre-activation is its gate's.

    \b
    Examples
      ffnmem neuron runs/atlas 3.17
      ffnmem neuron runs/atlas 3.17 --kind bottom --kind random --top 5
      ffnmem neuron runs/atlas 3.17,0.18 --html neurons.html
      ffnmem neuron runs/atlas --search paris --where examples

    --csv has one row an example: layer, neuron, kind, rank, coefficient, sequence, position, token, context, extreme,
    band_low, band_high; of a gated neuron gate, linear and case too. --json has what the card shows; with --full all
    examples of these kinds, all bins of the histogram and all frequent tokens.
    """
    check_options(setting, form)
    if search is not None:
        find(store, search, where, EXAMPLES_SHOWN if top is None and form == "table" else top, form)
        return
    asked = read_neurons(neurons)
    if html is not None and not html.lower().endswith(".html"):
        raise InputError(f"--html {html}: a page's name ends in .html")
    figure, page = None if plot is None else check_figure(plot), None if html is None else check_destination(html)
    show(store, asked, kinds, top, context, page, figure, form, full)


def check_options(setting: click.Context, form: str) -> None:
    """Raise InputError unless there are neurons or a search, and only options that do something with them."""
    values = setting.params
    if values["search"] is None and not values["neurons"] and re.fullmatch(r"[L\d.N,]+", values["store"]):
        raise InputError(f"the store comes first: ffnmem neuron STORE {values['store']}")
    if (values["search"] is None) == (not values["neurons"]):
        raise InputError("name neurons, such as 3.17, or give --search TEXT: one of the two")
    if values["html"] is not None and form != "table":
        raise InputError(f"--html and --{form} exclude each other: give one of them")
    idle = ("where",) if values["search"] is None else ("kinds", "context", "html", "plot")
    for name, parameter in given(setting).items():
        if name in idle:
            partner = "NEURON" if values["search"] is None else "--search"
            raise InputError(f"{parameter.opts[0]} does not go with {partner}: leave it out")


def show(
    folder: str,
    asked: list[tuple[int, int]],
    kinds: tuple[str, ...],
    top: int | None,
    context: int,
    page: Path | None,
    figure: Path | None,
    form: str,
    full: bool,
) -> None:
    """The cards on a terminal, as data or as a page; and the figure."""
    from ..scanning.neuron import kinds_shown
    from ..scanning.store import open_store

    store = open_store(folder)
    places = [store.index(layer, column) for layer, column in asked]  # refuse all before reading any
    kinds = tuple(store.check_kinds(kinds or kinds_shown(store)))
    if page is None:
        import pandas as pd

        found = [store.neuron(*place, kind=kinds, k=top, context=context) for place in places]
        provenance = store.provenance
        emit(
            found[0],
            form,
            sheet=lambda: together((one.sheet(top, origin=False) for one in found), Origin(provenance)),
            data=lambda: {
                "neurons": [
                    {k: v for k, v in one.to_dict(top, full=full).items() if k != "provenance"} for one in found
                ],
                "provenance": provenance,
            },
            frame=lambda: pd.concat([one.to_frame() for one in found]),
        )
    else:
        from ..pages.neuron_pages import neurons

        with late_bar() as report:
            neurons(store, places, page, kind=kinds, k=top, context=context, progress=report)
        click.echo(page)
    if figure is not None:
        from ..plots.firing import histogram
        from .figures import save_axes

        save_axes([partial(histogram, store.neuron(*place, kind="top", k=1)) for place in places], figure)


def find(folder: str, search: str, where: str, limit: int | None, form: str) -> None:
    """Neurons by text."""
    from ..scanning.searching import Found
    from ..scanning.store import open_store

    store = open_store(folder)
    rows = store.search(search, where=where, **({} if limit is None else {"limit": limit}))
    emit(Found(search, where, rows, store.provenance), form)
