"""``ffnmem ablate``: what the absence of neurons does to an answer, beside what attribution says."""

from __future__ import annotations

from typing import Literal

import ffnmem as fm

from ..core.errors import InputError
from .options import Answer, Neurons, PlottedOutput, Positions, Prompt, PromptChoice, Top
from .progress import show_progress


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
        attributed = fm.interventions.knowledge_neurons(capture, **asked).neurons
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
