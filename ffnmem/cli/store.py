"""``ffnmem store``: what a scan left."""

from __future__ import annotations

from functools import partial

import click

from ..show.records import emit
from .figure import check_figure
from .guard import Command
from .options import output_options, plot_option, text


@click.command(cls=Command, short_help="What a store holds: settings, dead neurons, firing rates by layer.")
@click.argument("folder", type=text, metavar="STORE")
@click.option("--check", is_flag=True, help="Read every file whole and check it first; what is damaged is named.")
@plot_option("the firing rates and the dead neurons by layer")
@output_options
def store(folder: str, check: bool, plot: str | None, form: str) -> None:
    """Describe STORE, the folder of a scan: what was scanned, how, and how often the neurons of each layer fire.

    A neuron fires at a token where its pre-activation is above 0; dead is one that never did. Firing rates are given as
    quantiles over a layer's neurons: half of them fire at fewer tokens than the median. A gated neuron's pre-activation
    is its gate's: a dead one may still write a little, with either sign; and how often each of the four cases of signs
    of gate and linear part occurs is told as a mean over all neurons.

    \b
    Examples
      ffnmem store runs/atlas
      ffnmem store runs/atlas --check --plot layers.png
      ffnmem store runs/atlas --csv

    --csv has one row a layer: layer, neurons, dead, firing_rate_5, firing_rate_25, firing_rate_50, firing_rate_75,
    firing_rate_95. --json has these and all else.
    """
    from ..scanning import open_store

    figure = None if plot is None else check_figure(plot)
    found = open_store(folder)
    if check:
        found.verify()
    emit(found, form, sheet=lambda: found.sheet(checked=check), data=lambda: found.to_dict(checked=check))
    if figure is not None:
        from ..store_plots import plot_dead, plot_firing_rates
        from .figure import save_axes

        save_axes([partial(plot_firing_rates, found), partial(plot_dead, found)], figure)
