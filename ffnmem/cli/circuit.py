"""``ffnmem circuit``: the graph of memories behind an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import ffnmem as fm

from ..core.defaults import CIRCUIT_NODES, EDGE_THRESHOLD, NODE_THRESHOLD
from ..core.errors import InputError
from ..core.sheets import Sheet
from ..show.records import emit
from . import options
from .figures import save_axes
from .guard import Command, note
from .options import GRAPH, PAGE, ModelChoice, file_to_write, option
from .progress import late_bar


@click.command(cls=Command, short_help="The graph of memories behind an answer: which made which fire.")
@options.prompt
@options.answer
@option("--nodes", type=int, default=CIRCUIT_NODES, metavar="N", help="Firings that are expanded at most.")
@option(
    "--minimal",
    type=float,
    metavar="SHARE",
    help="The graph of the smallest set found that keeps this share of the answer, as ffnmem causal --minimal.",
)
@option(
    "--node-threshold",
    type=float,
    default=NODE_THRESHOLD,
    metavar="SHARE",
    help="Keep the fewest firings that have this share of their influence.",
)
@option(
    "--edge-threshold",
    type=float,
    default=EDGE_THRESHOLD,
    metavar="SHARE",
    help="Then the fewest edges that carry this share of it.",
)
@option("--heads", is_flag=True, help="Attention heads are nodes, and paths end there.")
@option("--attention", is_flag=True, help="The same with whole attention layers; with --heads, heads.")
@options.top("How many firings to list, and heads.")
@options.plot("the graph of the top firings")
@option(
    "--export",
    callback=file_to_write(GRAPH),
    metavar="FILE",
    help="Also write the graph JSON that circuit-tracer's page and Neuronpedia read.",
)
@option(
    "--html",
    callback=file_to_write(PAGE),
    metavar="FILE",
    help="Also write the graph as a page: nodes by layer and position, what each read and who reads it.",
)
@options.site("names of neurons without a card lead", "With --html")
@option("--store", metavar="DIR", help="With --html: cards and examples of the top neurons, from this scan.")
@options.bos
@options.model
@options.output
def circuit(
    prompt: str,
    top: int,
    plot: Path | None,
    export: str | None,
    html: str | None,
    store: str | None,
    site: str | None,
    minimal: float | None,
    choice: ModelChoice,
    form: str,
    **asked: Any,
) -> None:
    """Find the graph of firings behind an answer: which memories made which others fire, and which wrote it.

    An edge is what its source adds to its target's pre-activation, carried along all paths through attention as it was;
    the edges into a node sum to what it read, with what was pruned as one node. Firings are chosen by their influence
    on the answer; "alone" says how much of it they keep when all others are zero: where that is far from 100%, they are
    not what makes the answer.

    \b
    Examples
      ffnmem circuit "The Eiffel Tower is located in the city of" --foil " Rome"
      ffnmem circuit "The capital of France is" --heads --plot circuit.png
      ffnmem circuit "The capital of France is" --export g.json --csv > e.csv
      ffnmem circuit "The capital of France is" --minimal .9 --html circuit.html

    --json has the nodes, the edges, their error and the provenance; --csv has the edges: source, target, input, weight,
    share.
    """
    for flag, given in (("--store", store), ("--site", site)):
        if given is not None and html is None:
            raise InputError(f"{flag} is for the page: give --html FILE, too")
    model = choice.load()
    if html is not None:
        from ..pages.links import to_site

        to_site(site, Path(html), model.fingerprint)  # one that will not do is told of before the work
    examples = None if store is None else fm.open_store(store, model=model)
    capture = fm.capture(model, choice.asked(model, prompt))
    with late_bar() as progress:
        if minimal is not None:
            answer = {name: asked[name] for name in ("target", "foil", "position", "first_token")}
            asked["firings"] = fm.minimal_circuit(capture, **answer, faithfulness=minimal, progress=progress)
        found = fm.circuit(capture, **asked, progress=progress)

    def sheet() -> Sheet:
        try:
            return found.sheet(top, found.faithfulness(capture))
        except InputError:  # no firing that could be left out, or an answer that none makes
            return found.sheet(top)

    emit(found, form, sheet=sheet, data=found.to_dict, frame=found.to_frame)
    if plot is not None:
        from ..plots.circuits import circuit_size

        width, height = circuit_size(found, max(top, 1))
        save_axes([lambda ax: found.plot(ax, max(top, 1))], plot, columns=1, height=height, width=width)
        note(f"wrote {plot}")
    if export is not None:
        found.export("circuit-tracer", export, supernodes=found.supernodes())
        note(f"wrote {export}")
    if html is not None:
        with late_bar() as progress:
            page = fm.pages.circuit(found, html, examples, model, site=site, progress=progress)
        note(f"wrote {page}")
