"""``ffnmem intervene``: what a model says with other coefficients."""

from __future__ import annotations

import re
from typing import Any

import click

import ffnmem as fm

from ..core.errors import InputError, quoted
from ..core.neuron_names import WHOLE_LAYER, is_place, read_neuron_or_layer
from ..show.records import emit
from . import click_options as options
from .click_guard import Command
from .click_options import COUNT, Decorator, ModelChoice, option

NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"


def change(name: str, verb: str) -> Decorator:
    """--set, --scale or --add."""
    return option(
        f"--{name}",
        f"{name}s",
        multiple=True,
        metavar="LAYER.NEURON=NUMBER",
        help=f"{verb}; LAYER.all is every neuron of the layer (repeatable, or several with commas).",
    )


@click.command(cls=Command, short_help="What a model says when coefficients are changed.")
@options.prompt
@change("set", "Set a neuron's coefficient to a number")
@change("scale", "Multiply a neuron's coefficient")
@change("add", "Add to a neuron's coefficient")
@options.at
@options.position("Where the next token is read off")
@options.top("How many tokens to list: the likeliest before or after.", default=10)
@option("--generate", "new", type=COUNT, metavar="N", help="Also continue the prompt by N tokens, both ways.")
@option(
    "--temperature",
    type=float,
    metavar="T",
    help="Sample the continuations with this temperature.  [default: the likeliest token each time]",
)
@option("--seed", type=options.SEED, metavar="SEED", help="Of the sampling.  [default: 0]")
@options.bos
@options.model
@options.output
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
    from ..interventions.intervening import compare_predictions, comparison_sheet  # these need torch
    from ..models.answers import generate

    asked = read_changes({"set": sets, "scale": scales, "add": adds})
    if new is None and (temperature is not None or seed is not None):
        raise InputError("--temperature and --seed go with --generate N: give that, or leave them out")
    if temperature is None and seed is not None:
        raise InputError("--seed goes with --temperature: without it nothing is drawn")
    kinds = {"set": fm.interventions.Set, "scale": fm.interventions.Scale, "add": fm.interventions.Add}
    changed = {where: kinds[kind](value) for where, (kind, value) in asked.items()}
    model = choice.load()
    before = fm.capture(model, choice.asked(model, prompt))

    def continued(length: int) -> list[int]:
        return generate(model, before.tokens[0].tolist(), length, temperature=temperature, seed=seed or 0)

    with fm.intervene(model, changed, positions=positions or None):
        after = fm.capture(model, choice.asked(model, prompt))
        ids_after = [] if new is None else continued(new)
    found = compare_predictions(before, after, position, top)
    texts = None if new is None else {"before": continued(new), "after": ids_after}

    def data() -> dict[str, Any]:
        result = {
            "prompt_tokens": before.token_strings(),
            "position": before.position(position),
            "interventions": dict(after.provenance.settings)["interventions"],
            "predictions": found.to_dict("records"),
        }
        if texts is not None:
            result["generated"] = {
                name: {"text": model.tokenizer.decode(ids), "tokens": model.token_strings(ids), "token_ids": ids}
                for name, ids in texts.items()
            }
        return {**result, "provenance": after.provenance.to_dict()}

    emit(
        None,
        form,
        sheet=lambda: comparison_sheet(before, after, found, position, texts),
        data=data,
        frame=lambda: found,
    )


def read_changes(given: dict[str, tuple[str, ...]]) -> dict[tuple[int, int | None], tuple[str, float]]:
    """What is asked of each (layer, neuron), None for all; raises InputError naming what cannot be read."""
    found: dict[tuple[int, int | None], tuple[str, float]] = {}
    for kind, texts in given.items():
        for part in (part.strip() for text in texts for part in text.split(",")):
            name, _, value = part.partition("=")
            try:
                where = read_neuron_or_layer(name)
            except InputError:
                if is_place(name):
                    raise
                where = None
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
