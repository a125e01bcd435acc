"""``ffnmem attribute``: which memories, in all layers, wrote an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import ffnmem as fm

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
from .output import print_csv, print_json
from .tables import console, provenance_line

if TYPE_CHECKING:
    import pandas as pd

    from ..attribution import Attribution
    from ..captures import Capture


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
    path = None if plot is None else check_figure(plot)
    model = choice.load()
    shown = list(dict.fromkeys(model.layer(layer) for layer in layers))
    capture = fm.capture(model, prompt)
    found = fm.attribute(capture, target, foil, position, first_token=first_token)
    neurons = top_neurons(found, shown, top)
    if form == "json":
        print_json(as_json(capture, found, neurons))
    elif form == "csv":
        print_csv(list(neurons.columns), neurons.to_dict("records"))
    else:
        print_table(capture, found, neurons, shown)
    if path is not None:
        save_figure(found, path, top)
        note(f"wrote {path}")


def top_neurons(found: Attribution, layers: list[int], top: int) -> pd.DataFrame:
    """The ``top`` neurons by \\|logit\\|, of the given layers only if there are any."""
    if not layers:
        return found.top(top)
    frame = found.neurons
    return frame[frame["layer"].isin(layers)].head(min(top, len(frame))).reset_index(drop=True)


def as_json(capture: Capture, found: Attribution, neurons: pd.DataFrame) -> dict[str, Any]:
    """``Attribution.to_dict`` with the model's top tokens at that position."""
    predictions = capture.predictions(found.position)
    return {
        **found.to_dict(1),
        "neurons": neurons.to_dict("records"),
        "predictions": predictions.to_dict("records"),
    }


def print_table(capture: Capture, found: Attribution, neurons: pd.DataFrame, layers: list[int]) -> None:
    from .attribute_tables import heading, ledger, neuron_table  # needs torch

    out = console()
    for part in (
        heading(capture, found, neurons, layers),
        neuron_table(capture.model, found, neurons),
        ledger(found),
        provenance_line(found.provenance.as_dict(), out.width, basis="folded"),
    ):
        out.print(part)
        out.print()
