"""``ffnmem explore``: a local web page on which memories are explored."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich.console import Console

import ffnmem as fm

from ..core.errors import MissingExtraError
from ..core.resources import EMBEDDED
from ..show.terminal import user_text
from . import click_options as options
from .click_guard import Command, note
from .click_options import ModelChoice, option, scanned_model

if TYPE_CHECKING:
    from ..facts.fact import Fact

ASKED = 64  # facts of atlas that another model is asked, to begin with those that it answers: some seconds


@click.command(cls=Command, short_help="A local web page: prompts, memories, circuits, facts.")
@option("--store", metavar="DIR", help="A store of a scan: adds examples, histograms and meanings of every memory.")
@option(
    "--facts",
    "source",
    metavar="SOURCE",
    help="Facts to choose from: atlas, or a file of them.  "
    "[default: those of atlas; of another model, those that it answers among a few of these]",
)
@option(
    "--moment",
    metavar="FILE",
    help="The second moment to edit with, as ffnmem moment writes it.  [default: the one that ships with atlas]",
)
@option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8765,
    metavar="N",
    help="Where the page is found on this machine; 0 takes a free port.",
)
@click.option("--no-browser", is_flag=True, help="Do not open the page in the browser.")
@options.bos
@options.model
@click.pass_context
def explore(
    context: click.Context,
    /,
    store: str | None,
    source: str | None,
    moment: str | None,
    port: int,
    no_browser: bool,
    choice: ModelChoice,
) -> None:
    """Open the explorer: a local web page on which a model's memories are looked at.

    Type a prompt and see which memories wrote its answer, switch some off, look at any memory, find those that
    promote a word, trace a fact and rewrite it. Every view has an address that can be kept and shared, and downloads.
    The page's address is printed; it is on this machine alone (127.0.0.1). Nothing is loaded from elsewhere, and the
    model on disk is never changed. Ctrl-C ends it.

    \b
    Examples
      ffnmem explore
      ffnmem explore --store runs/atlas
      ffnmem explore --facts atlas --port 0 --no-browser

    Needs the extra: pip install "ffnmem[explorer]".
    """
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise MissingExtraError("the explorer needs starlette and uvicorn: pip install 'ffnmem[explorer]'") from None
    from ..editing.moments import load_second_moment  # needs torch
    from ..explorer.server import serve
    from ..explorer.views import Explorer

    opened = None if store is None else fm.open_store(store)
    if opened is not None and "name" not in options.given(context):
        choice = scanned_model(opened, None, choice.device)
    facts: Sequence[Fact] = fm.load_facts(source or "atlas")
    model = choice.load()
    if source is None and model.name not in EMBEDDED:
        source = f"atlas that {model.name} answers by itself"
        with Console(stderr=True).status(user_text(f"asking {model.name} for {ASKED} facts", "dim")):
            facts = fm.facts.filter_known(model, facts[:: -(-len(facts) // ASKED)]).facts
    if opened is not None:
        opened.hold(model)
    second = None if moment is None else load_second_moment(moment, model)
    explorer = Explorer(model, opened, facts, source or "atlas", second)

    def ready(address: str) -> None:
        click.echo(address)
        note(f"the explorer of {model.name} answers at this address on this machine alone; Ctrl-C ends it")
        if not no_browser:
            webbrowser.open(address)

    serve(explorer, port=port, ready=ready)
