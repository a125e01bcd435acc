"""``ffnmem decompose``: which memories make up one layer's output."""

from __future__ import annotations

import click

import ffnmem as fm

from ..show.records import emit
from .guard import Command
from .options import ModelChoice, bos_option, model_options, output_options, prompt_argument, top_option


@click.command(cls=Command, short_help="Which memories make up one layer's output.")
@prompt_argument
@click.option("--layer", type=int, required=True, metavar="LAYER", help="Which layer; -1 is the last.")
@click.option(
    "--position",
    type=int,
    default=-1,
    show_default=True,
    metavar="POSITION",
    help="Where in the prompt: 0 is the first token, -1 the last.",
)
@top_option("How many neurons to list; the output bias always is.")
@bos_option
@model_options
@output_options
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
    from ..contributions import BIAS, decomposition_sheet  # needs torch
    from ..vocabulary import promoted_tokens

    model = choice.load()
    capture = fm.capture(model, prompt, layers=layer)
    whole = fm.decompose(capture, layer, position)
    listed = whole[whole["neuron"] != BIAS].head(top)
    shown = whole[(whole["neuron"] == BIAS) | whole.index.isin(listed.index)]
    emit(
        None,
        form,
        sheet=lambda: decomposition_sheet(capture, whole, listed, promoted_tokens(model, listed)),
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
