"""``ffnmem pack``: a corpus tokenised once, for every scan."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from ..show.records import print_csv, print_json
from ..show.terminal import console, labelled, plain_table, user_text
from .guard import Command
from .options import output_options, text

if TYPE_CHECKING:
    from ..corpus import Packed

DIVISIONS = ("paragraph", "line", "file")  # as in ffnmem.corpus.readers, which is too slow to import for a manual
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
    problems = [{**problem.as_dict(), "meaning": problem.meaning} for problem in packed.problems]
    if form == "csv":
        print_csv(["kind", "count", "first", "meaning"], problems)
    elif form == "json":
        print_json({**summary(packed), "problems": problems})
    else:
        print_summary(packed, problems)


def summary(packed: Packed) -> dict[str, Any]:
    """What a packed corpus holds."""
    return {
        "documents": packed.n_documents,
        "tokens": packed.n_tokens,
        "model": packed.model,
        "hash": packed.hash,
        "tokenizer_hash": packed.tokenizer_hash,
        "folder": str(packed.folder),
    }


def print_summary(packed: Packed, problems: list[dict[str, Any]]) -> None:
    out = console()
    out.print(
        labelled(
            {
                "documents": Text(f"{packed.n_documents:,}"),
                "tokens": Text(f"{packed.n_tokens:,} of {packed.model}'s tokenizer"),
                "hash": Text(packed.hash),
                "folder": user_text(str(packed.folder)),
                "problems": Text("none" if not problems else f"{len(problems)} kinds"),
            }
        )
    )
    if problems:
        table = plain_table("problem", "count", "first", "meaning", left=["problem"], wraps=["first", "meaning"])
        for problem in problems:
            table.add_row(
                Text(problem["kind"]),
                f"{problem['count']:,}",
                user_text(problem["first"]),
                user_text(problem["meaning"]),
            )
        out.print()
        out.print(table)
