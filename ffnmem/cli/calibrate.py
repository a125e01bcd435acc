"""``ffnmem calibrate``: how well the toolkit's measures do where the right answer is known."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

import ffnmem as fm

from ..errors import InputError
from ..show.records import print_csv, print_json
from ..show.terminal import captioned, console, number, percent, plain_table
from .figure import check_figure, save_axes
from .guard import Command
from .options import given, output_options, plot_option
from .progress import Progress

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from ..calibration import Calibration

KINDS = ("meanings", "roles", "facts")
SEEDS = (110, 111, 112, 113, 114)
SUPERPOSITION = (1.0, 1.5, 2.0, 2.5)
DRAWS = 200
K = 20
OF_MEANINGS = ("superposition", "neurons", "draws")


@click.command(cls=Command, short_help="How well the measures recover planted meanings, roles and facts.")
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    multiple=True,
    default=KINDS,
    metavar="KIND",
    help="meanings, roles or facts; may be given again.  [default: all]",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    multiple=True,
    default=SEEDS,
    metavar="SEED",
    help="A model for each; may be given again.  [default: 110 to 114; thresholds were chosen on 0 to 4]",
)
@click.option(
    "--superposition",
    type=click.FloatRange(min=0, min_open=True),
    multiple=True,
    default=SUPERPOSITION,
    metavar="RATIO",
    help="Features per dimension of the models of meanings; may be given again.  [default: 1, 1.5, 2, 2.5]",
)
@click.option("--neurons", type=click.IntRange(min=16), metavar="N", help="Per layer of these models.  [default: 192]")
@click.option(
    "--draws",
    type=click.IntRange(min=20),
    default=DRAWS,
    show_default=True,
    metavar="N",
    help="Of bootstraps and nulls.",
)
@plot_option("the measures by superposition, verdicts, nulls, roles and facts")
@output_options
@click.pass_context
def calibrate(
    setting: click.Context,
    kind: tuple[str, ...],
    seed: tuple[int, ...],
    superposition: tuple[float, ...],
    neurons: int | None,
    draws: int,
    plot: str | None,
    form: str,
) -> None:
    """Build models whose memories are known, run the toolkit's measures on them, and say how well they did.

    Meanings: AUROC of each measure of polysemanticity for polysemantic against monosemantic neurons, its rank
    correlation with the planted number, its precision at 20; the verdicts; how often each null is rejected where
    nothing is to be found. Roles: precision and recall. Facts: how often attribution, at the last token and along
    paths, ablation and knowledge neurons rank the planted neuron first. With the defaults it takes some minutes.

    \b
    Examples
      ffnmem calibrate --plot calibration.png
      ffnmem calibrate --kind facts --seed 7 --json

    --csv has one row a number: table, name, setting, score, value, low, high. --json has all tables and the settings.
    """
    check_options(setting)
    figure = None if plot is None else check_figure(plot)
    more: dict[str, Any] = {} if neurons is None else {"neurons": neurons}
    with Progress() as bars:
        found = fm.calibrate(kind, seeds=seed, superposition=superposition, draws=draws, progress=bars.report, **more)
    if form == "csv":
        rows = numbers(found)
        print_csv(["table", "name", "setting", "score", "value", "low", "high"], rows)
    elif form == "json":
        print_json(found.as_dict())
    else:
        print_calibration(found)
    if figure is not None:
        from ..calibration_plots import DRAWS, NEEDS

        save_axes([partial(fm.plot_calibration, found, what) for what in DRAWS if NEEDS[what] in found.tables], figure)


def check_options(setting: click.Context) -> None:
    """Raise InputError for an option that would do nothing."""
    if "meanings" in setting.params["kind"]:
        return
    for name, parameter in given(setting).items():
        if name in OF_MEANINGS:
            raise InputError(f"{parameter.opts[0]} is of --kind meanings only: leave it out")


def numbers(found: Calibration) -> list[dict[str, Any]]:
    """Every number of a calibration with where it comes from; no interval where there is none."""
    rows = []
    names = {"measures": "measure", "curves": "measure", "nulls": "measure", "roles": "role", "facts": "measure"}
    settings = {"curves": "superposition", "facts": "site"}
    for table, frame in found.tables.items():
        for row in frame.to_dict("records"):
            name, setting = row.get(names.get(table, "")), row.get(settings.get(table, ""), "")
            if table == "verdicts":
                name, setting = row["true_meanings"], ""
            for score, value in row.items():
                if score in (names.get(table), settings.get(table), "true_meanings") or score.endswith(("low", "high")):
                    continue
                own = score in ("rate", "first")
                low, high = (row.get(end if own else f"{score}_{end}") for end in ("low", "high"))
                rows.append(
                    {
                        "table": table, "name": name, "setting": setting, "score": score, "value": value, "low": low,
                        "high": high,
                    }
                )  # fmt: skip
    return rows


def print_calibration(found: Calibration) -> None:
    out = console()
    tables = found.tables
    for name, build in (
        ("measures", measure_table),
        ("verdicts", verdict_table),
        ("nulls", null_table),
        ("roles", role_table),
        ("facts", fact_table),
    ):
        if name in tables:
            out.print(build(tables[name], found))
            out.print()
    shown = {k: v for k, v in found.settings.items() if k not in ("kinds", "standard")}
    out.print(Text(" · ".join(f"{name} {listed(value)}" for name, value in shown.items()), style="dim"))


def listed(value: Any) -> str:
    """A setting in words: numbers without trailing zeros."""
    return ", ".join(f"{v:g}" for v in value) if isinstance(value, list) else str(value)


def ranged(row: dict[str, Any], name: str) -> str:
    ends = " to ".join(number(row[f"{name}_{end}"], 2) for end in ("low", "high"))
    return f"{number(row[name], 3)}  {ends}"


def measure_table(frame: pd.DataFrame, found: Calibration) -> Table:
    title = f"measures of polysemanticity, superposition {found.settings['standard']:g}"
    table = plain_table("measure", "AUROC", "Spearman", f"precision at {K}", left=["measure"], title=title)
    for row in frame.to_dict("records"):
        table.add_row(row["measure"], *(ranged(row, name) for name in ("auroc", "spearman", "precision_at_k")))
    return captioned(
        table,
        "AUROC: polysemantic against monosemantic neurons; Spearman: with the planted number of meanings; 95% "
        "intervals over models and neurons.",
    )


def verdict_table(frame: pd.DataFrame, found: Calibration) -> Table:
    names = [name for name in frame.columns if name != "true_meanings"]
    table = plain_table("planted meanings", *names, title="verdicts")
    for row in frame.to_dict("records"):
        label = "dead" if row["true_meanings"] == 0 else str(row["true_meanings"])
        table.add_row(label, *(f"{row[name]:,}" for name in names))
    return captioned(
        table,
        f"{percent(found.false_polysemantic)} of monosemantic neurons are called polysemantic, and "
        f"{percent(found.random_polysemantic)} of neurons of random keys: what fires a random direction is of several "
        "kinds too.",
    )


def null_table(frame: pd.DataFrame, found: Calibration) -> Table:
    table = plain_table("measure", "p < .05", "95%", "neurons", left=["measure"], title="nulls")
    for row in frame.to_dict("records"):
        ends = " to ".join(percent(row[end]) for end in ("low", "high"))
        table.add_row(row["measure"], percent(row["rate"]), ends, f"{row['neurons']:,}")
    return captioned(table, "Where nothing is to be found: random examples, or random keys and values.")


def role_table(frame: pd.DataFrame, found: Calibration) -> Table:
    table = plain_table("role", "precision", "recall", "planted", "found", left=["role"], title="roles")
    for row in frame.to_dict("records"):
        table.add_row(
            row["role"], number(row["precision"], 2), number(row["recall"], 2), str(row["planted"]), str(row["found"])
        )
    return table


def fact_table(frame: pd.DataFrame, found: Calibration) -> Table:
    names = ("measure", "recalled", "first", "95%", "first or second", "facts")
    table = plain_table(*names, left=["measure", "recalled"], title="facts")
    for row in frame.to_dict("records"):
        ends = " to ".join(number(row[end], 2) for end in ("low", "high"))
        table.add_row(
            row["measure"], row["site"], number(row["first"], 2), ends, number(row["second"], 2), str(row["facts"])
        )
    return captioned(
        table,
        "The share of facts whose planted neuron is ranked first of all. Each subject has a neuron as well, without "
        "which nothing is recalled: so second is right too. attribute and knowledge_neurons look at the last token "
        "only; a fact recalled early is not there.",
    )
