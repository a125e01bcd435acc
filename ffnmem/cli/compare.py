"""``ffnmem compare``: two models, or one before and after an edit, memory by memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import ffnmem as fm

from ..core.defaults import CHANCE, COMPARED_TOKENS, REACH
from ..core.errors import InputError
from ..core.types import BASELINES, DIVISIONS
from ..show.records import emit
from . import click_options as options
from .click_guard import Command, note
from .click_options import COUNT, OWN, PAGE, ModelChoice, argument, file_to_write, given, option
from .figures import save_figure
from .progress import Progress

OF_TEXT = (
    *("everything", "tokens", "reach", "chance", "baseline", "context", "batch_tokens", "column", "documents", "seed"),
    *("memory", "prepend_bos"),
)


@click.command(cls=Command, short_help="Two models memory by memory: what moved, what matches, what is new.")
@argument("first", metavar="A")
@argument("second", required=False, metavar="[B]")
@option("--edit", "edits", metavar="FILE", help="Compare A with itself and this edit, in place of B.")
@option(
    "--text",
    "corpus",
    metavar="CORPUS",
    help="Both read it: what fires alike, and what they say. What ffnmem scan takes.  [default: weights alone]",
)
@option(
    "--tokens",
    type=COUNT,
    default=COMPARED_TOKENS,
    metavar="N",
    help="Read whole sequences, drawn at random, until they hold so many tokens.",
)
@option("--all", "everything", is_flag=True, help="Read all of the text instead.")
@option(
    "--reach",
    type=click.IntRange(min=-1),
    default=REACH,
    metavar="N",
    help="Look for a neuron in layers up to N away from its own depth; -1 for all layers.",
)
@option(
    "--chance",
    type=float,
    default=CHANCE,
    metavar="SHARE",
    help="A match is better than that of all but this share of neurons among random ones.",
)
@option(
    "--baseline",
    type=click.Choice(BASELINES),
    default=BASELINES[0],
    help="Random neurons: what neurons take in, rotated, or, as published, what comes out.",
)
@option("--memory", type=float, default=4.0, metavar="GIB", help="For sums; with less, the text is read several times.")
@options.context("128, or what both models read")
@option("--batch-tokens", type=COUNT, default=2048, metavar="N", help="Tokens of one pass; fewer need less memory.")
@option("--column", metavar="COLUMN", help="The text's column, where there are columns.  [default: text]")
@option(
    "--documents",
    type=click.Choice(DIVISIONS),
    help="What a document of a .txt file is.  [default: paragraph, blank lines separate]",
)
@options.top("Neurons to list of each kind.", 10)
@options.seed("Of the draw of sequences, and of the random neurons.")
@option(
    "--out",
    callback=file_to_write(OWN),
    metavar="FILE",
    help="Also keep the result; a run that was killed goes on where it was.",
)
@option("--html", callback=file_to_write(PAGE), metavar="FILE", help="Also write the comparison as a page.")
@options.plot("verdicts and changes by layer, and correlations,")
@options.bos
@options.device
@option(
    "--dtype",
    type=click.Choice(options.DTYPES),
    default="float32",
    metavar="DTYPE",
    help="Numeric type of the weights: float32, float64, bfloat16 or float16.",
)
@options.full
@options.output
@click.pass_context
def compare(
    context: click.Context,
    /,
    first: str,
    second: str | None,
    edits: str | None,
    corpus: str | None,
    tokens: int,
    everything: bool,
    reach: int,
    column: str | None,
    top: int,
    html: str | None,
    plot: Path | None,
    device: str | None,
    dtype: str,
    prepend_bos: bool | None,
    full: bool,
    form: str,
    **settings: Any,
) -> None:
    """Say which memories of model B are those of A, which moved, which are at another place, and which are new.

    Weights are compared place by place, exactly. With --text both read the same tokens: a neuron of B is looked for
    among those of A by the correlation of what they do, beside its best among random neurons. A and B are atlas,
    folders or Hugging Face ids, two checkpoints or two seeds; or an edit takes B's place.

    \b
    Examples
      ffnmem compare atlas --edit eiffel.safetensors
      ffnmem compare atlas --edit eiffel.safetensors --text atlas --plot moved.png
      ffnmem compare checkpoint-1000 checkpoint-2000 --text texts.jsonl
      ffnmem compare seed-1 seed-2 --text texts.jsonl --html seeds.html
      ffnmem compare atlas --edit eiffel.safetensors --csv > neurons.csv

    same: weights as in its place, to rounding. moved: changed, and still most like the neuron of its place. permuted:
    most like another. new: like none beyond chance. silent: changed, and never varies on the text.

    --csv has one row a neuron of B: layer, neuron, with --text match_layer, match_neuron, correlation, baseline, excess
    and more, then cosines with the match, changes and verdict. --json has the conclusion, layers, the neurons that
    moved most (with --full all) and verdicts at other thresholds.
    """
    asked = given(context)
    if corpus is None:
        options.refuse(context, OF_TEXT, "a comparison of weights alone (no --text)")
    if everything and "tokens" in asked:
        raise InputError("--all reads everything: leave --tokens out")
    if (second is None) == (edits is None):
        raise InputError(
            "one model alone has nothing to be compared with: give B, or --edit FILE"
            if second is None
            else "B and --edit exclude each other: an edit compares A with itself"
        )
    choice = ModelChoice(first, device, dtype, prepend_bos if corpus is not None else False)
    edit = None if edits is None else fm.Edit.load(edits)
    one = choice.load()
    two = one if second is None else ModelChoice(second, device, dtype, choice.prepend_bos).load()
    with Progress() as bars:
        found = fm.compare(
            one,
            two,
            corpus,
            edit=edit,
            reach=None if reach < 0 else reach,
            tokens=None if everything else tokens,
            prepend_bos=prepend_bos,
            text=column or "text",
            progress=bars.report,
            **settings,
        )
    emit(found, form, sheet=lambda: found.sheet(top), data=lambda: found.to_dict(None if full else top))
    if plot is not None:
        save_figure(found, plot)
    if html is not None:
        note(f"wrote {fm.pages.comparison(found, html, one)}")
