"""``ffnmem paths``: which memories, at which positions, wrote an answer, along all paths through attention."""

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


@click.command(cls=Command, short_help="Which memories, at which positions, wrote an answer.")
@prompt_argument
@answer_options
@top_option("How many firings to list.")
@plot_option("the map of layers and positions, and the top firings,")
@bos_option
@model_options
@output_options
def paths(
    prompt: str,
    target: str | int | None,
    foil: str | int | None,
    first_token: bool,
    position: int,
    top: int,
    plot: str | None,
    choice: ModelChoice,
    form: str,
) -> None:
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
    path = None if plot is None else check_figure(plot)
    model = choice.load()
    capture = fm.capture(model, prompt)
    found = fm.attribute_paths(capture, target, foil, position, first_token=first_token)
    emit(found, form, sheet=lambda: found.sheet(top), data=lambda: found.to_dict(top), frame=lambda: found.top(top))
    if path is not None:
        save_figure(found, path, top)
        note(f"wrote {path}")
