"""``ffnmem polysemanticity`` and ``describe``: is a neuron one concept or many, and words for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

import ffnmem as fm

from ..core.defaults import CONTEXTS_SHOWN, CONTEXTS_TESTED, MEANING_BUDGET, MEANING_DRAWS, RULES
from ..core.errors import InputError
from ..core.types import COEFFICIENT_SIGNS, VERDICTS, CoefficientSign, DescriptionScore, Verdict
from ..show.records import emit
from .neuron import Cards
from .options import (
    AnswersFile,
    Count,
    Layers,
    Neurons,
    Output,
    PlottedOutput,
    Positive,
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
    endpoint: str | None = None,
    explainer_model: str | None = None,
    key_variable: str | None = None,
    timeout: Positive | None = None,
    together: Count | None = None,
    score: bool = False,
    intruder: bool = False,
    rules: bool = False,
    sign: CoefficientSign | None = None,
    shown: Contexts = CONTEXTS_SHOWN,
    tested: Contexts = CONTEXTS_TESTED,
    out: AnswersFile | None = None,
    seed: Seed = 0,
    model: ScannedChoice = ScannedChoice(),
    output: Output = Output(),
) -> None:
    """Words for neurons, and how well they fit contexts that were held back.

    Describes each neuron of a scan in words. Without --endpoint by rules: which tokens, beginnings or endings of words
    the contexts in which it fires share, that text does not have as often anyway. With it, by a language model that is
    shown such contexts, the firing tokens marked. Scores are of other contexts, of other documents: detection asks
    whether the description applies to a context, fuzzing whether the marked tokens are those at which it fires; 50% is
    chance.

    Examples
      ffnmem describe --store runs/atlas 3.17 5.97
      ffnmem describe --store runs/atlas 3.17 --score --json

    A model that llama.cpp serves on this machine is --endpoint http://127.0.0.1:8080/v1 --explainer-model NAME, one of
    Ollama --endpoint http://127.0.0.1:11434/v1.

    --csv has one row a neuron: layer, neuron, sign, description, why, each score with its _low and _high, n, shown,
    unanswered. --json has besides every question and answer.

    Args:
        endpoint: Ask a language model: the base of an OpenAI-compatible address, such as http://127.0.0.1:8080/v1.
            Nothing is sent anywhere without.
        explainer_model: With --endpoint: what the model is called there.
        key_variable: With --endpoint: the environment variable that holds a key for it, which is written nowhere.
            [default: no key]
        timeout: With --endpoint: seconds for an answer. [default: 60]
        together: With --endpoint: questions at once. [default: 4]
        score: Detection and fuzzing, on contexts that the explainer was not shown.
        intruder: Whether the judge finds the context that is not the neuron's.
        rules: Describe by rules all the same: then the model at --endpoint judges what these say.
        sign: Which coefficients. [default: those of the side on which each neuron is stronger]
        shown: Contexts that are shown, at most.
        tested: Contexts held back of a kind.
        out: With --endpoint: keep questions and answers in this file (JSON lines); what it has is not asked again.
    """
    scores: list[DescriptionScore] = [
        *(("detection", "fuzzing") if score else ()),
        *(("intruder",) if intruder else ()),
    ]
    judge = None
    if endpoint is not None:
        if explainer_model is None:
            raise InputError("--endpoint needs --explainer-model NAME: what the model is called there")
        judge = fm.describing.Endpoint(
            endpoint, explainer_model, key_variable=key_variable, timeout=timeout or 60.0, together=together or 4
        )
    elif rules or any(value is not None for value in (explainer_model, key_variable, timeout, together, out)):
        raise InputError(
            "--explainer-model, --key-variable, --timeout, --together, --rules and --out go with --endpoint: "
            "give that, or leave them out"
        )
    opened = fm.open_store(store)
    with show_progress() as report:
        found = fm.describe(
            opened,
            neurons,
            RULES if judge is None or rules else judge,
            judge=judge,
            scores=scores,
            model=model.load(opened) if model.named else None,
            sign=sign,
            shown=shown,
            tested=tested,
            out=out,
            seed=seed,
            progress=report,
        )
    emit(found, output.form)
