"""``ffnmem neuron``: a neuron's card."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import ffnmem as fm

from ..core.defaults import CASE_SHOWN, EXAMPLES_SHOWN
from ..core.errors import FfnmemError, InputError
from ..core.files import check_destination
from ..core.sheets import Origin, Sheet, join_sheets
from ..core.types import CASES, EXAMPLE_KINDS, LOGIT, SEARCHED
from ..show.records import emit
from . import click_options as options
from .click_guard import Command
from .click_options import COUNT, PAGE, argument, file_to_write, option, read_neurons, refuse
from .figures import save_axes
from .progress import late_bar

if TYPE_CHECKING:
    import pandas as pd

    from ..scanning.store import Store


@click.command(cls=Command, short_help="What fires a neuron, how often, how strongly, and what it writes.")
@argument("store", metavar="STORE")
@argument("neurons", nargs=-1, metavar="[NEURON]...")
@option(
    "--kind",
    "kinds",
    type=click.Choice((*EXAMPLE_KINDS, *CASES)),
    metavar="KIND",
    multiple=True,
    help='Which examples: "top" or "bottom" for the largest or smallest coefficients, "quantile" for random sequences '
    'by quantile, "random" for random positions, or a sign case of a gated neuron, such as "gate+ linear-"; give it '
    "several times for several.  [default: top, or the four cases of a gated neuron, and quantile]",
)
@option(
    "--top",
    type=COUNT,
    metavar="N",
    help=f"How many examples of each kind, and of each quantile band; or rows of a search.  [default: "
    f"{EXAMPLES_SHOWN}, {CASE_SHOWN} a case and 3 a band; with --full and --csv all that the store keeps]",
)
@option(
    "--context",
    type=click.IntRange(min=0),
    default=12,
    metavar="N",
    help="How many tokens of text on each side of an example.",
)
@option(
    "--html",
    callback=file_to_write(PAGE),
    metavar="FILE",
    help="Write the cards as a page into FILE instead, and print its path.",
)
@option(
    "--shade/--no-shade",
    is_flag=True,
    default=None,
    help="Shade every token of the examples by the neuron's coefficient there, which the model computes; in a terminal "
    "by colour, --json has the numbers.  [default: on a page of at most 20 neurons]",
)
@options.lens
@options.plot("the histograms of the coefficients")
@option("--search", metavar="TEXT", help="List the neurons whose tokens contain TEXT, in any case.")
@option(
    "--where",
    type=click.Choice(SEARCHED),
    default="weights",
    help="Where to search: in the tokens that values promote and suppress (of gated neurons also in those that keys "
    "and gates read), or in those at which neurons fire.",
)
@option(
    "--model",
    "model_name",
    metavar="MODEL",
    help="The model that was scanned, if it is no longer where it was, for a store without the tokens that values "
    "promote.  [default: by the store's record]",
)
@options.output
@options.full
@click.pass_context
def neuron(
    call: click.Context,
    /,
    store: str,
    neurons: tuple[str, ...],
    kinds: tuple[str, ...],
    top: int | None,
    context: int,
    html: str | None,
    shade: bool | None,
    lens: str,
    plot: Path | None,
    search: str | None,
    where: str,
    model_name: str | None,
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
    check_options(call, form)
    from ..scanning.neuron import kinds_shown
    from ..scanning.searching import Found

    if search is not None:
        scanned = opened(store, model_name) if where == "weights" else fm.open_store(store)
        limit = top if top is not None or form != "table" else EXAMPLES_SHOWN
        with late_bar() as report:
            hits = scanned.search(search, where=where, progress=report, **({} if limit is None else {"limit": limit}))
        emit(Found(search, where, hits, scanned.provenance), form)
        return
    asked = read_neurons(neurons)
    if html is not None and not html.lower().endswith(".html"):
        raise InputError(f"--html {html}: a page's name ends in .html")
    page = None if html is None else check_destination(html)
    scanned = opened(store, model_name, bool(shade) or lens != LOGIT or (page is not None and shade is None))
    places = [scanned.index(layer, column) for layer, column in asked]  # refuse all before reading any
    kinds = tuple(scanned.check_kinds(kinds or kinds_shown(scanned)))
    if page is not None:
        with late_bar() as report:
            fm.pages.neurons(
                scanned, places, page, kind=kinds, k=top, context=context, shade=shade, lens=lens, progress=report
            )
        click.echo(page)
    else:
        found = [scanned.neuron(*place, kind=kinds, k=top, context=context, lens=lens) for place in places]
        if shade:
            with late_bar() as report:
                found = scanned.shaded(found, top, progress=report)
        emit_several(
            form,
            scanned.provenance,
            sheets=lambda: (one.sheet(top, origin=False) for one in found),
            values=lambda: (one.to_dict(top, full=full) for one in found),
            frames=lambda: (one.to_frame() for one in found),
        )
    if plot is not None:
        draws = [partial(fm.plots.histogram, scanned.neuron(*place, kind="top", k=1)) for place in places]
        save_axes(draws, plot)


def opened(folder: str, model_name: str | None = None, needed: bool = False) -> Store:
    """A store, with its model where that is ``needed`` or the store has no table of what values write: the one named,
    else by the store's record; a card says so if that cannot be loaded."""
    store = fm.open_store(folder)
    if model_name is None and store.projected and not needed:
        return store
    try:
        return fm.open_store(folder, model=options.scanned_model(store, model_name).load())
    except FfnmemError:
        if model_name is not None:
            raise
        return store


def check_options(call: click.Context, form: str) -> None:
    """Raise InputError unless there are neurons or a search, and only options that do something with them."""
    values = call.params
    if values["search"] is None and not values["neurons"] and re.fullmatch(r"[L\d.N,]+", values["store"]):
        raise InputError(f"the store comes first: ffnmem neuron STORE {values['store']}")
    if (values["search"] is None) == (not values["neurons"]):
        raise InputError("name neurons, such as 3.17, or give --search TEXT: one of the two")
    if values["html"] is not None and form != "table":
        raise InputError(f"--html and --{form} exclude each other: give one of them")
    if values["search"] is None:
        refuse(call, ("where",), "NEURON")
    else:
        refuse(call, ("kinds", "context", "html", "shade", "lens", "plot"), "--search")
    if values["shade"] and form == "csv":
        raise InputError("--shade does not go with --csv, which has a row an example: --json has every token of them")


def emit_several(
    form: str,
    provenance: dict[str, Any],
    *,
    sheets: Callable[[], Iterable[Sheet]],
    values: Callable[[], Iterable[dict[str, Any]]],
    frames: Callable[[], Iterable[pd.DataFrame]],
    origin: dict[str, Any] | None = None,
) -> None:
    """Results of neurons of one store, on standard output one after another, with their provenance once.

    ``origin`` is what a table says of the provenance, if not all.
    """

    def frame() -> pd.DataFrame:
        import pandas as pd

        return pd.concat(frames())

    emit(
        None,
        form,
        sheet=lambda: join_sheets(sheets(), Origin(provenance if origin is None else origin)),
        data=lambda: {
            "neurons": [{k: v for k, v in one.items() if k != "provenance"} for one in values()],
            "provenance": provenance,
        },
        frame=frame,
    )
