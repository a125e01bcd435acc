"""``ffnmem pack``, ``scan``, ``merge``, ``store`` and ``moment``: passes over a corpus, and what they left."""

from __future__ import annotations

import time
from functools import partial

import click
from rich.console import Console
from rich.text import Text

import ffnmem as fm

from ..core.choices import DIVISIONS, ENGINES, SCAN_DTYPES
from ..core.errors import counted
from ..show.records import emit
from ..show.terminal import user_text
from .figures import check_figure
from .guard import Command, note
from .options import (
    COUNT,
    ModelChoice,
    bos_option,
    column_option,
    device_option,
    documents_option,
    json_option,
    name_option,
    output_options,
    plot_option,
    seed_option,
    shard,
    text,
)
from .progress import Progress

# `ffnmem pack`: a corpus tokenised once, for every scan.

EVERY = 0.1  # seconds between two lines of progress


@click.command(cls=Command, short_help="Tokenise a corpus once, for every scan.")
@click.argument("source", type=text)
@click.option("--out", type=text, required=True, metavar="FOLDER", help="Where the tokens go; made if it is not there.")
@click.option(
    "--text",
    "column",
    type=text,
    default="text",
    show_default=True,
    metavar="COLUMN",
    help="The column with the text, in .jsonl, .csv, .parquet and data sets.",
)
@click.option(
    "--documents",
    type=click.Choice(DIVISIONS),
    help="What a document of a .txt file is: a paragraph (blank lines separate), a line, or the file."
    "  [default: paragraph]",
)
@click.option(
    "--model",
    type=text,
    default="atlas",
    show_default=True,
    metavar="MODEL",
    help="Whose tokenizer: atlas, a folder in Hugging Face layout, or a Hugging Face id such as gpt2.",
)
@output_options
def pack(source: str, out: str, column: str, documents: str | None, model: str, form: str) -> None:
    """Tokenise SOURCE into FOLDER, with an index of its documents and checksums.

    SOURCE is a .txt, .jsonl, .csv or .parquet file, each also with .gz or .zst behind it; a folder of them, or a
    quoted pattern; atlas, the corpus that comes with ffnmem; or hf:OWNER/NAME/CONFIG:SPLIT, a data set of the Hugging
    Face hub. What lies in FOLDER is kept if it is the same text and tokenizer, and replaced otherwise. What is wrong
    with a text is counted and listed.

    \b
    Examples
      ffnmem pack atlas --out packed
      ffnmem pack atlas --model atlas --out packed --json

    --csv has one row a kind of problem: kind, count, first (the place), meaning. --json has these and all else.
    """
    from ..corpus.packing import pack as pack_corpus
    from ..corpus.sources import open_corpus
    from ..models.loading import load_tokenizer

    corpus = open_corpus(source, text=column, documents=documents)
    with Console(stderr=True).status(user_text(f"reading {source}", "dim")) as status:
        began = last = time.monotonic()

        def show(_phase: str, n_documents: int, n_tokens: int) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= EVERY:
                last = now
                speed = n_tokens / (now - began)
                status.update(
                    Text(f"{counted(n_documents, 'document')}, {n_tokens:,} tokens, {speed:,.0f} a second", style="dim")
                )

        packed = pack_corpus(corpus, load_tokenizer(model), out, progress=show)
    emit(packed, form)


# `ffnmem scan` and `ffnmem merge`: one pass over a corpus, and the joining of its shards.


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


# `ffnmem store`: what a scan left.


@click.command(cls=Command, short_help="What a store holds: settings, dead neurons, firing rates by layer.")
@click.argument("folder", type=text, metavar="STORE")
@click.option("--check", is_flag=True, help="Read every file whole and check it first; what is damaged is named.")
@plot_option("the firing rates and the dead neurons by layer")
@output_options
def store(folder: str, check: bool, plot: str | None, form: str) -> None:
    """Describe STORE, the folder of a scan: what was scanned, how, and how often the neurons of each layer fire.

    A neuron fires at a token where its pre-activation is above 0; dead is one that never did. Firing rates are given as
    quantiles over a layer's neurons: half of them fire at fewer tokens than the median. A gated neuron's pre-activation
    is its gate's: a dead one may still write a little, with either sign; and how often each of the four cases of signs
    of gate and linear part occurs is told as a mean over all neurons.

    \b
    Examples
      ffnmem store runs/atlas
      ffnmem store runs/atlas --check --plot layers.png
      ffnmem store runs/atlas --csv

    --csv has one row a layer: layer, neurons, dead, firing_rate_5, firing_rate_25, firing_rate_50, firing_rate_75,
    firing_rate_95. --json has these and all else.
    """
    from ..scanning.store import open_store

    figure = None if plot is None else check_figure(plot)
    found = open_store(folder)
    if check:
        found.verify()
    emit(found, form, sheet=lambda: found.sheet(checked=check), data=lambda: found.to_dict(checked=check))
    if figure is not None:
        from ..plots.firing import dead, firing_rates
        from .figures import save_axes

        save_axes([partial(firing_rates, found), partial(dead, found)], figure)


# `ffnmem moment`: the second moment of a model's coefficients, which editors need.


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
        found = fm.editing.second_moment(
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
