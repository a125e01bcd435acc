"""``ffnmem describe``: words for neurons."""

from __future__ import annotations

from typing import Any

import click

import ffnmem as fm

from ..core.defaults import CONTEXTS_SHOWN, CONTEXTS_TESTED, RULES
from ..core.errors import InputError
from ..core.types import COEFFICIENT_SIGNS
from ..show.records import emit
from . import click_options as options
from .click_guard import Command
from .click_options import ANSWERS, COUNT, argument, file_to_write, option, read_neurons, refuse
from .progress import Progress


@click.command(cls=Command, short_help="Words for neurons, and how well they fit contexts that were held back.")
@argument("neurons", nargs=-1, required=True, metavar="NEURON...")
@option("--store", required=True, metavar="DIR", help="The scan that the contexts are of.")
@option(
    "--endpoint",
    metavar="URL",
    help="Ask a language model: the base of an OpenAI-compatible address, such as http://127.0.0.1:8080/v1. Nothing is "
    "sent anywhere without.",
)
@option("--explainer-model", metavar="NAME", help="What the model is called there.")
@option(
    "--key-variable",
    metavar="NAME",
    help="The environment variable that holds a key for it, which is written nowhere.  [default: no key]",
)
@option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=60.0, metavar="SECONDS", help="For an answer."
)
@option("--together", type=COUNT, default=4, metavar="N", help="Questions at once.")
@option("--score", is_flag=True, help="Detection and fuzzing, on contexts that the explainer was not shown.")
@option("--intruder", is_flag=True, help="Whether the judge finds the context that is not the neuron's.")
@option(
    "--rules",
    "by_rules",
    is_flag=True,
    help="Describe by rules all the same: then the model at --endpoint judges what these say.",
)
@option("--sign", type=click.Choice(COEFFICIENT_SIGNS), default="positive", help="Which coefficients.")
@option(
    "--shown", type=click.IntRange(min=4), default=CONTEXTS_SHOWN, metavar="N", help="Contexts that are shown, at most."
)
@option(
    "--tested", type=click.IntRange(min=4), default=CONTEXTS_TESTED, metavar="N", help="Contexts held back of a kind."
)
@option(
    "--out",
    callback=file_to_write(ANSWERS),
    metavar="FILE",
    help="Keep questions and answers in FILE (JSON lines); what it has is not asked again.",
)
@options.seed("Of which contexts are drawn.")
@option(
    "--model",
    "model_name",
    metavar="MODEL",
    help="The model that was scanned, if it is no longer where it was.  [default: by the store's record]",
)
@options.device
@options.output
@click.pass_context
def describe(context: click.Context, /, neurons: tuple[str, ...], store: str, form: str, **asked: Any) -> None:
    """Describe each NEURON of a scan, such as 3.17, in words.

    Without --endpoint by rules: which tokens, beginnings or endings of words the contexts in which it fires share, that
    text does not have as often anyway. With it, by a language model that is shown such contexts, the firing tokens
    marked. Scores are of other contexts, of other documents: detection asks whether the description applies to a
    context, fuzzing whether the marked tokens are those at which it fires; 50% is chance.

    \b
    Examples
      ffnmem describe --store runs/atlas 3.17 5.97
      ffnmem describe --store runs/atlas 3.17 --score --json

    A model that llama.cpp serves on this machine is --endpoint http://127.0.0.1:8080/v1 --explainer-model NAME, one of
    Ollama --endpoint http://127.0.0.1:11434/v1.

    --csv has one row a neuron: layer, neuron, description, why, each score with its _low and _high, n, shown,
    unanswered. --json has besides every question and answer.
    """
    scores = [*(("detection", "fuzzing") if asked["score"] else ()), *(("intruder",) if asked["intruder"] else ())]
    endpoint = endpoint_of(context, asked)
    places = read_neurons(neurons)
    opened = fm.open_store(store)
    if asked["model_name"] is not None or asked["device"] is not None:
        model = options.scanned_model(opened, asked["model_name"], asked["device"]).load()
    else:
        model = None
    with Progress() as bars:
        found = fm.describe(
            opened,
            places,
            RULES if endpoint is None or asked["by_rules"] else endpoint,
            judge=endpoint,
            scores=scores,
            model=model,
            sign=asked["sign"],
            shown=asked["shown"],
            tested=asked["tested"],
            out=asked["out"],
            seed=asked["seed"],
            progress=bars.report,
        )
    emit(found, form)


def endpoint_of(context: click.Context, asked: dict[str, Any]) -> Any:
    """The endpoint asked for; None for none. Raises InputError."""
    if asked["endpoint"] is None:
        refuse(
            context,
            ("explainer_model", "key_variable", "timeout", "together", "by_rules", "out"),
            "rules (no --endpoint)",
        )
        return None
    if asked["explainer_model"] is None:
        raise InputError("--endpoint needs --explainer-model NAME: what the model is called there")
    return fm.describing.Endpoint(
        asked["endpoint"],
        asked["explainer_model"],
        key_variable=asked["key_variable"],
        timeout=asked["timeout"],
        together=asked["together"],
    )
