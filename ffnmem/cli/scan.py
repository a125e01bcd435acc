"""``ffnmem pack``, ``scan``, ``merge``, ``store`` and ``moment``: passes over a corpus, and what they left."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

import ffnmem as fm

from ..core.errors import InputError, counted
from ..core.types import DIVISIONS, ENGINES, SCAN_DTYPES, STORE_FORMS, Division, StoreForm
from ..show.records import emit
from ..show.terminal import user_text
from . import click_options as options
from .click_guard import Command, note
from .click_options import COUNT, OWN, ModelChoice, argument, file_to_write, option, refuse
from .figures import save_figure
from .progress import Progress

# `ffnmem pack`: a corpus tokenised once, for every scan.

EVERY = 0.1  # seconds between two lines of progress


@click.command(cls=Command, short_help="Tokenise a corpus once, for every scan.")
@argument("source")
@option("--out", required=True, metavar="FOLDER", help="Where the tokens go; made if it is not there.")
@option(
    "--text",
    "column",
    default="text",
    metavar="COLUMN",
    help="The column with the text, in .jsonl, .csv, .parquet and data sets.",
)
@option(
    "--documents",
    type=click.Choice(DIVISIONS),
    help="What a document of a .txt file is: a paragraph (blank lines separate), a line, or the file."
    "  [default: paragraph]",
)
@option(
    "--model",
    default="atlas",
    metavar="MODEL",
    help="Whose tokenizer: atlas, a folder in Hugging Face layout, or a Hugging Face id such as gpt2.",
)
@options.output
def pack(source: str, out: str, column: str, documents: Division | None, model: str, form: str) -> None:
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
    from ..corpus.packing import pack as pack_corpus  # these need torch
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
@argument("source", metavar="CORPUS")
@option("--out", required=True, metavar="DIR", help="The store's folder; made if it is not there.")
@option("--k", type=COUNT, default=20, metavar="N", help="Examples at each end of a neuron.")
@options.context()
@option(
    "--dtype",
    type=click.Choice(SCAN_DTYPES),
    default="float32",
    help="Numeric type of the pass. After bfloat16 the candidates are run again in float32, so examples are exact.",
)
@options.seed("Of the random examples.", metavar=None)
@option("--batch-tokens", type=COUNT, default=2048, metavar="N", help="Tokens of one forward pass.")
@option("--workers", type=COUNT, default=1, metavar="N", help="Processes that share the pass.")
@option(
    "--engine",
    type=click.Choice(ENGINES),
    default="local",
    help="Where workers run: processes of this machine, or a Ray cluster (pip install 'ffnmem[ray]').",
)
@options.shard(", to be merged later")
@option(
    "--project/--no-project",
    is_flag=True,
    default=None,
    help="End with the tokens that all values promote, or leave them for when they are asked for.  [default: end with "
    "them where that takes about a second, as of atlas]",
)
@options.text
@options.json
@options.bos
@options.model_in_float32
def scan(source: str, out: str, choice: ModelChoice, form: str, **settings: Any) -> None:
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
    model = choice.load()
    with Progress() as progress:
        store = fm.scan(model, source, out, prepend_bos=choice.prepend_bos, progress=progress.report, **settings)
    emit(store, form, sheet=store.outcome, data=lambda: store.manifest)


@click.command(cls=Command, short_help="Join the shards of a scan into one store.")
@argument("stores", nargs=-1, required=True, metavar="DIR...")
@option("--out", required=True, metavar="DIR", help="The folder of the joined store.")
@options.json
def merge(stores: tuple[str, ...], out: str, form: str) -> None:
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
    emit(store, form, sheet=store.outcome, data=lambda: store.manifest)


# `ffnmem store`: what a scan left.


@click.command(cls=Command, short_help="What a store holds: settings, dead neurons, firing rates by layer.")
@argument("folder", metavar="STORE")
@option("--check", is_flag=True, help="Read every file whole and check it first; what is damaged is named.")
@options.plot("the firing rates and the dead neurons by layer")
@option(
    "--export",
    "export",
    type=click.Choice(STORE_FORMS),
    help="Also write what other programs read into the folder -o: neuronpedia for dashboard records as SAEDashboard "
    "writes them, delphi for its latent cache; the model reads text again for both.",
)
@option("-o", "--out", metavar="DIR", help="The new folder of --export.")
@option("--neurons", multiple=True, metavar="NEURONS", help="With --export: only these, such as 3.17,5.97.")
@options.output
@click.pass_context
def store(
    context: click.Context,
    /,
    folder: str,
    check: bool,
    plot: Path | None,
    export: StoreForm | None,
    out: str | None,
    neurons: tuple[str, ...],
    form: str,
) -> None:
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
      ffnmem store runs/atlas --export neuronpedia -o out --neurons 3.17,5.97

    --csv has one row a layer: layer, neurons, dead, firing_rate_5, firing_rate_25, firing_rate_50, firing_rate_75,
    firing_rate_95. --json has these and all else.
    """
    if export is None:
        refuse(context, ("out", "neurons"), "no --export")
    elif out is None:
        raise InputError(f"--export {export} needs -o DIR: the new folder to write")
    found = fm.open_store(folder)
    if check:
        found.verify()
    if export is not None and out is not None:
        with Progress() as progress:
            asked = options.read_neurons(neurons) if neurons else None
            written = found.export(export, out, neurons=asked, progress=progress.report)
        note(f"wrote {written}")
    emit(found, form, sheet=lambda: found.sheet(checked=check), data=lambda: found.to_dict(checked=check))
    if plot is not None:
        save_figure(found, plot)


# `ffnmem moment`: the second moment of a model's coefficients, which editors need.


@click.command(cls=Command, short_help="Read text for what editors need: C = E[m mᵀ] of every layer.")
@argument("corpus", default="atlas")
@option(
    "-o",
    "--out",
    callback=file_to_write(OWN),
    required=True,
    metavar="FILE",
    help="The file to write: FILE.safetensors.",
)
@option(
    "--layer", "layers", type=options.LAYER, multiple=True, metavar="LAYER", help="Of this layer only (repeatable)."
)
@option("--tokens", type=COUNT, metavar="N", help="Stop after so many tokens; ten times d_mlp go most of the way.")
@options.context("128")
@options.shard(" of the text")
@options.text
@options.bos
@options.model_in_float32
@options.output
def moment(corpus: str, out: str, layers: tuple[int, ...], choice: ModelChoice, form: str, **settings: Any) -> None:
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
    model = choice.load()
    with Progress() as bars:
        found = fm.editing.second_moment(
            model, corpus, out, layers=layers or None, prepend_bos=choice.prepend_bos, progress=bars.report, **settings
        )
    emit(found, form, sheet=lambda: found.sheet(found.to_frame(), out))
    note(f"wrote {out}")
