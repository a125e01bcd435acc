"""``ffnmem store``: what a scan left."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from ..show.records import print_csv, print_json
from ..show.terminal import console, labelled, percent, plain_table, provenance_line, user_text
from .figure import check_figure
from .guard import Command
from .options import output_options, plot_option, text

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from ..scanning import Store


@click.command(cls=Command, short_help="What a store holds: settings, dead neurons, firing rates by layer.")
@click.argument("folder", type=text, metavar="DIR")
@click.option("--check", is_flag=True, help="Read every file whole and check it first; what is damaged is named.")
@plot_option("the firing rates and the dead neurons by layer")
@output_options
def store(folder: str, check: bool, plot: str | None, form: str) -> None:
    """Describe the store in DIR: what was scanned, how, and how often the neurons of each layer fire.

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
    from ..reports.summary import layer_summary
    from ..scanning import open_store

    figure = None if plot is None else check_figure(plot)
    found = open_store(folder)
    if check:
        found.verify()
    layers = layer_summary(found)
    if form == "csv":
        print_csv(list(layers.columns), layers.to_dict("records"))
    elif form == "json":
        print_json(described(found, layers, check))
    else:
        print_store(found, layers, check)
    if figure is not None:
        from ..store_plots import plot_dead, plot_firing_rates
        from .figure import save_axes

        save_axes([partial(plot_firing_rates, found), partial(plot_dead, found)], figure)


def described(found: Store, layers: pd.DataFrame, checked: bool) -> dict[str, Any]:
    """The store as plain values."""
    return {
        "folder": str(found.folder),
        "model": found.model,
        "fingerprint": found.fingerprint,
        "complete": found.complete,
        "checked": checked,
        "tokens": found.n_tokens,
        "sequences": found.manifest["sequences"],
        "corpus": found.manifest["corpus"],
        "problems": [{**problem.as_dict(), "meaning": problem.meaning} for problem in found.corpus.problems],
        "settings": found.settings.as_dict(),
        "layers": layers.to_dict("records"),
        **({"cases": case_shares(found)} if found.gated else {}),
        "provenance": found.provenance,
    }


def case_shares(found: Store) -> dict[str, float]:
    """The share of positions of each sign case, the mean over all gated neurons."""
    from ..scanning.cases import CASES, COLUMNS

    stats = found.stats()
    return {case: float(stats[f"share_{column}"].mean()) for case, column in zip(CASES, COLUMNS, strict=True)}


def print_store(found: Store, layers: pd.DataFrame, checked: bool) -> None:
    from ..reports.summary import facts

    out = console()
    dead, neurons = int(layers["dead"].sum()), int(layers["neurons"].sum())
    rows = {
        "store": user_text(str(found.folder)),
        **{name: user_text(value) for name, value in facts(found).items()},
        "dead": Text(f"{dead:,} of {neurons:,} neurons never fired"),
        "files": Text("all read and checked" if checked else "sizes and tables checked; --check reads everything"),
    }
    if found.gated:
        rows["cases"] = Text(", ".join(f"{case} {percent(share)}" for case, share in case_shares(found).items()))
    problems = found.corpus.problems
    if not problems:
        rows["problems"] = Text("none in the corpus")
    out.print(labelled(rows))
    out.print()
    out.print(layer_table(layers))
    if problems:
        table = plain_table("problem", "count", "first", "meaning", left=["problem"], wraps=["first", "meaning"])
        for problem in problems:
            table.add_row(problem.kind, f"{problem.count:,}", user_text(problem.first), user_text(problem.meaning))
        out.print()
        out.print(table)
    out.print()
    out.print(provenance_line(found.provenance, out.width))


def layer_table(layers: pd.DataFrame) -> Table:
    """Dead neurons and quantiles of the firing rates."""
    from ..reports.summary import QUANTILES, RATES

    names = ["median" if q == 0.5 else f"{q:.0%}" for q in QUANTILES]
    table = plain_table("layer", "neurons", "dead", *names, title="firing rate: quantiles over a layer's neurons")
    for row in layers.to_dict("records"):
        rates = [percent(row[name]) for name in RATES]
        table.add_row(str(row["layer"]), f"{row['neurons']:,}", f"{row['dead']:,}", *rates)
    return table
