"""``ffnmem plant`` and ``ffnmem calibrate``: models with known memories, and how well the measures find them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

import ffnmem as fm

from ..core.defaults import CALIBRATION_SEEDS, CALIBRATION_SUPERPOSITION, MEANING_DRAWS
from ..core.errors import InputError
from ..core.files import check_new_folder
from ..core.types import PLANTED_KINDS, PlantedKind
from ..show.records import emit
from . import click_options as options
from .click_guard import Command
from .click_options import SEED, Function, argument, given, option
from .figures import save_figure
from .progress import Progress

# `ffnmem plant`: a model whose memories were written by hand, with the truth about them.

# Option, its type, its help without the default, and per kind the parameter of the library and its default.
OPTIONS: tuple[tuple[str, type, str, dict[str, tuple[str, Any]]], ...] = (
    ("--features", int, "Concepts, each a set of words.", {"meanings": ("n_features", 128)}),
    ("--superposition", float, "Features per dimension that they share.", {"meanings": ("superposition", 1.5)}),
    (
        "--words",
        int,
        "Words of a concept (meanings) or in all (roles).",
        {"meanings": ("words", 8), "roles": ("n_words", 1000)},
    ),
    ("--neurons", int, "Per layer.", {"meanings": ("neurons", 192), "roles": ("neurons", 256)}),
    ("--per-role", int, "Neurons of each role in a layer.", {"roles": ("per_role", 12)}),
    ("--layers", int, "How many.", {"meanings": ("n_layers", 2), "roles": ("n_layers", 3)}),
    (
        "--tokens",
        int,
        "Length of the corpus, about.",
        {"meanings": ("n_tokens", 60_000), "roles": ("n_tokens", 60_000)},
    ),
    (
        "--site",
        str,
        "Where facts are recalled: early (at the subject's last token), late (at the last token) or both (half each).",
        {"facts": ("site", "early")},
    ),
    ("--subjects", int, "Each with one fact a relation.", {"facts": ("n_subjects", 40)}),
    ("--relations", int, "Facts of each subject.", {"facts": ("n_relations", 3)}),
    ("--objects", int, "Different targets of a relation.", {"facts": ("n_objects", 8)}),
    ("--none", int, "Neurons without a role beside those of the facts.", {"facts": ("n_none", 40)}),
    (
        "--noise",
        float,
        "On words (meanings), keys and values (roles) or all weights (facts), relative to their size.",
        {"meanings": ("noise", 0.7), "roles": ("noise", 0.3), "facts": ("noise", 0.05)},
    ),
)


def kind_options(command: Function) -> Function:
    """The options that some kinds take, in the order of OPTIONS."""
    for name, kind, what, takers in reversed(OPTIONS):
        values = [default if kind is str else f"{default:g}" for _, default in takers.values()]
        alike = len(set(values)) == 1
        default = values[0] if alike else ", ".join(map(" ".join, zip(takers, values, strict=True)))
        whose = "" if len(takers) == len(PLANTED_KINDS) else f"  [{', '.join(takers)}]"
        command = option(
            name,
            parameter(name),
            metavar={int: "N", float: "X", str: "SITE"}[kind],
            help=f"{what}{whose}  [default: {default}]",
            **({} if kind is str else {"type": kind}),
        )(command)
    return command


def parameter(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


@click.command(cls=Command, short_help="Make a model whose memories were written by hand, with the truth about them.")
@argument("kind", type=click.Choice(PLANTED_KINDS), metavar="KIND")
@option("--out", required=True, metavar="FOLDER", help="A new folder for the model and its truth.")
@option("--seed", type=int, default=0, metavar="SEED", help="Of everything random.")
@kind_options
@options.output
def plant(kind: PlantedKind, out: str, seed: int, form: str, **given: Any) -> None:
    """Write a GPT-2 whose memories are known into FOLDER, to see what a method makes of it. KIND is one of

    \b
      meanings  neurons of one concept, of 2, 3, 4 or 8, and dead ones
      roles     prediction, suppression, partition, entropy, position,
                token-frequency and token-detector neurons, and dead ones
      facts     subjects, relations and targets, one neuron a fact

    FOLDER gets the model in Hugging Face layout, which every command takes as --model FOLDER, and truth.csv (a row a
    neuron), corpus.txt (text that exercises it), facts.jsonl (with KIND facts) and planted.json (the settings).

    \b
    Examples
      ffnmem plant facts --out planted --site late --seed 1
      ffnmem plant meanings --out planted --features 32 --neurons 48 --json

    --csv has one row for each sort of neurons in each layer: layer, what the truth says of it, neurons. --json has
    these and all else.
    """
    parameters = parameters_of(kind, given)
    check_new_folder(out)  # before any work is done for nothing
    with Console(stderr=True).status(Text(f"planting {kind}", style="dim")):
        try:
            planted = fm.planted.plant(kind, seed=seed, **parameters)
        except InputError as error:
            raise InputError(in_options(kind, str(error))) from None
        planted.recalled()  # is asked of the model while the spinner turns
        planted.save(out)
    emit(
        planted, form, sheet=lambda: planted.sheet(out), data=lambda: planted.to_dict(out), frame=lambda: planted.counts
    )


def parameters_of(kind: PlantedKind, given: dict[str, Any]) -> dict[str, Any]:
    """The library's parameters for the options given; raises InputError for one that the kind does not take."""
    found = {}
    for name, _, _, takers in OPTIONS:
        value = given[parameter(name)]
        if value is None:
            continue
        if kind not in takers:
            own = ", ".join(option for option, _, _, of in OPTIONS if kind in of)
            raise InputError(f"{name} is for {' and '.join(takers)}: plant {kind} takes {own}")
        found[takers[kind][0]] = value
    return found


def in_options(kind: PlantedKind, message: str) -> str:
    """The library's message with options for the parameters that it speaks of: ``n_tokens must be …``."""
    names = {takers[kind][0]: option for option, _, _, takers in OPTIONS if kind in takers} | {"seed": "--seed"}
    return re.sub(rf"(?:^|(?<= and ))(?:{'|'.join(names)})\b", lambda found: names[found[0]], message)


# `ffnmem calibrate`: how well the toolkit's measures do where the right answer is known.

OF_MEANINGS = ("superposition", "neurons", "draws")


@click.command(cls=Command, short_help="How well the measures recover planted meanings, roles and facts.")
@option(
    "--kind",
    type=click.Choice(PLANTED_KINDS),
    multiple=True,
    default=PLANTED_KINDS,
    metavar="KIND",
    help="meanings, roles or facts; may be given again.  [default: all]",
)
@option(
    "--seed",
    type=SEED,
    multiple=True,
    default=CALIBRATION_SEEDS,
    metavar="SEED",
    help="A model for each; may be given again.  [default: 110 to 114; thresholds were chosen on 0 to 4]",
)
@option(
    "--superposition",
    type=click.FloatRange(min=0, min_open=True),
    multiple=True,
    default=CALIBRATION_SUPERPOSITION,
    metavar="RATIO",
    help="Features per dimension of the models of meanings; may be given again.  [default: 1, 1.5, 2, 2.5]",
)
@option("--neurons", type=click.IntRange(min=16), metavar="N", help="Per layer of these models.  [default: 192]")
@option("--draws", type=click.IntRange(min=20), default=MEANING_DRAWS, metavar="N", help="Of bootstraps and nulls.")
@options.plot("the measures by superposition, verdicts, nulls, roles and facts")
@options.output
@click.pass_context
def calibrate(
    context: click.Context,
    /,
    kind: tuple[str, ...],
    seed: tuple[int, ...],
    neurons: int | None,
    plot: Path | None,
    form: str,
    **settings: Any,
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
    for name, flag in given(context).items():
        if name in OF_MEANINGS and "meanings" not in kind:
            raise InputError(f"{flag} is of --kind meanings only: leave it out")
    if neurons is not None:
        settings["neurons"] = neurons
    with Progress() as bars:
        found = fm.planted.calibrate(kind, seeds=seed, progress=bars.report, **settings)
    emit(found, form)
    if plot is not None:
        save_figure(found, plot)
