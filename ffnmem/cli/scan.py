"""``ffnmem scan`` and ``ffnmem merge``: one pass over a corpus, and the joining of its shards."""

from __future__ import annotations

import click

import ffnmem as fm

from ..core.choices import ENGINES, SCAN_DTYPES
from ..show.records import emit
from .guard import Command
from .options import (
    COUNT,
    ModelChoice,
    bos_option,
    column_option,
    device_option,
    documents_option,
    json_option,
    name_option,
    seed_option,
    shard,
    text,
)
from .progress import Progress


@click.command(cls=Command, short_help="Read a corpus once; keep what fires every neuron.")
@click.argument("source", type=text, metavar="CORPUS")
@click.option("--out", type=text, required=True, metavar="DIR", help="The store's folder; made if it is not there.")
@click.option("--k", type=COUNT, default=20, show_default=True, metavar="N", help="Examples at each end of a neuron.")
@click.option(
    "--context",
    type=COUNT,
    metavar="N",
    help="The longest sequence in tokens, BOS included.  [default: 128, or what the model reads]",
)
@click.option(
    "--dtype",
    type=click.Choice(SCAN_DTYPES),
    default="float32",
    show_default=True,
    help="Numeric type of the pass. After bfloat16 the candidates are run again in float32, so examples are exact.",
)
@seed_option("Of the random examples.", metavar=None)
@click.option(
    "--batch-tokens", type=COUNT, default=2048, show_default=True, metavar="N", help="Tokens of one forward pass."
)
@click.option("--workers", type=COUNT, default=1, show_default=True, metavar="N", help="Processes that share the pass.")
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="local",
    show_default=True,
    help="Where workers run: processes of this machine, or a Ray cluster (pip install 'ffnmem[ray]').",
)
@click.option("--shard", type=shard, default="0/1", metavar="I/N", help="Only the I-th of N parts, to be merged later.")
@column_option
@documents_option
@json_option
@bos_option
@name_option
@device_option
def scan(
    source: str,
    out: str,
    k: int,
    context: int | None,
    dtype: str,
    seed: int,
    batch_tokens: int,
    workers: int,
    engine: str,
    shard: tuple[int, int],
    column: str,
    documents: str | None,
    as_json: bool,
    prepend_bos: bool | None,
    name: str,
    device: str | None,
) -> None:
    """Read CORPUS once and leave a store in DIR: what fires every neuron, how often and how strongly, what it writes.

    Gated neurons (Llama, Gemma) are also told apart by the signs of gate and linear part, with N examples of each case.

    CORPUS is a .txt, .jsonl, .csv or .parquet file, each also with .gz or .zst behind it; a folder of them, or a quoted
    pattern; atlas, the corpus that comes with ffnmem; hf:OWNER/NAME/CONFIG:SPLIT, a data set of the Hugging Face hub;
    or a folder that ffnmem pack wrote. The scan can be stopped at any moment: the same command goes on where it was.

    \b
    Examples
      ffnmem scan atlas --out runs/atlas
      ffnmem scan texts.jsonl --text body --out runs/texts --context 64
      ffnmem scan "texts/*.jsonl" --out runs/3 --shard 3/8
    """
    choice = ModelChoice(name, device, "float32", prepend_bos)
    model = choice.load()
    with Progress() as progress:
        store = fm.scan(
            model,
            source,
            out,
            k=k,
            context=context,
            prepend_bos=choice.prepend_bos,
            dtype=dtype,
            seed=seed,
            batch_tokens=batch_tokens,
            workers=workers,
            engine=engine,
            shard=shard,
            text=column,
            documents=documents,
            progress=progress.report,
        )
    emit(store, "json" if as_json else "table", sheet=store.outcome, data=lambda: store.manifest)


@click.command(cls=Command, short_help="Join the shards of a scan into one store.")
@click.argument("stores", type=text, nargs=-1, required=True, metavar="DIR...")
@click.option("--out", type=text, required=True, metavar="DIR", help="The folder of the joined store.")
@json_option
def merge(stores: tuple[str, ...], out: str, as_json: bool) -> None:
    """Join stores that hold different shards of one scan, in any order.

    Model, tokenizer, corpus and settings must agree. The result is, byte for byte, what one scan of all of it gives;
    until every shard is in, it says that it is a part.

    \b
    Examples
      ffnmem merge runs/0 runs/1 --out runs/all
    """
    with Progress() as progress:
        progress.wait(f"joining {len(stores)} stores")
        store = fm.merge(list(stores), out)
    emit(store, "json" if as_json else "table", sheet=store.outcome, data=lambda: store.manifest)
