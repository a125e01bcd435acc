"""``ffnmem routing``: which experts a text goes to, and why."""

from __future__ import annotations

import ffnmem as fm

from ..core.errors import InputError
from ..show.records import emit
from .options import Layer, PlottedOutput, Position, Prompt, PromptChoice, Top


def routing(
    prompt: Prompt,
    /,
    *,
    layer: Layer | None = None,
    expert: int | None = None,
    against: int | None = None,
    position: Position = -1,
    top: Top = 20,
    model: PromptChoice = PromptChoice(),
    output: PlottedOutput = PlottedOutput(),
) -> None:
    """Which experts each token of a text is routed to, and why.

    Lists the experts that the router of each layer of a mixture of experts chooses for each token of PROMPT. With
    --layer and --expert it explains one choice: the router's logit of that expert at --position (minus that of
    --against) as an exact sum over embeddings, biases and every neuron of every earlier layer at every position, with
    attention patterns and norm scales as they are.

    Examples
      ffnmem routing "The Eiffel Tower is in" --model path/to/mixtral
      ffnmem routing "The Eiffel Tower is in" --model path/to/mixtral \\
          --layer 5 --expert 3 --against 1

    --csv and --json have one row a layer, token and expert: layer, prompt, position, token, expert, weight. With
    --expert --csv has the firings: layer, neuron, expert, position, token, coefficient, logit, share; --json has these
    and more.

    Args:
        layer: Whose router.
        expert: Which expert's logit to explain.
        against: Explain it minus this expert's.
        position: At which token: 0 is the first, -1 the last.
    """
    from ..prompts.routing import routing_sheet  # needs torch

    if (layer is None) != (expert is None):
        raise InputError("--layer and --expert name one choice of a router: give both, or neither")
    if expert is None and against is not None:
        raise InputError("--against goes with --layer and --expert")
    if expert is None and output.plot is not None:
        raise InputError("--plot draws what explains a choice: give --layer and --expert")
    captured = model.capture(prompt)
    if layer is None or expert is None:
        rows = captured.routing()
        data = {"routing": rows.to_dict("records"), "provenance": captured.provenance}
        emit(rows, output.form, sheet=lambda: routing_sheet(captured), data=lambda: data)
    else:
        found = fm.prompts.attribute_router(captured, layer, expert, against, position)
        output.emit(found, top=top, full=False, frame=lambda: found.top(top), drawn={"top": min(top, 40)})
