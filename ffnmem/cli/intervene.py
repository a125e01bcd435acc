"""``ffnmem intervene``: what a model says with other coefficients."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

import ffnmem as fm

from ..core.errors import InputError, quoted
from ..core.neuron_names import WHOLE_LAYER, read_neuron_or_layer
from ..show.records import emit
from .guard import Command
from .options import (
    COUNT,
    Function,
    ModelChoice,
    at_option,
    bos_option,
    model_options,
    output_options,
    prompt_argument,
    text,
    top_option,
)

if TYPE_CHECKING:
    import pandas as pd

    from ..models.model import Model
    from ..prompts.captures import Capture

NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
Asked = dict[tuple[int, int | None], Any]


def change_option(name: str, verb: str) -> Callable[[Function], Function]:
    """--set, --scale or --add."""
    return click.option(
        f"--{name}",
        f"{name}s",
        type=text,
        multiple=True,
        metavar="LAYER.NEURON=NUMBER",
        help=f"{verb}; LAYER.all is every neuron of the layer (repeatable, or several with commas).",
    )


@click.command(cls=Command, short_help="What a model says when coefficients are changed.")
@prompt_argument
@change_option("set", "Set a neuron's coefficient to a number")
@change_option("scale", "Multiply a neuron's coefficient")
@change_option("add", "Add to a neuron's coefficient")
@at_option
@click.option(
    "--position",
    type=int,
    default=-1,
    show_default=True,
    metavar="POSITION",
    help="Where the next token is read off: 0 is the first token, -1 the last.",
)
@top_option("How many tokens to list: the likeliest before or after.", default=10)
@click.option("--generate", "new", type=COUNT, metavar="N", help="Also continue the prompt by N tokens, both ways.")
@click.option(
    "--temperature",
    type=float,
    metavar="T",
    help="Sample the continuations with this temperature.  [default: the likeliest token each time]",
)
@click.option("--seed", type=click.IntRange(min=0), metavar="SEED", help="Of the sampling.  [default: 0]")
@bos_option
@model_options
@output_options
def intervene(
    prompt: str,
    sets: tuple[str, ...],
    scales: tuple[str, ...],
    adds: tuple[str, ...],
    positions: tuple[int, ...],
    position: int,
    top: int,
    new: int | None,
    temperature: float | None,
    seed: int | None,
    choice: ModelChoice,
    form: str,
) -> None:
    """Change coefficients of neurons and see what the model says next, before and after.

    PROMPT is a text. Neurons are changed at every position of it, and at every token generated, unless --at says
    where. With --generate, the text goes on both ways. What a model knows of a subject hangs on many neurons: of one
    that is set to 0 little shows. The first example removes all of layer 0 at the subject.

    \b
    Examples
      ffnmem intervene "The Eiffel Tower is located in the city of" \\
          --set 0.all=0 --at 2 --at 3
      ffnmem intervene "The capital of France is" \\
          --scale 0.895=-2,1.594=-2,4.163=-2 --at 4
      ffnmem intervene "The capital of France is" --set 1.all=0 --generate 8

    --csv has token, token_id, before, after (probabilities), change, rank_before, rank_after, logit_before,
    logit_after. --json has these and the continuations.
    """
    from ..interventions.intervening import (
        compare_predictions,
        comparison_sheet,  # needs torch
    )

    asked = read_changes(sets, scales, adds)
    if new is None and (temperature is not None or seed is not None):
        raise InputError("--temperature and --seed go with --generate N: give that, or leave them out")
    if temperature is None and seed is not None:
        raise InputError("--seed goes with --temperature: without it nothing is drawn")
    model = choice.load()
    before = fm.capture(model, prompt)
    changed = {where: made(kind, value) for where, (kind, value) in asked.items()}
    with fm.intervene(model, changed, positions=positions or None):
        after = fm.capture(model, prompt)
    found = compare_predictions(before, after, position, top)
    texts = None
    if new is not None:
        texts = continued(model, before, changed, positions, new, temperature, seed or 0)
    emit(
        None,
        form,
        sheet=lambda: comparison_sheet(before, after, found, position, texts),
        data=lambda: as_json(before, after, found, position, texts),
        frame=lambda: found,
    )


def read_changes(sets: tuple[str, ...], scales: tuple[str, ...], adds: tuple[str, ...]) -> dict[Any, tuple[str, float]]:
    """What is asked of each (layer, neuron), None for all; raises InputError naming what cannot be read."""
    found: dict[tuple[int, int | None], tuple[str, float]] = {}
    for kind, texts in (("set", sets), ("scale", scales), ("add", adds)):
        for part in (part.strip() for given in texts for part in given.split(",")):
            name, _, value = part.partition("=")
            where = asked_neuron(name)
            if where is None or re.fullmatch(NUMBER, value, re.ASCII) is None:
                raise InputError(
                    f"--{kind} {quoted(part)}: write LAYER.NEURON=NUMBER, such as 3.17=0, or LAYER.{WHOLE_LAYER}=NUMBER"
                )
            if where in found:
                raise InputError(f"{name} is changed twice: give one of --set, --scale and --add for it")
            found[where] = (kind, float(value))
    if not found:
        raise InputError("nothing is changed: give --set, --scale or --add, such as --set 3.17=0")
    return found


def asked_neuron(name: str) -> tuple[int, int | None] | None:
    """Layer and neuron of a name, which is None for a whole layer; None where it names neither."""
    try:
        return read_neuron_or_layer(name)
    except InputError:
        return None


def made(kind: str, value: float) -> Any:
    return {"set": fm.interventions.Set, "scale": fm.interventions.Scale, "add": fm.interventions.Add}[kind](value)


def continued(
    model: Model,
    capture: Capture,
    changed: Asked,
    positions: tuple[int, ...],
    new: int,
    temperature: float | None,
    seed: int,
) -> dict[str, list[int]]:
    """The ids that follow the prompt, as the model is and as it is changed."""
    from ..models.answers import generate  # needs torch

    tokens = capture.tokens[0].tolist()
    before = generate(model, tokens, new, temperature=temperature, seed=seed)
    with fm.intervene(model, changed, positions=positions or None):
        after = generate(model, tokens, new, temperature=temperature, seed=seed)
    return {"before": before, "after": after}


def as_json(
    before: Capture, after: Capture, found: pd.DataFrame, position: int, texts: dict[str, list[int]] | None
) -> dict[str, Any]:
    result = {
        "prompt_tokens": before.token_strings(),
        "position": before.position(position),
        "interventions": dict(after.provenance.settings)["interventions"],
        "predictions": found.to_dict("records"),
    }
    if texts is not None:
        model = before.model
        result["generated"] = {
            name: {"text": model.tokenizer.decode(ids), "tokens": model.token_strings(ids), "token_ids": ids}
            for name, ids in texts.items()
        }
    return {**result, "provenance": after.provenance.to_dict()}
