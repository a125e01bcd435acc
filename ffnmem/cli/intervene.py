"""``ffnmem intervene``: what a model says with other coefficients."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Any

from cyclopts import Parameter

import ffnmem as fm

from ..core.errors import InputError, quoted
from ..core.neuron_names import WHOLE_LAYER, is_place, read_neuron_or_layer
from ..show.records import emit
from .options import Count, Output, Position, Positions, Prompt, PromptChoice, Seed, Top

NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
Changes = Annotated[list[str], Parameter(metavar="LAYER.NEURON=NUMBER")]


def intervene(
    prompt: Prompt,
    /,
    *,
    set: Changes | None = None,
    scale: Changes | None = None,
    add: Changes | None = None,
    positions: Positions | None = None,
    position: Position = -1,
    top: Top = 10,
    generate: Count | None = None,
    temperature: float | None = None,
    seed: Seed | None = None,
    model: PromptChoice = PromptChoice(),
    output: Output = Output(),
) -> None:
    """What a model says when coefficients are changed.

    Changes coefficients of neurons and shows what the model says next, before and after. Neurons are changed at every
    position of PROMPT, and at every token generated, unless --at says where. With --generate, the text goes on both
    ways. What a model knows of a subject depends on many neurons: of one that is set to 0 little shows. The first
    example removes all of layer 0 at the subject.

    Examples
      ffnmem intervene "The Eiffel Tower is located in the city of" \\
          --set 0.all=0 --at 2 --at 3
      ffnmem intervene "The capital of France is" \\
          --scale 0.895=-2,1.594=-2,4.163=-2 --at 4
      ffnmem intervene "The capital of France is" --set 1.all=0 --generate 8

    --csv has token, token_id, before, after (probabilities), change, rank_before, rank_after, logit_before,
    logit_after. --json has these and the continuations.

    Args:
        set: Set a neuron's coefficient to a number; LAYER.all is every neuron of the layer (repeatable, or several
            with commas).
        scale: Multiply a neuron's coefficient; named as in --set.
        add: Add to a neuron's coefficient; named as in --set.
        position: Where the next token is read off: 0 is the first token, -1 the last.
        generate: Also continue the prompt by N tokens, both ways.
        temperature: Sample the continuations with this temperature. [default: the likeliest token each time]
    """
    from ..interventions.intervening import compare_predictions, comparison_sheet  # these need torch
    from ..models.answers import generate as continue_text

    changes = read_changes({"set": set or [], "scale": scale or [], "add": add or []})
    if generate is None and (temperature is not None or seed is not None):
        raise InputError("--temperature and --seed go with --generate N: give that, or leave them out")
    if temperature is None and seed is not None:
        raise InputError("--seed goes with --temperature: without it nothing is drawn")
    before = model.capture(prompt)
    loaded = before.model

    def continued() -> list[int]:
        length = generate or 0
        return continue_text(loaded, before.tokens[0].tolist(), length, temperature=temperature, seed=seed or 0)

    with fm.intervene(loaded, changes, positions=positions):
        after = fm.capture(loaded, model.prompt_text(loaded, prompt))
        ids_after = [] if generate is None else continued()
    found = compare_predictions(before, after, position, top)
    texts = None if generate is None else {"before": continued(), "after": ids_after}

    def data() -> dict[str, Any]:
        result = {
            "tokens": before.token_strings(),
            "position": before.position(position),
            "interventions": dict(after.provenance.settings)["interventions"],
            "predictions": found.to_dict("records"),
        }
        if texts is not None:
            result["generated"] = {
                name: {"text": loaded.tokenizer.decode(ids), "tokens": loaded.token_strings(ids), "token_ids": ids}
                for name, ids in texts.items()
            }
        return {**result, "provenance": after.provenance.to_dict()}

    sheet = partial(comparison_sheet, before, after, found, position, texts)
    emit(found, output.form, sheet=sheet, data=data)


def read_changes(typed: dict[str, list[str]]) -> dict[tuple[int, int | None], Any]:
    """The change of each (layer, neuron), None for all neurons; raises InputError naming what cannot be read."""
    kinds = {"set": fm.interventions.Set, "scale": fm.interventions.Scale, "add": fm.interventions.Add}
    changes: dict[tuple[int, int | None], Any] = {}
    for kind, texts in typed.items():
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
            if where in changes:
                raise InputError(f"{name} is changed twice: give one of --set, --scale and --add for it")
            changes[where] = kinds[kind](float(value))
    if not changes:
        raise InputError("nothing is changed: give --set, --scale or --add, such as --set 3.17=0")
    return changes
