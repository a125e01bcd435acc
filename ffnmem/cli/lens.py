"""``ffnmem lens``: the Jacobian lens of a model, by which values are read as they arrive."""

from __future__ import annotations

from typing import Any

import click

import ffnmem as fm

from ..show.records import emit
from . import click_options as options
from .click_guard import Command, note
from .click_options import COUNT, OWN, ModelChoice, argument, file_to_write, option
from .progress import Progress


@click.command(cls=Command, short_help="Make what --lens jacobian reads values through.")
@argument("corpus", default="atlas")
@option(
    "-o",
    "--out",
    callback=file_to_write(OWN),
    metavar="FILE",
    help="The file to write: FILE.safetensors.  [default: one in the cache, where --lens jacobian finds it]",
)
@option(
    "--batch-tokens",
    type=COUNT,
    default=2048,
    metavar="N",
    help="Tokens of a page of text, pads included; time and memory grow with it, the error falls with its square root.",
)
@option("--pages", type=COUNT, default=16, metavar="N", help="How many pages the rows of a matrix share.")
@option("--half", is_flag=True, help="Write float16, half the size.")
@options.context("128")
@options.seed("Draws the sequences.")
@options.text
@options.bos
@options.model_in_float32
@options.output
def lens(corpus: str, out: str | None, half: bool, choice: ModelChoice, form: str, **settings: Any) -> None:
    """Take the Jacobians of a model's last residual stream by that above every layer, on average over CORPUS, for
    --lens of ffnmem project, neuron and report. The one of atlas ships with it.

    CORPUS is what ffnmem scan takes; default atlas, the corpus that comes with ffnmem. It takes as many backward passes
    as the model is wide (d_model), each over one page of text, and can be stopped at any moment: the same command goes
    on where it was. Of each layer the table has the error (a standard error relative to the matrix), the norm over that
    of the identity, and the share of its square that is a multiple of the identity, all there is to it in the logit
    lens.

    \b
    Examples
      ffnmem lens texts.jsonl --text body --model gpt2
      ffnmem lens atlas --batch-tokens 256 -o lens.safetensors --json

    --csv has layer, error, norm, identity; --json these and the provenance.
    """
    model = choice.load()
    with Progress() as bars:
        found = fm.vocabulary.jacobian_lens(
            model,
            corpus,
            out,
            prepend_bos=choice.prepend_bos,
            dtype="float16" if half else "float32",
            progress=bars.report,
            **settings,
        )
    emit(found, form, sheet=found.sheet)
    note(f"wrote {out}" if out is not None else f"kept for {model.name} ({model.fingerprint})")
