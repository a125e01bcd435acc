"""``ffnmem ablate``: what the absence of neurons does to an answer, beside what attribution says."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click
from rich.text import Text

import ffnmem as fm

from ..errors import InputError
from ..show.records import print_csv, print_json
from ..show.terminal import (
    ADDS,
    TAKES,
    captioned,
    console,
    decimals,
    explain_negatives,
    labelled,
    number,
    percent,
    plain_table,
    probability,
    prompt_line,
    provenance_line,
    token,
    token_line,
)
from .figure import check_figure, save_axes
from .guard import Command, note
from .late_bar import late_bar
from .options import (
    ModelChoice,
    answer_options,
    bos_option,
    model_options,
    output_options,
    plot_option,
    prompt_argument,
    text,
    top_option,
)
from .project import read_neurons
from .tokens import PROMOTED, PROMOTES, promoted

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType
    from rich.table import Table

    from ..captures import Capture
    from ..interventions import Ablation
    from ..models import Model

HOWS = ("zero", "mean")
ATTRIBUTIONS = ("direct", "paths", "integrated-gradients")

at_option = click.option(
    "--at",
    "positions",
    type=int,
    multiple=True,
    metavar="POSITION",
    help="Change neurons at this position of the prompt only (repeatable); -1 is the last.  [default: everywhere]",
)


@click.command(cls=Command, short_help="What the absence of single neurons does to an answer.")
@prompt_argument
@answer_options
@click.option(
    "--neurons",
    type=text,
    multiple=True,
    metavar="LAYER.NEURON",
    help="Which neurons, such as 3.17,4.2 (repeatable).  [default: those that attribution puts first]",
)
@top_option("How many neurons to remove, one at a time.")
@click.option(
    "--how",
    type=click.Choice(HOWS),
    default="zero",
    show_default=True,
    help="What a removed neuron's coefficient becomes: zero, or its mean over the prompt.",
)
@at_option
@click.option(
    "--attribution",
    type=click.Choice(ATTRIBUTIONS),
    default="direct",
    show_default=True,
    help="What puts neurons first: direct effects on the logit, paths from all positions through attention (which see "
    "what the subject's neurons wrote), or integrated-gradients of the probability.",
)
@plot_option("the total against the direct effects")
@bos_option
@model_options
@output_options
def ablate(
    prompt: str,
    target: str | int | None,
    foil: str | int | None,
    first_token: bool,
    position: int,
    neurons: tuple[str, ...],
    top: int,
    how: str,
    positions: tuple[int, ...],
    attribution: str,
    plot: str | None,
    choice: ModelChoice,
    form: str,
) -> None:
    """Remove neurons one at a time and see what becomes of an answer: the direct effect, and the total one.

    PROMPT is a text; the answer is the token that the model is to say next. The direct effect is what attribution
    says: the neuron's own write into the logit, all else frozen. The total effect is the logit with it minus the logit
    without it, later layers reacting. Where the two differ much, attribution alone misleads.

    \b
    Examples
      ffnmem ablate "The Eiffel Tower is located in the city of"
      ffnmem ablate "The Eiffel Tower is located in the city of" \\
          --target " Paris" --neurons 5.349,5.171 --how mean --at -1
      ffnmem ablate "The capital of France is" --attribution paths
      ffnmem ablate "The capital of France is" --top 64 --plot effects.png

    --csv has layer, neuron, coefficient (at the answer), direct, logit (the total effect), probability, loss,
    peak_position and peak (where the neuron fires most, and how strongly, which is what the table shows), and with
    integrated gradients attribution. Positive ones add to the answer; loss is what the neuron saves. --json has these
    and more.
    """
    path = None if plot is None else check_figure(plot)
    asked = read_neurons(neurons) if neurons else None
    gradients = attribution == "integrated-gradients"
    if gradients and foil is not None:
        raise InputError("--foil does not go with integrated-gradients, which explain a probability: leave it out")
    model = choice.load()
    capture = fm.capture(model, prompt)
    attributed = None
    if gradients:
        attributed = fm.knowledge_neurons(capture, target, position, first_token=first_token).neurons
        if asked is None:
            asked = list(attributed[["layer", "neuron"]].head(top).itertuples(index=False, name=None))
    with late_bar("ablate") as report:
        found = fm.ablate(
            capture,
            target,
            foil,
            position,
            neurons=asked,
            top=top,
            by="paths" if attribution == "paths" else "direct",
            how=how,
            positions=positions or None,
            first_token=first_token,
            progress=report,
        )
    table = found.neurons if attributed is None else with_attribution(found.neurons, attributed)
    if form == "csv":
        print_csv(list(table.columns), table.to_dict("records"))
    elif form == "json":
        print_json({**found.to_dict(), "neurons": table.to_dict("records")})
    else:
        print_table(capture, found, table)
    if path is not None:
        save_axes([partial(fm.plot_ablation, found)], path)
        note(f"wrote {path}")


def with_attribution(neurons: pd.DataFrame, attributed: pd.DataFrame) -> pd.DataFrame:
    """The ablation's table with a last column of the neurons' integrated gradients."""
    return neurons.merge(attributed[["layer", "neuron", "attribution"]], on=["layer", "neuron"], how="left")


def print_table(capture: Capture, found: Ablation, table: pd.DataFrame) -> None:
    out = console()
    for part in (
        heading(capture, found),
        effect_table(capture.model, found, table),
        provenance_line(found.provenance.as_dict(), out.width, basis="folded"),
    ):
        out.print(part)
        out.print()


def heading(capture: Capture, found: Ablation) -> Table:
    """The prompt, the target, and how far direct and total effects agree."""
    at = token(found.tokens[found.position], "bold underline")
    rows: dict[str, RenderableType] = {
        "prompt": prompt_line(found.tokens, found.position, capture.starts_with_bos),
        "after": at.append(f", position {found.position} of 0 to {len(found.tokens) - 1}", "default"),
        "target": token(found.target, "bold").append(f"   {probability(found.probability)}, loss {found.loss:.4g}"),
    }
    if found.foil is not None:
        rows["foil"] = token(found.foil, "bold")
    rows["logit"] = Text(f"{found.logit:.3f}" + ("" if found.foil is None else ", the target's minus the foil's"))
    where = "at every position" if found.positions is None else f"at position {', '.join(map(str, found.positions))}"
    rows["removed"] = Text(f"{len(found.neurons):,} neurons, one at a time: {found.how} {where}")
    rows["agree"] = Text(agreement(found))
    return labelled(rows)


def agreement(found: Ablation) -> str:
    """How far attribution says what ablation finds."""
    rank = found.spearman
    known = "" if rank != rank else f"Spearman {rank:.2f} between direct and total effects; "
    return f"{known}{found.opposite:,} of {len(found.neurons):,} have opposite signs"


def effect_table(model: Model, found: Ablation, table: pd.DataFrame) -> Table:
    """One row a neuron: the effects, and the tokens that its value promotes."""
    last = "attribution" if "attribution" in table else "loss"  # both would leave no room for tokens
    numbers = ["coefficient", "at", "direct", "total", "probability", last]
    result = plain_table("neuron", *numbers, PROMOTES, left=["neuron"], wraps=[PROMOTES])
    tokens = promoted(model, table, PROMOTED)
    places = {name: decimals(table[name]) for name in ("peak", last)}
    logits = decimals([*table["direct"], *table["logit"]])
    named = [found.target, *([] if found.foil is None else [found.foil])]
    for row in table.to_dict("records"):
        result.add_row(
            f"{row['layer']}.{row['neuron']}",
            number(row["peak"], places["peak"]),
            str(row["peak_position"]),
            signed(row["direct"], logits),
            signed(row["logit"], logits),
            change_in_percent(row["probability"]),
            number(row[last], places[last], sign=True),
            token_line(tokens[row["layer"], row["neuron"]], named),
        )
    explain_negatives(result, table["peak"])
    notes = ["coefficient: the largest of the text's tokens where the neuron was removed, at that position"]
    captioned(result, "; ".join([*notes, *([] if result.caption is None else [str(result.caption)])]))
    return result


def signed(value: float, places: int) -> Text:
    return Text(number(value, places, sign=True), ADDS if value >= 0 else TAKES)


def change_in_percent(value: float) -> Text:
    """A difference of probabilities in percent, with its sign; one that rounds to nothing has none."""
    shown = percent(value)
    if shown == percent(0.0):
        return Text(shown, "dim")
    return Text(f"+{shown}" if value > 0 else shown, ADDS if value > 0 else TAKES)
