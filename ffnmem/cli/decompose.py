"""``ffnmem decompose``: which memories make up one layer's output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import ffnmem as fm

from ..show.records import print_csv, print_json
from ..show.terminal import (
    console,
    decimals,
    explain_negatives,
    labelled,
    number,
    percent,
    plain_table,
    prompt_line,
    provenance_line,
    token,
    token_line,
)
from .guard import Command
from .options import ModelChoice, bos_option, model_options, output_options, prompt_argument, top_option
from .tokens import PROMOTED, PROMOTES, promoted

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType
    from rich.table import Table

    from ..captures import Capture
    from ..models import Model

BIAS = -1  # the neuron of the output bias's row


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
    model = choice.load()
    capture = fm.capture(model, prompt, layers=layer)
    whole = fm.decompose(capture, layer, position)
    neurons, bias = whole[whole["neuron"] != BIAS], whole[whole["neuron"] == BIAS]
    listed = neurons.head(min(top, len(neurons)))
    if form == "table":
        print_table(capture, whole, listed)
        return
    rows = [*listed.to_dict("records"), *bias.to_dict("records")]
    if form == "csv":
        print_csv(list(whole.columns), rows)
    else:
        print_json(
            {
                "prompt_tokens": capture.token_strings(),
                "layer": model.layer(layer),
                "position": whole.attrs["position"],
                "error": whole.attrs["error"],
                "neurons": rows,
                "provenance": whole.attrs["provenance"],
            }
        )


def print_table(capture: Capture, whole: pd.DataFrame, listed: pd.DataFrame) -> None:
    out = console()
    layer, position, tokens = capture.layers[0], whole.attrs["position"], capture.token_strings()
    norm = float(capture.ffn_out[layer][0, position].norm())
    output = f"layer {layer} writes a vector of norm {norm:.4g}; error of the sum {whole.attrs['error']:.1e}"
    at = token(tokens[position], "bold underline")
    heading: dict[str, RenderableType] = {
        "prompt": prompt_line(tokens, position, capture.starts_with_bos),
        "at": at.append(f", position {position} of 0 to {len(tokens) - 1}", "default"),
        "output": output,
    }
    provenance = provenance_line(whole.attrs["provenance"], out.width, basis="folded")
    for part in (labelled(heading), memory_table(capture.model, whole, listed), provenance):
        out.print(part)
        out.print()


def memory_table(model: Model, whole: pd.DataFrame, listed: pd.DataFrame) -> Table:
    """The listed neurons, the others as one row, the bias, and their sum."""
    numbers = ("coefficient", "value norm", "weight", "share")
    table = plain_table("neuron", *numbers, PROMOTES, left=["neuron"], wraps=[PROMOTES])
    tokens = promoted(model, listed, PROMOTED)
    m_places, norm_places, weight_places = (decimals(listed[c]) for c in ("coefficient", "value_norm", "weight"))
    for row in listed.itertuples():
        table.add_row(
            f"{row.layer}.{row.neuron}",
            number(row.coefficient, m_places),
            number(row.value_norm, norm_places),
            number(row.weight, weight_places),
            percent(row.share),
            token_line(tokens[row.layer, row.neuron]),
        )
    table.add_section()
    bias, total = whole[whole["neuron"] == BIAS].iloc[0], float(whole["share"].sum())
    others = len(whole) - 1 - len(listed)
    if others:
        rest = total - float(listed["share"].sum()) - float(bias["share"])
        table.add_row(f"{others:,} more", "", "", "", percent(rest))
    table.add_row("bias", "", number(bias["value_norm"], norm_places), "", percent(bias["share"]))
    table.add_row("all", "", "", "", percent(total), style="bold")
    explain_negatives(table, listed["coefficient"])
    return table
