"""``ffnmem polysemanticity`` and ``describe``: is a neuron one concept or many, and words for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

import ffnmem as fm

from ..core.defaults import CONTEXTS_SHOWN, CONTEXTS_TESTED, JUDGED_TOGETHER, MEANING_BUDGET, MEANING_DRAWS
from ..core.errors import InputError
from ..core.types import COEFFICIENT_SIGNS, VERDICTS, CoefficientSign, Dtype, Verdict
from ..show.records import emit
from .neuron import Cards
from .options import (
    AnswersFile,
    Count,
    Device,
    Layers,
    Neurons,
    Output,
    PlottedOutput,
    ReaderChoice,
    ScannedChoice,
    Seed,
    StoreFolder,
    Top,
    option_group,
)
from .progress import show_progress

if TYPE_CHECKING:
    from ..core.progress import Progress
    from ..scanning.store import Store

LISTED = 5  # neurons of a verdict
MEANINGS, CONTEXTS = 5, 5  # of a neuron, and examples of each

SignOrBoth = Annotated[
    Literal["positive", "negative", "both"],
    Parameter(help="Which coefficients: where the neuron fires, where its coefficient is negative, or each."),
]

polysemanticity = App(name="polysemanticity")


@option_group
class Measuring:
    """How meanings are found and judged.

    Attributes:
        above: The effective number of meanings above which a neuron is polysemantic. [default: 1.35]
        draws: Of bootstrap and null. [default: 200]
    """

    above: float | None = None
    draws: Annotated[int | None, Parameter(validator=Number(gte=20), metavar="N")] = None
    seed: Seed | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The library's arguments of a single neuron: None where what the store keeps decides."""
        rule = None if self.above is None else fm.neurons.Rule(above=self.above)
        return {"seed": self.seed, "draws": self.draws, "rule": rule}


@option_group
class StoreMeasuring(Measuring):
    """The same of a whole store.

    Attributes:
        layer: Only these layers (repeatable). [default: all]
        budget: How many tokens of text to read again for examples at most; 0 for no limit.
    """

    layer: Layers | None = None
    budget: Annotated[int, Parameter(validator=Number(gte=0), metavar="N")] = MEANING_BUDGET

    @property
    def settings(self) -> dict[str, Any]:
        """The library's arguments of a whole store, with its defaults put in."""
        return {
            "seed": self.seed or 0,
            "draws": self.draws or MEANING_DRAWS,
            "rule": self.given["rule"] or fm.neurons.Rule(),
            "budget": self.budget or None,
        }

    def layers(self, store: Store) -> list[int] | None:
        """The layers asked for; None for all."""
        return [store.layer(layer) for layer in self.layer or ()] or None


@polysemanticity.default
def show_store(
    *,
    store: StoreFolder,
    sign: SignOrBoth = "positive",
    verdict: Verdict | None = None,
    top: Top = LISTED,
    measuring: StoreMeasuring = StoreMeasuring(),
    model: ScannedChoice = ScannedChoice(),
    output: PlottedOutput = PlottedOutput(),
) -> None:
    """Is a neuron one concept or many: verdicts, and the meanings behind them.

    Says of every neuron of a store whether it is one concept or many, and how sure that is. The model reads again what
    the FFN was given where a neuron fires most and at random places where it fires strongly; examples with alike inputs
    make a meaning. The effective number of meanings counts them by their share of the activation.

    Polysemantic is a neuron whose 95% interval of it lies above --above. Monosemantic is one whose number is at most
    that in 20 examples or more, and whose interval ends by it, or by what so many examples of one meaning leave
    possible (1.50 of 20 examples, 1.35 of 32). Unclear is one where the interval does not say, where examples are few,
    or no more alike than chance; inactive one whose coefficient never had the sign. The help of fm.polysemanticity has
    every measure and its source.

    What was found of all layers is kept in the store: neuron and its page show it, and the same command is then
    immediate.

    Examples
      ffnmem polysemanticity --store runs/atlas
      ffnmem polysemanticity --store runs/atlas --verdict polysemantic --top 20
      ffnmem polysemanticity --store runs/atlas --layer 0 --sign both --csv

    --csv has one row a neuron: layer, neuron, sign, examples, each measure with its _low, _high, _null and _p, verdict,
    why. --json has the counts by layer and the neurons listed.

    Args:
        verdict: List only neurons of this verdict.
    """
    import pandas as pd

    from ..neurons.measuring import is_kept, settings_key
    from ..neurons.survey import Survey, clearest

    opened, settings, signs = fm.open_store(store), measuring.settings, asked_signs(sign)
    layers = measuring.layers(opened)
    kept = all(is_kept(opened, one, settings_key(opened, sign=one, **settings)) for one in signs)
    loaded = None if kept and model.model is None else model.load(opened)
    with show_progress() as report:
        table = fm.polysemanticity(opened, loaded, layers=layers, sign=sign, progress=count_inputs(report), **settings)
    listed = pd.concat(clearest(table, name, top) for name in ([verdict] if verdict else VERDICTS[:2]))
    ask = partial(fm.meanings, opened, model=loaded, k=1, seed=settings["seed"], draws=settings["draws"])
    rows = () if output.csv else listed.itertuples()
    found = [ask(row.layer, row.neuron, sign=row.sign, rule=settings["rule"]) for row in rows]
    shown = table if verdict is None else clearest(table, verdict)
    survey = Survey(table, listed, found)
    output.emit(survey, frame=lambda: shown, draws=lambda: [partial(fm.plots.verdicts, table)])


@polysemanticity.command
def neurons(
    neurons: Neurons,
    /,
    *,
    store: StoreFolder,
    sign: SignOrBoth | None = None,
    top: Top | None = None,
    measuring: Measuring = Measuring(),
    model: ScannedChoice = ScannedChoice(),
    output: PlottedOutput = PlottedOutput(),
) -> None:
    """The meanings of single neurons, with their contexts.

    Examples
      ffnmem polysemanticity neurons 1.5 --store runs/atlas --plot meanings.png

    --csv has one row an example: layer, neuron, sign, meaning, rank, coefficient, sequence, position, token, context.

    Args:
        sign: Which coefficients. [default: those of each side on which the neuron fires, the stronger first]
    """
    from ..neurons.concepts import asked_settings, settled
    from ..neurons.measuring import is_kept

    opened, settings = fm.open_store(store), measuring.given
    places = [opened.index(layer, column) for layer, column in neurons]  # refuse all before reading any
    listing = CONTEXTS if top is None and output.form == "table" else top
    sides = [
        (layer, column, one)
        for layer, column in places
        for one in (asked_signs(sign) if sign else opened.signs(layer, column))
    ]
    kept = all(is_kept(opened, one, asked_settings(**settings)) for one in {one for *_, one in sides})
    loaded = None if kept and output.plot is None and model.model is None else model.load(opened)
    with show_progress() as report:
        found = [
            fm.meanings(opened, layer, column, loaded, sign=one, k=listing, progress=count_inputs(report), **settings)
            for layer, column, one in sides
        ]
    drawn = [one for one in found if len(one.table)]
    if output.plot is not None and not drawn:
        raise InputError(f"--plot: neuron {found[0].name} has no examples to draw: it is {found[0].verdict}")
    provenance = found[0].provenance
    output.emit(
        Cards(found, provenance, settled(provenance)),
        top=MEANINGS,
        draws=lambda: [partial(fm.plots.meanings, one) for one in drawn],
        columns=1,
    )


def asked_signs(sign: SignOrBoth) -> tuple[CoefficientSign, ...]:
    return COEFFICIENT_SIGNS if sign == "both" else (sign,)


def count_inputs(report: Progress) -> Callable[..., None]:
    """The library's phase "read" is of tokens here, and of neurons elsewhere."""
    return lambda phase, done, total: report("inputs" if phase == "read" else phase, done, total)


Contexts = Annotated[int, Parameter(validator=Number(gte=4), metavar="N")]


def describe(
    neurons: Neurons,
    /,
    *,
    store: StoreFolder,
    with_: Annotated[str, Parameter(name="--with", metavar="MODEL")],
    device: Device | None = None,
    dtype: Dtype = "float32",
    sign: CoefficientSign | None = None,
    shown: Contexts = CONTEXTS_SHOWN,
    tested: Contexts = CONTEXTS_TESTED,
    together: Count = JUDGED_TOGETHER,
    out: AnswersFile | None = None,
    seed: Seed = 0,
    output: Output = Output(),
) -> None:
    """Descriptions of neurons in words, and how well they fit contexts that were held back.

    A language model on this machine is shown contexts in which a neuron fires, and describes it in a sentence. It is
    then asked to which of other contexts, half of them firing and half quiet, the description applies: the score, a
    balanced accuracy. The null is the same with the description of another neuron. Both are 50% by chance.

    Examples
      ffnmem describe --store runs/atlas 3.17,5.97 --with smollm2

    --csv has one row a neuron: layer, neuron, sign, description, why, score and null with their _low and _high,
    null_of, n, shown, unread. --json has besides every question and answer.

    Args:
        with_: The model that is asked, as --model takes it elsewhere; one that was trained for chats answers best.
        dtype: Numeric type of its weights.
        sign: Which coefficients. [default: those of the side on which each neuron is stronger]
        shown: Contexts that are shown, at most.
        tested: Contexts held back of each kind, firing and quiet, at most.
        together: Contexts in a question of the score.
        out: Keep questions and answers in this file (JSON lines); what it has is not asked again.
    """
    opened = fm.open_store(store)
    opened.places(neurons)  # refuse before a model is loaded
    ask = fm.describing.ask_model(ReaderChoice(model=with_, device=device, dtype=dtype).load())
    with show_progress() as report:
        found = fm.describe(
            opened, neurons, ask, sign=sign, shown=shown, tested=tested, together=together, out=out, seed=seed,
            progress=report,
        )  # fmt: skip
    emit(found, output.form)
