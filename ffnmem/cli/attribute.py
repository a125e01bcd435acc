"""``ffnmem attribute``, ``paths``, ``contrast`` and ``decompose``: which memories wrote an answer or an output."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from cyclopts import Parameter

import ffnmem as fm

from ..show.records import emit
from .guard import note
from .options import (
    Answer,
    AnswerToken,
    Full,
    Layer,
    Layers,
    Output,
    Page,
    PlottedOutput,
    Position,
    Prompt,
    PromptChoice,
    Seed,
    Share,
    Top,
)
from .progress import show_progress


def attribute(
    prompt: Prompt,
    /,
    *,
    answer: Answer = Answer(),
    layer: Layers | None = None,
    top: Top = 20,
    full: bool = False,
    model: PromptChoice = PromptChoice(),
    output: PlottedOutput = PlottedOutput(),
) -> None:
    """Which memories, in all layers, wrote an answer.

    Splits the logit of an answer into what every FFN neuron, attention layer, embedding and bias wrote. PROMPT is a
    text; the answer is the token that the model is to say next.

    The table shows the model's own top tokens, the neurons that wrote most towards the target (or away from it) with
    the tokens that they promoted there (where a coefficient is negative, those that the value suppresses), and all
    components, which add up to the model's logit. A neuron that suppresses the target or the foil strongly (2 standard
    deviations of its scores or more) is shown with the tokens that it suppresses.

    Examples
      ffnmem attribute "The Eiffel Tower is located in the city of"
      ffnmem attribute "The Eiffel Tower is located in the city of" \\
          --target " Paris" --foil " Rome" --layer 4 --layer 5
      ffnmem attribute "The capital of France is" --json | jq '.neurons[0]'

    --json has the neurons, the components, their error, the top predictions and the provenance; --csv has the neurons:
    layer, neuron, coefficient, logit, share. With --full all have the tokens that a neuron promoted and suppressed.

    Args:
        layer: List neurons of this layer only (repeatable); the components stay complete.
        full: The tokens that each neuron promoted, and those that it suppressed.
    """
    from ..vocabulary.projections import written_tokens  # needs torch

    capture = model.capture(prompt)
    shown = list(dict.fromkeys(capture.model.layer(number) for number in layer or ()))
    found = fm.attribute(capture, **vars(answer))
    neurons = found.strongest(top, shown)
    if full or output.form == "table":
        answered = [*found.target_ids, *([] if found.foil_id is None else [found.foil_id])]
        written = written_tokens(capture.model, neurons, answered)
    if full:
        sides = [written[place] for place in zip(neurons["layer"], neurons["neuron"], strict=True)]
        neurons = neurons.assign(promoted=[side[0] for side in sides], suppressed=[side[1] for side in sides])
    output.emit(
        found,
        drawn={"top": min(top, 40)},
        sheet=lambda: found.sheet(top, layers=shown, capture=capture, written=written, full=full),
        data=lambda: {
            **found.to_dict(1),
            "neurons": neurons.to_dict("records"),
            "predictions": capture.predictions(found.position).to_dict("records"),
        },
        frame=lambda: neurons,
    )


def paths(
    prompt: Prompt,
    /,
    *,
    answer: Answer = Answer(),
    top: Top = 20,
    model: PromptChoice = PromptChoice(),
    output: PlottedOutput = PlottedOutput(),
) -> None:
    """Which memories, at which positions, wrote an answer.

    Splits the logit of an answer into what FFN neurons at every position of PROMPT wrote, carried by attention.
    "attribute" credits attention with what it brings from elsewhere. This opens it: with attention patterns and norm
    scales as they are, the logit is an exact sum over embeddings, biases and every neuron at every position. That a
    memory made a later one fire is not counted.

    Examples
      ffnmem paths "The Eiffel Tower is located in the city of"
      ffnmem paths "The capital of France is" --target " Paris" --foil " Rome"
      ffnmem paths "The capital of France is" --json | jq '.map'

    --json has the firings, the map by layer and position, the components, their error and the provenance; --csv has the
    firings: layer, neuron, position, token, coefficient, logit, share.
    """
    found = fm.attribute_paths(model.capture(prompt), **vars(answer))
    output.emit(found, top=top, full=False, frame=lambda: found.top(top), drawn={"top": min(top, 40)})


def decompose(
    prompt: Prompt,
    /,
    *,
    layer: Layer,
    position: Position = -1,
    top: Top = 20,
    model: PromptChoice = PromptChoice(),
    output: Output = Output(),
) -> None:
    """Which memories make up one layer's output.

    Splits one FFN's output at one position of PROMPT into its memories: y = sum of coefficient * value, plus bias.
    Neurons come by falling weight, which is |coefficient| * the value's norm. A share is how much of the output, along
    its own direction, a neuron wrote: all shares and the bias's sum to 100%.

    Examples
      ffnmem decompose "The Eiffel Tower is located in the city of" --layer 5
      ffnmem decompose "The Eiffel Tower is in" --layer -1 --position 2 --csv

    --json and --csv have layer, neuron (-1 for the bias), coefficient, value_norm, weight, share.

    Args:
        layer: Which layer; -1 is the last.
        position: Where in the prompt: 0 is the first token, -1 the last.
    """
    from ..prompts.attribution import BIAS, decomposition_sheet  # these need torch
    from ..vocabulary.projections import promoted_tokens

    capture = model.capture(prompt, layers=layer)
    whole = fm.decompose(capture, layer, position)
    listed = whole[whole["neuron"] != BIAS].head(top)
    shown = whole[(whole["neuron"] == BIAS) | whole.index.isin(listed.index)]
    promoted = partial(promoted_tokens, capture.model, listed, fired="coefficient")
    emit(
        shown,
        output.form,
        sheet=lambda: decomposition_sheet(capture, whole, listed, promoted()),
        data=lambda: {
            "tokens": capture.token_strings(),
            "layer": capture.layers[0],
            "position": whole.attrs["position"],
            "error": whole.attrs["error"],
            "neurons": shown.to_dict("records"),
            "provenance": whole.attrs["provenance"],
        },
    )


Other = Annotated[str, Parameter(help="One that differs from it and is answered otherwise.")]


def contrast(
    prompt: Prompt,
    counterfactual: Other,
    /,
    *,
    target: AnswerToken | None = None,
    foil: AnswerToken | None = None,
    goal: Share = 0.9,
    recorded: bool = False,
    html: Page | None = None,
    top: Top = 20,
    full: Full = False,
    seed: Seed = 0,
    model: PromptChoice = PromptChoice(),
    output: PlottedOutput = PlottedOutput(),
) -> None:
    """Which few firings decide between the answers to two prompts.

    Finds the fewest firings that it can (a firing is a neuron at a position) such that, with every other one as in the
    run of COUNTERFACTUAL, most of the difference between target and foil stays, and without which it is lost. Both
    shares, and what these firings bring into the run of COUNTERFACTUAL, stand beside those of as many random ones.
    Target and foil are what the model says after each, unless they are given.

    Examples
      ffnmem contrast "The Eiffel Tower is located in the city of" \\
          "The Kremlin is located in the city of"
      ffnmem contrast "The capital of France is" "The capital of Italy is" \\
          --target " Paris" --foil " Rome" --plot capitals.png
      ffnmem contrast "The capital of France is" "The capital of Italy is" \\
          --html capitals.html

    --csv has the firings: layer, neuron, position, token, other_token, coefficient, counterfactual, difference, score,
    exact, promotes. --json has these, the proof, the search and the provenance.

    Args:
        target: What the model says after PROMPT. [default: its own top token]
        foil: What it says after COUNTERFACTUAL. [default: its own top token]
        goal: The share of the difference that the firings keep alone, and that is lost without them.
        recorded: Keep firings as they were in the run that keeps them, whatever is then below them.
        html: Also write the result as a page.
    """
    loaded = model.load()
    one, other = (model.prompt_text(loaded, text) for text in (prompt, counterfactual))
    with show_progress() as progress:
        found = fm.contrast(loaded, one, other, target, foil, goal, recorded=recorded, seed=seed, progress=progress)
    output.emit(found, top=top, full=full)
    if html is not None:
        note(f"wrote {fm.pages.contrast(found, html)}")
