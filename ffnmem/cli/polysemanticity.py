"""``ffnmem polysemanticity``: is a neuron one concept or many."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

import ffnmem as fm

from ..core.defaults import ABOVE, MEANING_BUDGET, MEANING_DRAWS
from ..core.errors import InputError
from ..core.types import COEFFICIENT_SIGNS, VERDICTS
from ..show.records import emit
from . import click_options as options
from .click_guard import Command
from .click_options import COUNT, SEED, argument, option, read_neurons, refuse
from .figures import save_axes
from .neuron import emit_several
from .progress import Progress

if TYPE_CHECKING:
    from ..models.model import Model
    from ..neurons.concepts import Meanings
    from ..neurons.verdicts import Rule
    from ..scanning.store import Store


LISTED = 5  # neurons of a verdict
MEANINGS, CONTEXTS = 5, 5  # of a neuron, and examples of each


@click.command(cls=Command, short_help="Is a neuron one concept or many: verdicts, and the meanings behind them.")
@argument("folder", metavar="STORE")
@option(
    "--neuron",
    "neurons",
    multiple=True,
    metavar="LAYER.NEURON",
    help="Only this one, with its meanings and their contexts; give it several times for several.",
)
@option("--layer", type=options.LAYER, multiple=True, metavar="LAYER", help="Only these layers.  [default: all]")
@option(
    "--sign",
    type=click.Choice((*COEFFICIENT_SIGNS, "both")),
    default="positive",
    help="Which coefficients: where the neuron fires, where its coefficient is negative, or each.",
)
@option("--verdict", type=click.Choice(VERDICTS), help="List only neurons of this verdict.")
@option(
    "--top",
    type=COUNT,
    metavar="N",
    help=f"How many of the clearest neurons of each verdict to list; with --neuron, examples of each meaning.  "
    f"[default: {LISTED}]",
)
@option(
    "--above",
    type=float,
    metavar="NUMBER",
    help=f"The effective number of meanings above which a neuron is polysemantic.  [default: {ABOVE}]",
)
@option(
    "--budget",
    type=SEED,
    default=MEANING_BUDGET,
    metavar="TOKENS",
    help="How much text to read again for examples at most; 0 for no limit.",
)
@option("--draws", type=click.IntRange(min=20), metavar="N", help=f"Of bootstrap and null.  [default: {MEANING_DRAWS}]")
@option("--seed", type=SEED, metavar="SEED", help="Of every random step.  [default: 0]")
@option(
    "--chance",
    is_flag=True,
    help="The verdicts on random directions instead, beside those on a sample of neurons; kept in STORE, and told with "
    "the verdicts from then on.",
)
@option(
    "--intruders",
    is_flag=True,
    help="Instead, whether what did not sort the examples into meanings finds one that is not of a meaning.",
)
@options.plot("the verdicts by layer, or with --neuron how alike its examples are,")
@option(
    "--model",
    "model_name",
    metavar="MODEL",
    help="The model that was scanned, if it is no longer where it was.  [default: by the store's record]",
)
@options.device
@options.output
@click.pass_context
def polysemanticity(context: click.Context, /, **asked: Any) -> None:
    """Say of every neuron of STORE whether it is one concept or many, and how sure that is.

    The model reads again what the FFN was given where a neuron fires most and at random places where it fires strongly;
    examples with alike inputs make a meaning. The effective number of meanings counts them by their share of the
    activation. Polysemantic is a neuron whose 95% interval of it lies above --above. Monosemantic is one whose number
    is at most that in 20 examples or more, and whose interval ends by it, or by what so many examples of one meaning
    leave possible (1.50 of 20 examples, 1.35 of 32). Unclear is one where the interval does not say, where examples
    are few, or no more alike than chance; inactive one whose coefficient never had the sign. Many directions that mean
    nothing are polysemantic too: --chance says how many. The help of fm.polysemanticity has every measure and its
    source.

    What was found of all layers is kept in STORE: neuron and its page show it, and the same command is then immediate.

    \b
    Examples
      ffnmem polysemanticity runs/atlas
      ffnmem polysemanticity runs/atlas --neuron 1.5 --plot meanings.png
      ffnmem polysemanticity runs/atlas --verdict polysemantic --top 20
      ffnmem polysemanticity runs/atlas --layer 0 --sign both --csv
      ffnmem polysemanticity runs/atlas --chance
      ffnmem polysemanticity runs/atlas --intruders

    --csv has one row a neuron: layer, neuron, sign, examples, each measure with its _low, _high, _null and _p, verdict,
    why; with --neuron, one row an example: layer, neuron, sign, meaning, rank, coefficient, sequence, position, token,
    context. --json has the counts by layer and the neurons listed; with --neuron, all of each.
    """
    if asked["neurons"]:
        refuse(context, ("layer", "verdict", "budget", "chance", "intruders"), "--neuron")
    for name in ("chance", "intruders"):
        if asked[name]:
            refuse(context, ("verdict", "top", "plot", *(("intruders",) if name == "chance" else ())), f"--{name}")
            if asked["sign"] == "both":
                raise InputError(f"--{name} is of one sign: positive or negative")
    store = fm.open_store(asked["folder"])
    if asked["chance"] or asked["intruders"]:
        (show_chance if asked["chance"] else show_intruders)(store, asked)
    else:
        (show_neurons if asked["neurons"] else show_store)(store, asked)


def read_rule(asked: dict[str, Any]) -> Rule | None:
    """The rule asked for; None where nothing was said."""
    return None if asked["above"] is None else fm.neurons.Rule(above=asked["above"])


def read_model(store: Store, asked: dict[str, Any]) -> Model:
    """The model that was scanned."""
    return options.scanned_model(store, asked["model_name"], asked["device"]).load()


def signs(asked: dict[str, Any]) -> list[str]:
    return list(COEFFICIENT_SIGNS) if asked["sign"] == "both" else [asked["sign"]]


# -- one neuron ------------------------------------------------------------------------------------------------------


def show_neurons(store: Store, asked: dict[str, Any]) -> None:
    """The meanings of single neurons, of each sign asked for: from the store where it keeps them, else read."""
    from ..neurons.concepts import asked_settings, settled
    from ..neurons.measuring import is_kept

    named = read_neurons(asked["neurons"])
    places = [store.index(layer, column) for layer, column in named]  # refuse all before reading any
    listing = asked["top"] or (CONTEXTS if asked["form"] == "table" else None)
    rule = read_rule(asked)
    wanted = asked_settings(asked["seed"], asked["draws"], rule)
    known = None if asked["plot"] is None and asked["model_name"] is None else read_model(store, asked)

    def read(place: tuple[int, int], sign: str) -> Meanings:
        model = read_model(store, asked) if known is None and not is_kept(store, sign, wanted) else known
        with Progress() as bars:
            return fm.meanings(
                store,
                *place,
                model,
                sign=sign,
                seed=asked["seed"],
                draws=asked["draws"],
                rule=rule,
                k=listing,
                progress=renamed(bars),
            )

    found = [read(place, sign) for place in places for sign in signs(asked)]
    provenance = found[0].provenance
    emit_several(
        asked["form"],
        provenance,
        sheets=lambda: (one.sheet(MEANINGS, origin=False) for one in found),
        values=lambda: (one.to_dict() for one in found),
        frames=lambda: (one.to_frame() for one in found),
        origin=settled(provenance),
    )
    if asked["plot"] is not None:
        drawn = [one for one in found if len(one.table)]
        if not drawn:
            raise InputError(f"--plot: neuron {found[0].name} has no examples to draw: it is {found[0].verdict}")
        save_axes([partial(fm.plots.meanings, one) for one in drawn], asked["plot"], columns=1)


def renamed(bars: Progress) -> Any:
    """The library's phase "read" is of tokens here, and of neurons elsewhere."""
    return lambda phase, done, total: bars.report("inputs" if phase == "read" else phase, done, total)


# -- the whole store -------------------------------------------------------------------------------------------------


def read_settings(asked: dict[str, Any]) -> dict[str, Any]:
    """What the library's functions take, with its defaults put in."""
    return {
        "seed": asked["seed"] or 0,
        "draws": asked["draws"] or MEANING_DRAWS,
        "budget": asked["budget"] or None,
        "rule": read_rule(asked) or fm.neurons.Rule(),
    }


def show_chance(store: Store, asked: dict[str, Any]) -> None:
    """Verdicts on random directions."""
    layers = [store.layer(layer) for layer in asked["layer"]] or None
    with Progress() as bars:
        emit(
            fm.neurons.chance_verdicts(
                store,
                read_model(store, asked),
                layers=layers,
                sign=asked["sign"],
                progress=renamed(bars),
                **read_settings(asked),
            ),
            asked["form"],
        )


def show_intruders(store: Store, asked: dict[str, Any]) -> None:
    """Whether meanings are there for other judges too; they are measured first where they were not."""
    layers, settings = [store.layer(layer) for layer in asked["layer"]] or None, read_settings(asked)
    model = read_model(store, asked)
    with Progress() as bars:
        report = renamed(bars)
        fm.polysemanticity(store, model, sign=asked["sign"], progress=report, **settings)
        found = fm.neurons.intruders(
            store,
            model,
            layers=layers,
            sign=asked["sign"],
            seed=settings["seed"],
            rule=settings["rule"],
            progress=report,
        )
    emit(found, asked["form"])


def show_store(store: Store, asked: dict[str, Any]) -> None:
    """The table of the whole store, or of some layers."""
    import pandas as pd

    from ..neurons.by_chance import kept_chance
    from ..neurons.concepts import Survey, clearest
    from ..neurons.measuring import is_kept, settings_key

    layers = [store.layer(layer) for layer in asked["layer"]] or None
    settings = read_settings(asked)
    kept = all(is_kept(store, sign, settings_key(store, sign=sign, **settings)) for sign in signs(asked))
    model = None if kept and asked["model_name"] is None else read_model(store, asked)
    with Progress() as bars:
        table = fm.polysemanticity(store, model, layers=layers, sign=asked["sign"], progress=renamed(bars), **settings)
    listed = pd.concat(
        clearest(table, name, asked["top"] or LISTED)
        for name in ([asked["verdict"]] if asked["verdict"] else VERDICTS[:2])
    )
    ask = partial(fm.meanings, store, model=model, k=1, seed=settings["seed"], draws=settings["draws"])
    wanted = () if asked["form"] == "csv" else listed.itertuples()
    found = [ask(row.layer, row.neuron, sign=row.sign, rule=settings["rule"]) for row in wanted]
    rows = table if asked["verdict"] is None else clearest(table, asked["verdict"])
    chance = {
        sign: one
        for sign in signs(asked)
        if layers is None and (one := kept_chance(store, sign, settings["rule"])) is not None
    }
    emit(Survey(table, listed, found, chance), asked["form"], frame=lambda: rows)
    if asked["plot"] is not None:
        save_axes([partial(fm.plots.verdicts, table)], asked["plot"])
