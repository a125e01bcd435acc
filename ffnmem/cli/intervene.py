"""``ffnmem ablate`` and ``intervene``: what a model says without some neurons, or with other coefficients."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Any, Literal, SupportsIndex

from cyclopts import Parameter

import ffnmem as fm

from ..core.errors import InputError, quoted
from ..core.neuron_names import WHOLE_LAYER, is_place, read_neuron_or_layer
from ..show.records import emit
from .options import Answer, Count, Neurons, Output, PlottedOutput, Position, Positions, Prompt, PromptChoice, Seed, Top
from .progress import show_progress

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


def read_changes(typed: dict[str, list[str]]) -> dict[tuple[int, SupportsIndex | None], Any]:
    """The change of each (layer, neuron), None for all neurons; raises InputError naming what cannot be read."""
    kinds = {"set": fm.interventions.Set, "scale": fm.interventions.Scale, "add": fm.interventions.Add}
    changes: dict[tuple[int, SupportsIndex | None], Any] = {}
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


def ablate(
    prompt: Prompt,
    /,
    *,
    answer: Answer = Answer(),
    neurons: Neurons | None = None,
    top: Top = 20,
    how: Literal["zero", "mean"] = "zero",
    positions: Positions | None = None,
    attribution: Literal["direct", "paths", "integrated-gradients"] = "direct",
    model: PromptChoice = PromptChoice(),
    output: PlottedOutput = PlottedOutput(),
) -> None:
    """What the absence of single neurons does to an answer.

    Removes neurons one at a time and compares the direct effect on the answer with the total one. PROMPT is a text; the
    answer is the token that the model is to say next. The direct effect is what attribution says: the neuron's own
    write into the logit, all else frozen. The total effect is the logit with it minus the logit without it, later
    layers reacting. Where the two differ much, attribution alone misleads.

    Examples
      ffnmem ablate "The Eiffel Tower is located in the city of"
      ffnmem ablate "The Eiffel Tower is located in the city of" \\
          --target " Paris" --neurons 5.349,5.171 --how mean --at -1
      ffnmem ablate "The capital of France is" --attribution paths
      ffnmem ablate "The capital of France is" --top 64 --plot effects.png

    --csv has layer, neuron, coefficient (at the answer), direct, logit (the total effect), probability, loss,
    peak_position and peak (where the neuron fires most, and how strongly, which is what the table shows), and with
    integrated gradients attribution. Positive ones add to the answer; loss is what the neuron saves. --json has these
    and more.

    Args:
        how: What a removed neuron's coefficient becomes: zero, or its mean over the prompt.
        attribution: What puts neurons first: direct effects on the logit, paths from all positions through attention
            (which see what the subject's neurons wrote), or integrated-gradients of the probability.
    """
    from ..vocabulary.projections import promoted_tokens  # needs torch

    gradients, asked = attribution == "integrated-gradients", dict(vars(answer))
    if gradients and asked.pop("foil") is not None:
        raise InputError("--foil does not go with integrated-gradients, which explain a probability: leave it out")
    capture = model.capture(prompt)
    attributed = None
    if gradients:
        attributed = fm.interventions.knowledge_neurons(capture, **asked)
        if neurons is None:
            neurons = list(attributed[["layer", "neuron"]].head(top).itertuples(index=False, name=None))
    by = "paths" if attribution == "paths" else "direct"
    with show_progress() as report:
        found = fm.ablate(
            capture, neurons=neurons, top=top, by=by, how=how, positions=positions, progress=report, **asked
        )
    table = found.neurons
    if attributed is not None:  # as a last column
        table = table.merge(attributed[["layer", "neuron", "attribution"]], on=["layer", "neuron"], how="left")
    output.emit(
        found,
        sheet=lambda: found.sheet(None, promoted=promoted_tokens(capture.model, table, fired="peak"), attributed=table),
        data=lambda: {**found.to_dict(), "neurons": table.to_dict("records")},
        frame=lambda: table,
    )
