"""``ffnmem polysemanticity``: is a neuron one concept or many."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import ffnmem as fm

from ..core.choices import ABOVE, COEFFICIENT_SIGNS, MEANING_BUDGET, MEANING_DRAWS, VERDICTS
from ..core.errors import InputError
from ..core.sheets import Origin, together
from ..show.records import emit
from .figures import check_figure, save_axes
from .guard import Command
from .options import COUNT, ModelChoice, device_option, given, output_options, plot_option, text
from .progress import Progress
from .project import read_neurons

if TYPE_CHECKING:
    from ..models.model import Model
    from ..neurons.concepts import Meanings
    from ..neurons.verdicts import Rule
    from ..scanning.store import Store

LISTED = 5  # neurons of a verdict
MEANINGS, CONTEXTS = 5, 5  # of a neuron, and examples of each


@click.command(cls=Command, short_help="Is a neuron one concept or many: verdicts, and the meanings behind them.")
@click.argument("folder", type=text, metavar="STORE")
@click.option(
    "--neuron",
    "neurons",
    type=text,
    multiple=True,
    metavar="LAYER.NEURON",
    help="Only this one, with its meanings and their contexts; give it several times for several.",
)
@click.option("--layer", type=int, multiple=True, metavar="LAYER", help="Only these layers.  [default: all]")
@click.option(
    "--sign",
    type=click.Choice((*COEFFICIENT_SIGNS, "both")),
    default="positive",
    show_default=True,
    help="Which coefficients: where the neuron fires, where its coefficient is negative, or each.",
)
@click.option("--verdict", type=click.Choice(VERDICTS), help="List only neurons of this verdict.")
@click.option(
    "--top",
    type=COUNT,
    metavar="N",
    help=f"How many of the clearest neurons of each verdict to list; with --neuron, examples of each meaning.  "
    f"[default: {LISTED}]",
)
@click.option(
    "--above",
    type=float,
    metavar="NUMBER",
    help=f"The effective number of meanings above which a neuron is polysemantic.  [default: {ABOVE}]",
)
@click.option(
    "--budget",
    type=click.IntRange(min=0),
    default=MEANING_BUDGET,
    show_default=True,
    metavar="TOKENS",
    help="How much text to read again for examples at most; 0 for no limit.",
)
@click.option(
    "--draws", type=click.IntRange(min=20), metavar="N", help=f"Of bootstrap and null.  [default: {MEANING_DRAWS}]"
)
@click.option("--seed", type=click.IntRange(min=0), metavar="SEED", help="Of every random step.  [default: 0]")
@plot_option("the verdicts by layer, or with --neuron how alike its examples are,")
@click.option(
    "--model",
    "model_name",
    type=text,
    metavar="MODEL",
    help="The model that was scanned, if it is no longer where it was.  [default: by the store's record]",
)
@device_option
@output_options
@click.pass_context
def polysemanticity(setting: click.Context, /, **options: Any) -> None:
    """Say of every neuron of STORE whether it is one concept or many, and how sure that is.

    The model reads again what the FFN was given where a neuron fires most and at random places where it fires strongly;
    examples with alike inputs make a meaning. The effective number of meanings counts them by their share of the
    activation: monosemantic is a neuron whose 95% interval of it lies below --above, polysemantic one above; unclear
    where it does not say, where examples are few, or no more alike than chance. The help of fm.polysemanticity has
    every measure and its source.

    What was found of all layers is kept in STORE: neuron and its page show it, and the same command is then immediate.

    \b
    Examples
      ffnmem polysemanticity runs/atlas
      ffnmem polysemanticity runs/atlas --neuron 1.5 --plot meanings.png
      ffnmem polysemanticity runs/atlas --verdict polysemantic --top 20
      ffnmem polysemanticity runs/atlas --layer 0 --sign both --csv

    --csv has one row a neuron: layer, neuron, sign, examples, each measure with its _low, _high, _null and _p, verdict,
    why; with --neuron, one row an example: layer, neuron, sign, meaning, rank, coefficient, sequence, position, token,
    context. --json has the counts by layer and the neurons listed; with --neuron, all of each.
    """
    check_options(setting)
    figure = None if options["plot"] is None else check_figure(options["plot"])
    from ..scanning.store import open_store

    store = open_store(options["folder"])
    if options["neurons"]:
        show_neurons(store, options, figure)
    else:
        show_store(store, options, figure)


def check_options(setting: click.Context) -> None:
    """Raise InputError for an option that would do nothing."""
    if not setting.params["neurons"]:
        return
    for name, parameter in given(setting).items():
        if name in ("layer", "verdict", "budget"):
            raise InputError(f"{parameter.opts[0]} does not go with --neuron: leave it out")


def read_rule(options: dict[str, Any]) -> Rule | None:
    """The rule asked for; None where nothing was said."""
    return None if options["above"] is None else fm.neurons.Rule(above=options["above"])


def read_model(store: Store, options: dict[str, Any]) -> Model:
    """The model that was scanned."""
    bos = store.provenance.get("prepend_bos")
    return ModelChoice(options["model_name"] or store.model, options["device"], "float32", bos).load()


def signs(options: dict[str, Any]) -> list[str]:
    return list(COEFFICIENT_SIGNS) if options["sign"] == "both" else [options["sign"]]


# -- one neuron ------------------------------------------------------------------------------------------------------


def show_neurons(store: Store, options: dict[str, Any], figure: Path | None) -> None:
    """The meanings of single neurons, of each sign asked for."""
    import pandas as pd

    from ..neurons.concepts import settled

    asked = read_neurons(options["neurons"])
    places = [store.index(layer, column) for layer, column in asked]  # refuse all before reading any
    listing = options["top"] or (CONTEXTS if options["form"] == "table" else None)
    ask = partial(
        read_meanings, store, seed=options["seed"], draws=options["draws"], rule=read_rule(options), k=listing
    )
    model = read_model(store, options) if figure or options["model_name"] else None
    found = [ask(place, sign, model, options) for place in places for sign in signs(options)]
    emit(
        found[0],
        options["form"],
        sheet=lambda: together(
            (one.sheet(MEANINGS, origin=False) for one in found), Origin(settled(found[0].provenance))
        ),
        data=lambda: {
            "neurons": [{k: v for k, v in one.to_dict().items() if k != "provenance"} for one in found],
            "provenance": found[0].provenance,
        },
        frame=lambda: pd.concat([one.to_frame() for one in found]),
    )
    if figure is not None:
        drawn = [one for one in found if len(one.table)]
        if not drawn:
            raise InputError(f"--plot: neuron {found[0].name} has no examples to draw: it is {found[0].verdict}")
        save_axes([partial(fm.plots.meanings, one) for one in drawn], figure, columns=1)


def read_meanings(
    store: Store, place: tuple[int, int], sign: str, model: Model | None, options: dict[str, Any], **settings: Any
) -> Meanings:
    """One neuron's meanings: from the store where it keeps them, else read with the model."""
    from ..neurons.concepts import asked_settings
    from ..neurons.measuring import is_kept

    wanted = asked_settings(settings["seed"], settings["draws"], settings["rule"])
    if model is None and not is_kept(store, sign, wanted):
        model = read_model(store, options)
    with Progress() as bars:
        return fm.meanings(store, *place, model, sign=sign, progress=renamed(bars), **settings)


def renamed(bars: Progress) -> Any:
    """The library's phase "read" is of tokens here, and of neurons elsewhere."""
    return lambda phase, done, total: bars.report("inputs" if phase == "read" else phase, done, total)


# -- the whole store -------------------------------------------------------------------------------------------------


def show_store(store: Store, options: dict[str, Any], figure: Path | None) -> None:
    """The table of the whole store, or of some layers."""
    import pandas as pd

    from ..neurons.concepts import Survey, clearest
    from ..neurons.measuring import is_kept, settings_key

    layers = [store.layer(layer) for layer in options["layer"]] or None
    settings: dict[str, Any] = {
        "seed": options["seed"] or 0,
        "draws": options["draws"] or MEANING_DRAWS,
        "budget": options["budget"] or None,
        "rule": read_rule(options) or fm.neurons.Rule(),
    }
    kept = all(is_kept(store, sign, settings_key(store, sign=sign, **settings)) for sign in signs(options))
    model = None if kept and options["model_name"] is None else read_model(store, options)
    with Progress() as bars:
        table = fm.polysemanticity(
            store, model, layers=layers, sign=options["sign"], progress=renamed(bars), **settings
        )
    listed = pd.concat(
        clearest(table, name, options["top"] or LISTED)
        for name in ([options["verdict"]] if options["verdict"] else VERDICTS[:2])
    )
    ask = partial(fm.meanings, store, model=model, k=1, seed=settings["seed"], draws=settings["draws"])
    wanted = () if options["form"] == "csv" else listed.itertuples()
    found = [ask(row.layer, row.neuron, sign=row.sign, rule=settings["rule"]) for row in wanted]
    rows = table if options["verdict"] is None else clearest(table, options["verdict"])
    emit(Survey(table, listed, found), options["form"], frame=lambda: rows)
    if figure is not None:
        save_axes([partial(fm.plots.verdicts, table)], figure)
