"""``ffnmem roles``: what part each neuron plays."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

import ffnmem as fm

from ..errors import InputError
from ..show.records import print_csv, print_json
from ..show.terminal import captioned, console, plain_table, provenance_line, token_line
from .figure import check_figure
from .guard import Command
from .options import (
    BASES,
    COUNT,
    ModelChoice,
    model_options,
    output_options,
    plot_option,
    seed_option,
    text,
    top_option,
)
from .progress import Progress
from .tokens import PROMOTED, PROMOTES, promoted

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from rich.table import Table

    from ..models import Model

NAMES = (
    "dead",
    "position",
    "entropy",
    "token-frequency",
    "prediction",
    "suppression",
    "partition",
    "token-detector",
    "strengthening",
    "weakening",
)
NAME_WIDTH, COUNT_WIDTH = 18, 6  # columns of the table of counts


@click.command(cls=Command, short_help="What part each neuron plays: prediction, position, entropy, …")
@click.option("--store", "folder", type=text, metavar="DIR", help="A store of MODEL, for the roles that text shows.")
@click.option("--layer", type=int, metavar="LAYER", help="Only this layer; -1 is the last.  [default: all]")
@click.option(
    "--role", type=click.Choice(NAMES), metavar="ROLE", help=f"Only neurons of this role: {', '.join(NAMES)}."
)
@top_option("How many of the clearest neurons of each role to list.", default=3)
@click.option(
    "--basis",
    type=click.Choice(BASES),
    default="folded",
    show_default=True,
    metavar="BASIS",
    help="folded, as the papers process the weights, or raw.",
)
@click.option(
    "--sequences",
    type=COUNT,
    default=2048,
    show_default=True,
    metavar="N",
    help="How many sequences of the store's text to read.",
)
@seed_option("Of the choice of sequences.")
@plot_option("the share of each role by layer")
@model_options
@output_options
def roles(
    folder: str | None,
    layer: int | None,
    role: str | None,
    top: int,
    basis: str,
    sequences: int,
    seed: int,
    plot: str | None,
    choice: ModelChoice,
    form: str,
) -> None:
    """Say what part each neuron of a model plays, by the rules of the papers.

    From weights: prediction and suppression neurons raise and lower a small set of tokens (kurtosis and skew of the
    cosines between value and vocabulary), partition neurons split the vocabulary (their variance), entropy neurons
    write where no logit moves; strengthening and weakening neurons write along, or against, what they read. With a
    store also: dead, position, token-frequency and token-detector neurons (a gated neuron fires where its gate is
    open). A neuron counts for every role that applies to it; the help of fm.roles has every rule and its source.

    \b
    Examples
      ffnmem roles
      ffnmem roles --store runs/atlas --plot roles.png
      ffnmem roles --layer -1 --role partition --top 20 --json

    --json has the counts by layer (applies: of every role that applies, as the table; layers: of a neuron's first role
    alone), the clearest neurons of each role, the thresholds and the provenance. --csv has one row a neuron with all
    roles and statistics; with --role only those of that role, the clearest first.
    """
    from ..scanning import open_store

    figure = None if plot is None else check_figure(plot)
    needs = ("dead", "position", "token-frequency", "token-detector")
    if role in needs and folder is None:
        raise InputError(f"--role {role} needs text: give a store of the model with --store DIR")
    store = None if folder is None else open_store(folder)
    model = choice.load()
    with Progress() as bars:
        frame = fm.roles(model, store, layer=layer, basis=basis, n_sequences=sequences, seed=seed, progress=bars.report)
    listed = clearest(frame, role, top)
    if form == "csv":
        rows = frame if role is None else clearest(frame, role, len(frame))
        print_csv(list(frame.columns), rows[list(frame.columns)].to_dict("records"))
    elif form == "json":
        print_json(described(frame, listed))
    else:
        print_roles(model, frame, listed)
    if figure is not None:
        from ..roles_plots import plot_roles
        from .figure import save_axes

        save_axes([partial(plot_roles, frame)], figure)


def clearest(frame: pd.DataFrame, role: str | None, top: int) -> pd.DataFrame:
    """The clearest neurons of one role, or of each, with that role in the column ``listed``."""
    import pandas as pd

    from ..semantics.roles import known_roles, strongest

    names = [found.name for found in known_roles(frame)] if role is None else [role]
    parts = [strongest(frame, name, top).assign(listed=name) for name in names]
    return pd.concat(parts)


def described(frame: pd.DataFrame, listed: pd.DataFrame) -> dict[str, Any]:
    """Counts, the listed neurons and the settings as plain values."""
    from ..semantics.roles import role_counts

    columns = ["listed", *frame.columns]
    return {
        "layers": role_counts(frame).to_dict("records"),
        "applies": role_counts(frame, flags=True).to_dict("records"),
        "neurons": listed[columns].to_dict("records"),
        **frame.attrs,
    }


def print_roles(model: Model, frame: pd.DataFrame, listed: pd.DataFrame) -> None:
    out = console()
    for table in count_tables(frame, out.width):
        out.print(table)
        out.print()
    out.print(neuron_table(model, listed))
    out.print()
    out.print(provenance_line(frame.attrs["provenance"], out.width, basis=frame.attrs["settings"]["basis"]))


def count_tables(frame: pd.DataFrame, width: int) -> Iterator[Table]:
    """How many neurons each role applies to by layer, as many layers a table as the width allows."""
    from ..semantics.role_rules import NONE
    from ..semantics.roles import APPLIES, role_counts

    counts = role_counts(frame, flags=True)
    names = [name for name in counts.columns if name != "layer"]
    shown = [name for name in names if counts[name].any() or name == NONE]
    absent = [name for name in names if name not in shown]
    at_once = max(1, (width - NAME_WIDTH - COUNT_WIDTH) // COUNT_WIDTH)
    for start in range(0, len(counts), at_once):
        part = counts.iloc[start : start + at_once]
        title = APPLIES if start == 0 else ""
        table = plain_table("role", *map(str, part["layer"]), "all", left=["role"], title=title)
        for name in shown:
            table.add_row(name, *(f"{count:,}" if count else "" for count in part[name]), f"{counts[name].sum():,}")
        if absent and start + at_once >= len(counts):
            captioned(table, f"none: {', '.join(absent)}")
        yield table


def neuron_table(model: Model, listed: pd.DataFrame) -> Table:
    """The clearest neurons, with the tokens that their values promote."""
    from ..semantics.role_rules import ROLES

    statistics = {role.name: role.statistic for role in ROLES}
    table = plain_table(
        "role", "neuron", "statistic", "value", PROMOTES, left=["role", "statistic"], wraps=[PROMOTES],
        title="the clearest neurons of each role",
    )  # fmt: skip
    tokens = promoted(model, listed[["layer", "neuron"]].drop_duplicates(), PROMOTED)
    last = ""
    for row in listed.to_dict("records"):
        name = row["listed"]
        table.add_row(
            name if name != last else "",
            f"{row['layer']}.{row['neuron']}",
            statistics[name].replace("_", " "),
            f"{row[statistics[name]]:.4g}",
            token_line(tokens[row["layer"], row["neuron"]]),
        )
        last = name
    return table if len(listed) else captioned(table, "no neuron has any of these roles")
