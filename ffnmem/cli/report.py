"""``ffnmem report``: the answer on one page."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

import ffnmem as fm

from .guard import Command, note
from .options import COUNT, ModelChoice, answer_options, bos_option, model_options, prompt_argument, text, top_option


@click.command(cls=Command, short_help="Which memories wrote an answer, as one HTML page.")
@prompt_argument
@click.option(
    "-o",
    "--out",
    type=text,
    default="report.html",
    show_default=True,
    metavar="FILE",
    help="The file to write, in a folder that exists; an older one is replaced.",
)
@answer_options
@top_option("How many memories to list.")
@click.option(
    "--tokens",
    type=COUNT,
    default=8,
    show_default=True,
    metavar="N",
    help="How many promoted and suppressed tokens to show for each memory.",
)
@click.option("--open", "show", is_flag=True, help="Open the page in the browser.")
@bos_option
@model_options
def report(
    prompt: str,
    out: str,
    target: str | None,
    foil: str | None,
    first_token: bool,
    position: int,
    top: int,
    tokens: int,
    show: bool,
    choice: ModelChoice,
) -> None:
    """Write a page on which memories made the model answer PROMPT, and print its path.

    One HTML file that needs no network: the prompt's tokens, the model's top predictions, a map of the FFNs by layer
    and position, the top memories in tokens, and the components that sum to the logit.

    \b
    Examples
      ffnmem report "The Eiffel Tower is located in the city of" -o eiffel.html
      ffnmem report "The capital of Italy is" --target " Rome" --open
    """
    model = choice.load()
    path = fm.report(
        model,
        prompt,
        target=target,
        foil=foil,
        out=out,
        top=top,
        tokens=tokens,
        position=position,
        first_token=first_token,
    )
    click.echo(path)
    if show and not webbrowser.open(Path(path).resolve().as_uri()):
        note(f"no browser could be opened here: open {path} in one")
