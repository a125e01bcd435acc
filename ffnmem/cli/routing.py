"""``ffnmem routing``: which experts a text goes to, and why."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

import ffnmem as fm

from ..core.errors import InputError
from ..show.records import emit
from .options import Count, Layer, PlottedOutput, Position, Prompt, PromptChoice


def routing(
    prompt: Prompt,
    /,
    *,
    layer: Layer | None = None,
    expert: int | None = None,
    against: int | None = None,
    position: Position | None = None,
    top: Annotated[Count | None, Parameter(help="How many memories to list. [default: 20]")] = None,
    model: PromptChoice = PromptChoice(),
    output: PlottedOutput = PlottedOutput(),
) -> None:
    """Which experts each token of a text is routed to, and why.

    Lists the experts that the router of each layer of a mixture of experts chooses for each token of PROMPT; with
    --layer those of one layer, and the weight that it gives each. With --layer and --expert it explains one choice: the
    router's logit of that expert at --position (minus that of --against) as an exact sum over embeddings, biases and
    every neuron of every earlier layer at every position, with attention patterns and norm scales as they are.

    Examples
      ffnmem routing "The Eiffel Tower is in" --model path/to/mixtral
      ffnmem routing "The Eiffel Tower is in" --model path/to/mixtral --layer 5
      ffnmem routing "The Eiffel Tower is in" --model path/to/mixtral \\
          --layer 5 --expert 3 --against 1

    --csv and --json have one row a layer, token and expert: layer, prompt, position, token, expert, weight. With
    --expert --csv has the firings: layer, neuron, expert, position, token, coefficient, logit, share; --json has these
    and more.

    Args:
        layer: Whose router.
        expert: Which expert's logit to explain.
        against: Explain it minus this expert's.
        position: At which token: 0 is the first, -1 the last. [default: -1]
    """
    from ..prompts.routing import routing_sheet  # needs torch

    for_one = {"--expert": expert, "--against": against, "--position": position, "--top": top, "--plot": output.plot}
    if (layer is None or expert is None) and (alone := [flag for flag, given in for_one.items() if given is not None]):
        raise InputError(f"{alone[0]} is for explaining one choice of a router: give --layer and --expert")
    captured = model.capture(prompt, layers=layer if expert is None else None)
    if layer is None or expert is None:
        rows = captured.routing()
        data = {"routing": rows.to_dict("records"), "provenance": captured.provenance}
        emit(rows, output.form, sheet=lambda: routing_sheet(captured, rows), data=lambda: data)
    else:
        found = fm.prompts.attribute_router(captured, layer, expert, against, -1 if position is None else position)
        top = top or 20
        output.emit(found, top=top, full=False, frame=lambda: found.top(top), drawn={"top": min(top, 40)})
