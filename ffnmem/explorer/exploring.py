"""``explore``: a local web page on which memories are explored."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence

from ..cli.guard import note
from ..core.errors import MissingExtraError
from ..core.resources import EMBEDDED
from ..core.types import Port, checked
from ..editing.preparing import Moment
from ..facts.fact import Fact
from ..facts.formats import load_facts
from ..facts.known import filter_known
from ..models.loading import load
from ..models.model import Model
from ..scanning.store import Store
from ..show.records import write

ASKED = 64  # facts of atlas that another model is asked, to begin with those that it answers: some seconds


@checked
def explore(
    model: Model | None = None,
    store: Store | None = None,
    *,
    facts: str | None = None,
    moment: Moment = None,
    port: Port = 8765,
    browser: bool = True,
) -> None:
    """A local web page: every question about prompts, neurons, facts by clicking.

    Type a prompt and see which memories wrote its answer, switch some off, look at any neuron, find those that promote
    a word, trace a fact and rewrite it. Every page has an address that can be kept and shared, and downloads. The
    page's address is printed; it is on this machine alone (127.0.0.1). Nothing is loaded from elsewhere, and the model
    on disk is never changed. Ctrl-C ends it. Needs the extra: pip install "ffnmem[explorer]".

    Args:
        model: from :func:`ffnmem.load`; default: that of the store, or atlas.
        store: a scan of that model: adds examples, histograms and meanings of every neuron.
        facts: facts to begin with: atlas, or a file of them. [default: those of atlas; of another model, those that it
            answers among a few of these]
        moment: the second moment to edit with. [default: the one that ships with atlas]
        port: where the page is found on this machine; 0 takes a free port.
        browser: open the page in the browser, or not.

    Raises: MissingExtraError: Starlette or uvicorn is missing. InputError: a store of another model, or a taken port.

    Example:
        $ ffnmem explore
        $ ffnmem explore --store runs/atlas
        $ ffnmem explore --facts atlas --port 0 --no-browser
    """
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise MissingExtraError("the explorer needs starlette and uvicorn: pip install 'ffnmem[explorer]'") from None
    from .server import serve
    from .views import Explorer

    model = model or (load("atlas") if store is None else store.read_model())
    known: Sequence[Fact] = load_facts(facts or "atlas")
    source = facts or "atlas"
    if facts is None and model.name not in EMBEDDED:
        source = f"atlas that {model.name} answers by itself"
        known = filter_known(model, known[:: -(-len(known) // ASKED)]).facts
    if store is not None:
        store.hold(model)
    explorer = Explorer(model, store, known, source, moment)

    def ready(address: str) -> None:
        write(f"{address}\n")
        note(f"the explorer of {model.name} answers at this address on this machine alone; Ctrl-C ends it")
        if browser:
            webbrowser.open(address)

    serve(explorer, port=port, ready=ready)
