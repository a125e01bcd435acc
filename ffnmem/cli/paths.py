"""``ffnmem paths``: which memories, at which positions, wrote an answer, along all paths through attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import ffnmem as fm

from ..show.records import print_csv, print_json
from ..show.terminal import (
    console,
    decimals,
    labelled,
    number,
    percent,
    plain_table,
    prompt_line,
    provenance_line,
    token,
)
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

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType
    from rich.table import Table

    from ..paths import PathAttribution

POSITIONS = 12  # rows of the table by position


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
    firings = found.top(top)
    if form == "json":
        print_json(found.to_dict(top))
    elif form == "csv":
        print_csv(list(firings.columns), firings.to_dict("records"))
    else:
        print_table(found, firings)
    if path is not None:
        save_figure(found, path, top)
        note(f"wrote {path}")


def print_table(found: PathAttribution, firings: pd.DataFrame) -> None:
    out = console()
    provenance = provenance_line(found.provenance.as_dict(), out.width)
    for part in (heading(found), position_table(found), firing_table(firings), provenance):
        out.print(part)
        out.print()


def heading(found: PathAttribution) -> Table:
    """The prompt, the target (and foil), and how much memories of all positions wrote."""
    memories = float(found.map.sum())
    rest = float(found.components["logit"].sum()) - memories
    rows: dict[str, RenderableType] = {
        "prompt": prompt_line(found.tokens, found.position, found.starts_with_bos),
        "target": token(found.target, "bold"),
        **({} if found.foil is None else {"foil": token(found.foil, "bold")}),
        "logit": f"{found.logit:.3f}{'' if found.foil is None else ', the target’s minus the foil’s'}",
        "memories": f"wrote {memories:+.3f} of it; embeddings and biases {rest:+.3f}; error {found.error:.1e}",
    }
    return labelled(rows)


def position_table(found: PathAttribution) -> Table:
    """What the memories of each position add, largest first, and the layer that adds most there."""
    table = plain_table("fired at", "position", "memories", "share", "strongest layer", left=["fired at"])
    totals = found.map.sum(0)
    places = decimals(totals.tolist())
    order = totals.abs().argsort(descending=True, stable=True)[:POSITIONS].tolist()
    for position in order:
        by_layer = found.map[:, position]
        layer = int(by_layer.abs().argmax())
        bos = position == 0 and found.starts_with_bos
        table.add_row(
            "BOS" if bos else token(found.tokens[position]),
            str(position),
            number(float(totals[position]), places, sign=True),
            percent(float(totals[position]) / found.logit if found.logit else float("nan")),
            f"{layer}: {number(float(by_layer[layer]), places, sign=True)}",
        )
    others = [p for p in range(len(totals)) if p not in order]
    if others:
        table.add_row(f"{len(others)} more", "", number(float(totals[others].sum()), places, sign=True), "", "")
    return table


def firing_table(firings: pd.DataFrame) -> Table:
    """Single neurons at single positions."""
    table = plain_table("neuron", "fired at", "position", "coefficient", "logit", "share", left=["neuron", "fired at"])
    logit_places, m_places = decimals(firings["logit"]), decimals(firings["coefficient"])
    for row in firings.itertuples():
        table.add_row(
            f"{row.layer}.{row.neuron}",
            token(row.token, limit=20),
            str(row.position),
            number(row.coefficient, m_places),
            number(row.logit, logit_places, sign=True),
            percent(row.share),
        )
    return table
