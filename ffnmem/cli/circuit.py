"""``ffnmem circuit``: the graph of memories behind an answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import ffnmem as fm

from ..core.defaults import CIRCUIT_NODES, EDGE_THRESHOLD, NODE_THRESHOLD
from ..core.errors import InputError
from .guard import note
from .options import Answer, Count, Directory, GraphFile, Page, PlottedOutput, Prompt, PromptChoice, Share, Top
from .progress import show_progress

if TYPE_CHECKING:
    from ..core.sheets import Sheet


def circuit(
    prompt: Prompt,
    /,
    *,
    answer: Answer = Answer(),
    nodes: Count = CIRCUIT_NODES,
    minimal: Share | None = None,
    node_threshold: Share = NODE_THRESHOLD,
    edge_threshold: Share = EDGE_THRESHOLD,
    heads: bool = False,
    attention: bool = False,
    top: Top = 20,
    export: GraphFile | None = None,
    html: Page | None = None,
    site: str | None = None,
    store: Directory | None = None,
    model: PromptChoice = PromptChoice(),
    output: PlottedOutput = PlottedOutput(),
) -> None:
    """The graph of memories behind an answer: which made which fire.

    Finds the graph of firings behind an answer: which memories made which others fire, and which wrote it. An edge is
    what its source adds to its target's pre-activation, carried along all paths through attention as it was; the edges
    into a node sum to what it read, with what was pruned as one node. Firings are chosen by their influence on the
    answer; "alone" says how much of it they keep when all others are zero: where that is far from 100%, they are not
    what makes the answer.

    Examples
      ffnmem circuit "The Eiffel Tower is located in the city of" --foil " Rome"
      ffnmem circuit "The capital of France is" --heads --plot circuit.png
      ffnmem circuit "The capital of France is" --export g.json --csv > e.csv
      ffnmem circuit "The capital of France is" --minimal .9 --html circuit.html

    --json has the nodes, the edges, their error and the provenance; --csv has the edges: source, target, input, weight,
    share.

    Args:
        nodes: Firings that are expanded at most.
        minimal: The graph of the smallest set found that keeps this share of the answer, as ffnmem causal minimal.
        node_threshold: Keep the fewest firings that have this share of their influence.
        edge_threshold: Then the fewest edges that carry this share of it.
        heads: Attention heads are nodes, and paths end there.
        attention: The same with whole attention layers; with --heads, heads.
        export: Also write the graph JSON that circuit-tracer's page and Neuronpedia read.
        html: Also write the graph as a page: nodes by layer and position, what each read and who reads it.
        site: With --html: a site of the model's neurons (ffnmem report site), to which names of neurons without a card
            lead.
        store: With --html: cards and examples of the top neurons, from this scan.
    """
    for flag, given in (("--store", store), ("--site", site)):
        if given is not None and html is None:
            raise InputError(f"{flag} is for the page: give --html FILE, too")
    loaded = model.load()
    if html is not None:
        from ..pages.links import to_site

        to_site(site, Path(html), loaded.fingerprint)  # one that will not do is told of before the work
    examples = None if store is None else fm.open_store(store, model=loaded)
    capture = fm.capture(loaded, model.prompt_text(loaded, prompt))
    with show_progress() as progress:
        settings: dict[str, Any] = {"nodes": nodes, "heads": heads, "attention": attention, "progress": progress}
        if minimal is not None:
            settings["firings"] = fm.minimal_circuit(capture, **vars(answer), faithfulness=minimal, progress=progress)
        found = fm.circuit(
            capture, **vars(answer), node_threshold=node_threshold, edge_threshold=edge_threshold, **settings
        )

    def sheet() -> Sheet:
        try:
            return found.sheet(top, found.faithfulness(capture))
        except InputError:  # no firing that could be left out, or an answer that none makes
            return found.sheet(top)

    output.emit(found, sheet=sheet, drawn={"top": top})
    if export is not None:
        found.export("circuit-tracer", export, supernodes=found.supernodes())
        note(f"wrote {export}")
    if html is not None:
        with show_progress() as progress:
            page = fm.pages.circuit(found, html, examples, loaded, site=site, progress=progress)
        note(f"wrote {page}")
