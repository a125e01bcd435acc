"""``ffnmem moment``: the second moment of a model's coefficients, which editors need."""

from __future__ import annotations

import click

import ffnmem as fm

from ..show.records import emit
from .guard import Command, note
from .options import (
    COUNT,
    ModelChoice,
    bos_option,
    column_option,
    device_option,
    documents_option,
    name_option,
    output_options,
    shard,
    text,
)
from .progress import Progress


@click.command(cls=Command, short_help="Read text for what editors need: C = E[m mᵀ] of every layer.")
@click.argument("corpus", type=text, default="atlas")
@click.option("-o", "--out", type=text, required=True, metavar="FILE", help="The file to write: FILE.safetensors.")
@click.option("--layer", "layers", type=int, multiple=True, metavar="LAYER", help="Of this layer only (repeatable).")
@click.option(
    "--tokens", type=COUNT, metavar="N", help="Stop after so many tokens; ten times d_mlp go most of the way."
)
@click.option(
    "--context", type=COUNT, metavar="N", help="The longest sequence in tokens, BOS included.  [default: 128]"
)
@click.option("--shard", type=shard, default="0/1", metavar="I/N", help="Only the I-th of N parts of the text.")
@column_option
@documents_option
@bos_option
@name_option
@device_option
@output_options
def moment(
    corpus: str,
    out: str,
    layers: tuple[int, ...],
    tokens: int | None,
    context: int | None,
    shard: tuple[int, int],
    column: str,
    documents: str | None,
    prepend_bos: bool | None,
    name: str,
    device: str | None,
    form: str,
) -> None:
    """Read CORPUS once and write the second moments of the coefficients of every layer into FILE, for --moment of
    ffnmem edit and ffnmem evaluate. The one of atlas ships with it.

    CORPUS is what ffnmem scan takes; default atlas, the corpus that comes with ffnmem. The pass can be stopped at any
    moment: the same command goes on where it was. How much text is enough: rank below d_mlp is too little, and the
    library's convergence function draws how far edits still move.

    \b
    Examples
      ffnmem moment texts.jsonl --text body --tokens 20000 -o moments.safetensors
      ffnmem moment atlas --layer 0 --tokens 500 -o first.safetensors --json

    --csv has layer, count, trace, condition, rank, effective_rank; --json these, the text and the provenance.
    """
    model = ModelChoice(name, device, "float32", prepend_bos).load()
    with Progress() as bars:
        found = fm.second_moment(
            model,
            corpus,
            out,
            layers=layers or None,
            tokens=tokens,
            context=context,
            prepend_bos=prepend_bos,
            shard=shard,
            text=column,
            documents=documents,
            progress=bars.report,
        )
    emit(found, form, sheet=lambda: found.sheet(found.to_frame(), out))
    note(f"wrote {out}")
