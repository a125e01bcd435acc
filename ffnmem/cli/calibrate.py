"""``ffnmem calibrate``: how well the toolkit's measures do where the right answer is known."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

import ffnmem as fm

from ..core.choices import CALIBRATION_SEEDS, CALIBRATION_SUPERPOSITION, MEANING_DRAWS, PLANTED_KINDS
from ..errors import InputError
from ..show.records import emit
from .figure import check_figure, save_axes
from .guard import Command
from .options import given, output_options, plot_option
from .progress import Progress

OF_MEANINGS = ("superposition", "neurons", "draws")


@click.command(cls=Command, short_help="How well the measures recover planted meanings, roles and facts.")
@click.option(
    "--kind",
    type=click.Choice(PLANTED_KINDS),
    multiple=True,
    default=PLANTED_KINDS,
    metavar="KIND",
    help="meanings, roles or facts; may be given again.  [default: all]",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    multiple=True,
    default=CALIBRATION_SEEDS,
    metavar="SEED",
    help="A model for each; may be given again.  [default: 110 to 114; thresholds were chosen on 0 to 4]",
)
@click.option(
    "--superposition",
    type=click.FloatRange(min=0, min_open=True),
    multiple=True,
    default=CALIBRATION_SUPERPOSITION,
    metavar="RATIO",
    help="Features per dimension of the models of meanings; may be given again.  [default: 1, 1.5, 2, 2.5]",
)
@click.option("--neurons", type=click.IntRange(min=16), metavar="N", help="Per layer of these models.  [default: 192]")
@click.option(
    "--draws",
    type=click.IntRange(min=20),
    default=MEANING_DRAWS,
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
    emit(found, form)
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
