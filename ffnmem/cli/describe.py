"""``ffnmem describe``: words for neurons."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

import ffnmem as fm

from ..core.defaults import CONTEXTS_SHOWN, CONTEXTS_TESTED, RULES
from ..core.errors import InputError
from ..core.types import CoefficientSign, DescriptionScore
from ..show.records import emit
from .options import AnswersFile, Count, Neurons, Output, Positive, ScannedChoice, Seed, StoreFolder
from .progress import show_progress

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
    sign: CoefficientSign = "positive",
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

    --csv has one row a neuron: layer, neuron, description, why, each score with its _low and _high, n, shown,
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
        sign: Which coefficients.
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
