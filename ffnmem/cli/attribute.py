"""``ffnmem attribute``: which memories, in all layers, wrote an answer."""

from __future__ import annotations

import click

import ffnmem as fm

from ..show.records import emit
from .figure import check_figure, save_figure
from .guard import Command, note
from .options import (
    ModelChoice,
    answer_options,
    bos_option,
    model_options,
    output_options,
    plot_option,
    prompt_argument,
    top_option,
)


@click.command(cls=Command, short_help="Which memories, in all layers, wrote an answer.")
@prompt_argument
@answer_options
@click.option(
    "--layer",
    "layers",
    type=int,
    multiple=True,
    metavar="LAYER",
    help="List neurons of this layer only (repeatable); the components stay complete.",
)
@top_option("How many neurons to list.")
@plot_option("the layers, and the top neurons of them all,")
@bos_option
@model_options
@output_options
def attribute(
    prompt: str,
    target: str | int | None,
    foil: str | int | None,
    first_token: bool,
    position: int,
    layers: tuple[int, ...],
    top: int,
    plot: str | None,
    choice: ModelChoice,
    form: str,
) -> None:
    """Split the logit of an answer into what every FFN neuron, attention layer, embedding and bias wrote.

    PROMPT is a text; the answer is the token that the model is to say next. The table shows the model's own top
    tokens, the neurons that wrote most towards the target (or away from it) with the tokens that their values promote,
    and all components, which add up to the model's logit.

    \b
    Examples
      ffnmem attribute "The Eiffel Tower is located in the city of"
      ffnmem attribute "The Eiffel Tower is located in the city of" \\
          --target " Paris" --foil " Rome" --layer 4 --layer 5
      ffnmem attribute "The capital of France is" --json | jq '.neurons[0]'

    --json has the neurons, the components, their error, the top predictions and the provenance; --csv has the neurons:
    layer, neuron, coefficient, logit, share.
    """
    from ..vocabulary import promoted_tokens  # needs torch

    path = None if plot is None else check_figure(plot)
    model = choice.load()
    shown = list(dict.fromkeys(model.layer(layer) for layer in layers))
    capture = fm.capture(model, prompt)
    found = fm.attribute(capture, target, foil, position, first_token=first_token)
    neurons = found.strongest(top, shown)
    emit(
        found,
        form,
        sheet=lambda: found.sheet(top, layers=shown, capture=capture, promoted=promoted_tokens(model, neurons)),
        data=lambda: {
            **found.to_dict(1),
            "neurons": neurons.to_dict("records"),
            "predictions": capture.predictions(found.position).to_dict("records"),
        },
        frame=lambda: neurons,
    )
    if path is not None:
        save_figure(found, path, top)
        note(f"wrote {path}")
