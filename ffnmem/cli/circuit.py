"""``ffnmem circuit``: the graph of memories behind an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

import ffnmem as fm

from ..core.defaults import CIRCUIT_NODES, CIRCUIT_SHARE
from ..core.errors import InputError
from .guard import note
from .options import Answer, Count, GraphFile, Page, PlottedOutput, Prompt, PromptChoice, Share, Top
from .progress import show_progress

Firings = Annotated[list[str], Parameter(metavar="FIRING", n_tokens=1)]
PICTURED = 40


def circuit(
    prompt: Prompt,
    /,
    *,
    answer: Answer = Answer(),
    firings: Firings | None = None,
    share: Share | None = None,
    nodes: Count = CIRCUIT_NODES,
    top: Top = 20,
    export: GraphFile | None = None,
    html: Page | None = None,
    site: str | None = None,
    model: PromptChoice = PromptChoice(),
    output: PlottedOutput = PlottedOutput(),
) -> None:
    """The graph of memories behind an answer: which made which fire.

    Draws the graph of some firings (a neuron at a position): which made which others fire, and which wrote the answer.
    Without --firings they are the fewest found that keep nine tenths of the answer, as ffnmem causal minimal finds
    them. An edge is what its source adds to its target's pre-activation, carried along all paths through attention as
    it was; the edges into a firing sum to what it read, with all that is not in the graph as one source, "rest".

    Examples
      ffnmem circuit "The Eiffel Tower is located in the city of" --foil " Rome"
      ffnmem circuit "The capital of France is" --share .8 --plot circuit.png
      ffnmem circuit "The capital of France is" --firings 0.895@4,1.811@4
      ffnmem circuit "The capital of France is" --export g.json --csv > e.csv

    --json has the nodes, the edges, their error and the provenance; --csv has the edges: source, target, input, weight,
    share.

    Args:
        firings: The firings to draw, as LAYER.NEURON@POSITION, or LAYER.NEURON for every position; several with commas
            between them.
        share: The fewest firings that keep this share of the answer. [default: 0.9]
        nodes: Firings of the graph at most; what others add is in the rest. A picture has the 40 of most influence.
        export: Also write the graph JSON that circuit-tracer's page and Neuronpedia read.
        html: Also write the graph as a page: its picture, and what each firing read.
        site: With --html: a site of the model's neurons (ffnmem report site), to which their names lead.
    """
    if site is not None and html is None:
        raise InputError("--site is for the page: give --html FILE, too")
    if firings and share is not None:
        raise InputError("--firings and --share exclude each other: name firings, or ask for the fewest that keep it")
    if share is not None and not 0 < share <= 1:
        raise InputError(f"--share must be above 0 and at most 1, such as .9, not {share:g}")
    capture = model.capture(prompt)
    if html is not None:
        from ..pages.links import to_site

        to_site(site, Path(html), capture.model.fingerprint)  # one that will not do is told of before the work
    if firings:
        given: Any = ",".join(firings).split(",")
    else:
        with show_progress() as progress:
            share = CIRCUIT_SHARE if share is None else share
            given = fm.minimal_circuit(capture, **vars(answer), faithfulness=share, progress=progress)
    found = fm.circuit(capture, given, **vars(answer), nodes=nodes)
    output.emit(found, sheet=lambda: found.sheet(top), drawn={"top": min(nodes, PICTURED)})
    if export is not None:
        found.export("circuit-tracer", export)
        note(f"wrote {export}")
    if html is not None:
        note(f"wrote {fm.pages.circuit(found, html, site=site)}")
