"""``ffnmem pack``: a corpus tokenised once, for every scan."""

from __future__ import annotations

import time

import click
from rich.console import Console
from rich.text import Text

from ..core.choices import DIVISIONS
from ..show.records import emit
from ..show.terminal import user_text
from .guard import Command
from .options import output_options, text

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
    from ..corpus import open_corpus
    from ..corpus import pack as pack_corpus
    from ..models.tokenizers import load_tokenizer

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
                    Text(f"{n_documents:,} documents, {n_tokens:,} tokens, {speed:,.0f} a second", style="dim")
                )

        packed = pack_corpus(corpus, load_tokenizer(model), out, progress=show)
    emit(packed, form)
