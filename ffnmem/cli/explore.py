"""``ffnmem explore``: a local web page on which memories are explored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

import ffnmem as fm

from ..core.errors import MissingExtraError
from ..core.resources import EMBEDDED
from ..show.records import write
from .guard import note
from .options import Directory, ReaderChoice, ScannedChoice

if TYPE_CHECKING:
    from ..facts.fact import Fact

ASKED = 64  # facts of atlas that another model is asked, to begin with those that it answers: some seconds


def explore(
    *,
    store: Directory | None = None,
    facts: str | None = None,
    moment: str | None = None,
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 8765,
    no_browser: bool = False,
    model: ReaderChoice | None = None,
) -> None:
    """A local web page: prompts, memories, circuits, facts.

    Type a prompt and see which memories wrote its answer, switch some off, look at any memory, find those that
    promote a word, trace a fact and rewrite it. Every view has an address that can be kept and shared, and downloads.
    The page's address is printed; it is on this machine alone (127.0.0.1). Nothing is loaded from elsewhere, and the
    model on disk is never changed. Ctrl-C ends it.

    Examples
      ffnmem explore
      ffnmem explore --store runs/atlas
      ffnmem explore --facts atlas --port 0 --no-browser

    Needs the extra: pip install "ffnmem[explorer]".

    Args:
        store: A store of a scan: adds examples, histograms and meanings of every memory. Its model is explored, unless
            --model names another.
        facts: Facts to choose from: atlas, or a file of them. [default: those of atlas; of another model, those that
            it answers among a few of these]
        moment: The second moment to edit with, as ffnmem moment writes it. [default: the one that ships with atlas]
        port: Where the page is found on this machine; 0 takes a free port.
        no_browser: Do not open the page in the browser.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise MissingExtraError("the explorer needs starlette and uvicorn: pip install 'ffnmem[explorer]'") from None
    import webbrowser

    from ..editing.moments import load_second_moment  # these need torch
    from ..explorer.server import serve
    from ..explorer.views import Explorer

    opened = None if store is None else fm.open_store(store)
    known: Sequence[Fact] = fm.load_facts(facts or "atlas")
    loaded = ScannedChoice().load(opened) if opened and not model else (model or ReaderChoice()).load()
    if facts is None and loaded.name not in EMBEDDED:
        facts = f"atlas that {loaded.name} answers by itself"
        known = fm.facts.filter_known(loaded, known[:: -(-len(known) // ASKED)]).facts
    if opened is not None:
        opened.hold(loaded)
    second = None if moment is None else load_second_moment(moment, loaded)
    explorer = Explorer(loaded, opened, known, facts or "atlas", second)

    def ready(address: str) -> None:
        write(f"{address}\n")
        note(f"the explorer of {loaded.name} answers at this address on this machine alone; Ctrl-C ends it")
        if not no_browser:
            webbrowser.open(address)

    serve(explorer, port=port, ready=ready)
