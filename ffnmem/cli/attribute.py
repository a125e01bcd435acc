"""``ffnmem attribute``, ``paths`` and ``decompose``: which memories wrote an answer, or a layer's output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import ffnmem as fm

from ..show.records import emit
from . import options
from .figures import save_figure
from .guard import Command, note
from .options import ModelChoice, option

# `ffnmem attribute`: which memories, in all layers, wrote an answer.


@click.command(cls=Command, short_help="Which memories, in all layers, wrote an answer.")
@options.prompt
@options.answer
@option(
    "--layer",
    "layers",
    type=options.LAYER,
    multiple=True,
    metavar="LAYER",
    help="List neurons of this layer only (repeatable); the components stay complete.",
)
@options.top("How many neurons to list.")
@click.option("--full", is_flag=True, help="The tokens that each neuron promoted, and those that it suppressed.")
@options.plot("the layers, and the top neurons of them all,")
@options.bos
@options.model
@options.output
def attribute(
    prompt: str,
    layers: tuple[int, ...],
    top: int,
    full: bool,
    plot: Path | None,
    choice: ModelChoice,
    form: str,
    **answer: Any,
) -> None:
    """Split the logit of an answer into what every FFN neuron, attention layer, embedding and bias wrote.

    PROMPT is a text; the answer is the token that the model is to say next. The table shows the model's own top
    tokens, the neurons that wrote most towards the target (or away from it) with the tokens that they promoted there
    (where a coefficient is negative, those that the value suppresses), and all components, which add up to the model's
    logit. A neuron that suppresses the target or the foil strongly (2 standard deviations of its scores or more) is
    shown with the tokens that it suppresses.

    \b
    Examples
      ffnmem attribute "The Eiffel Tower is located in the city of"
      ffnmem attribute "The Eiffel Tower is located in the city of" \\
          --target " Paris" --foil " Rome" --layer 4 --layer 5
      ffnmem attribute "The capital of France is" --json | jq '.neurons[0]'

    --json has the neurons, the components, their error, the top predictions and the provenance; --csv has the neurons:
    layer, neuron, coefficient, logit, share. With --full all have the tokens that a neuron promoted and suppressed.
    """
    from ..vocabulary.projections import written_tokens  # needs torch

    model = choice.load()
    shown = list(dict.fromkeys(model.layer(layer) for layer in layers))
    capture = fm.capture(model, choice.asked(model, prompt))
    found = fm.attribute(capture, **answer)
    neurons = found.strongest(top, shown)
    if full or form == "table":
        answered = [*found.target_ids, *([] if found.foil_id is None else [found.foil_id])]
        written = written_tokens(model, neurons, answered)
    if full:
        sides = [written[at] for at in zip(neurons["layer"], neurons["neuron"], strict=True)]
        neurons = neurons.assign(promoted=[one[0] for one in sides], suppressed=[one[1] for one in sides])
    emit(
        found,
        form,
        sheet=lambda: found.sheet(top, layers=shown, capture=capture, written=written, full=full),
        data=lambda: {
            **found.to_dict(1),
            "neurons": neurons.to_dict("records"),
            "predictions": capture.predictions(found.position).to_dict("records"),
        },
        frame=lambda: neurons,
    )
    if plot is not None:
        save_figure(found, plot, top)
        note(f"wrote {plot}")


# `ffnmem paths`: which memories, at which positions, wrote an answer, along all paths through attention.


@click.command(cls=Command, short_help="Which memories, at which positions, wrote an answer.")
@options.prompt
@options.answer
@options.top("How many firings to list.")
@options.plot("the map of layers and positions, and the top firings,")
@options.bos
@options.model
@options.output
def paths(prompt: str, top: int, plot: Path | None, choice: ModelChoice, form: str, **answer: Any) -> None:
    """Split the logit of an answer into what FFN neurons at every position of PROMPT wrote, carried by attention.

    "attribute" credits attention with what it brings from elsewhere. This opens it: with attention patterns and norm
    scales as they are, the logit is an exact sum over embeddings, biases and every neuron at every position. That a
    memory made a later one fire is not counted.

    \b
    Examples
      ffnmem paths "The Eiffel Tower is located in the city of"
      ffnmem paths "The capital of France is" --target " Paris" --foil " Rome"
      ffnmem paths "The capital of France is" --json | jq '.map'

    --json has the firings, the map by layer and position, the components, their error and the provenance; --csv has the
    firings: layer, neuron, position, token, coefficient, logit, share.
    """
    model = choice.load()
    capture = fm.capture(model, choice.asked(model, prompt))
    found = fm.attribute_paths(capture, **answer)
    emit(found, form, sheet=lambda: found.sheet(top), data=lambda: found.to_dict(top), frame=lambda: found.top(top))
    if plot is not None:
        save_figure(found, plot, top)
        note(f"wrote {plot}")


# `ffnmem decompose`: which memories make up one layer's output.


@click.command(cls=Command, short_help="Which memories make up one layer's output.")
@options.prompt
@option("--layer", type=options.LAYER, required=True, metavar="LAYER", help="Which layer; -1 is the last.")
@options.position("Where in the prompt")
@options.top("How many neurons to list; the output bias always is.")
@options.bos
@options.model
@options.output
def decompose(prompt: str, layer: int, position: int, top: int, choice: ModelChoice, form: str) -> None:
    """Split one FFN's output at one position of PROMPT into its memories: y = sum of coefficient * value, plus bias.

    Neurons come by falling weight, which is |coefficient| * the value's norm. A share is how much of the output, along
    its own direction, a neuron wrote: all shares and the bias's sum to 100%.

    \b
    Examples
      ffnmem decompose "The Eiffel Tower is located in the city of" --layer 5
      ffnmem decompose "The Eiffel Tower is in" --layer -1 --position 2 --csv

    --json and --csv have layer, neuron (-1 for the bias), coefficient, value_norm, weight, share.
    """
    from ..prompts.attribution import BIAS, decomposition_sheet  # needs torch
    from ..vocabulary.projections import promoted_tokens

    model = choice.load()
    capture = fm.capture(model, choice.asked(model, prompt), layers=layer)
    whole = fm.decompose(capture, layer, position)
    listed = whole[whole["neuron"] != BIAS].head(top)
    shown = whole[(whole["neuron"] == BIAS) | whole.index.isin(listed.index)]
    emit(
        None,
        form,
        sheet=lambda: decomposition_sheet(capture, whole, listed, promoted_tokens(model, listed, fired="coefficient")),
        data=lambda: {
            "prompt_tokens": capture.token_strings(),
            "layer": model.layer(layer),
            "position": whole.attrs["position"],
            "error": whole.attrs["error"],
            "neurons": shown.to_dict("records"),
            "provenance": whole.attrs["provenance"],
        },
        frame=lambda: shown,
    )
