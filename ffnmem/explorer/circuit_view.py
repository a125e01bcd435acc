"""The view of a circuit: which firings made which others fire, and which wrote the answer."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from ..core.defaults import CIRCUIT_NODES, CIRCUIT_SHARE
from ..core.pictures import picture
from ..core.progress import Progress
from ..pages.rendering import picture_source, split_sheet, without_origin, without_verdict
from ..prompts.circuits import Circuit, circuit
from ..prompts.minimal import minimal_circuit
from .queries import Query, Text, Token, form_field, memory_address, read_token
from .rendering import fragment
from .views import Explorer, View, view

LISTED = 40  # firings


class CircuitQuery(Query):
    """A prompt and its answer; and firings, by default those of a minimal circuit."""

    path: ClassVar[str] = "/circuit"
    text: Text = form_field("text", lines=2, required=True)
    target: Token = form_field("target", hint="the likeliest")
    foil: Token = form_field("foil", hint="none")
    at: int = Field(default=-1, title="position")
    firings: Text = form_field("firings", hint="such as 3.17@5,5.97", wide=True, folded=True)
    share: float = form_field("or the fewest that keep", CIRCUIT_SHARE, hint=str(CIRCUIT_SHARE), number=True,
                              folded=True, gt=0, le=1)  # fmt: skip
    nodes: int = form_field("firings drawn", CIRCUIT_NODES, hint=str(CIRCUIT_NODES), number=True, folded=True, ge=1,
                            le=500)  # fmt: skip


@view("Circuit", CircuitQuery, "the circuit", buttons=[("Draw", "", "")])
def circuit_page(explorer: Explorer, query: CircuitQuery, progress: Progress) -> View:
    """The graph of named firings, or of few that are enough for the answer."""
    if not query.text:
        return View("Circuit", fragment("circuit.html", text=explorer.example))
    captured = explorer.capture(query.text)
    asked: dict[str, Any] = {"target": read_token(query.target), "foil": read_token(query.foil), "position": query.at}

    def draw() -> Circuit:
        named: Any = [one for one in query.firings.split(",") if one.strip()]
        found = named or minimal_circuit(captured, **asked, faithfulness=query.share, progress=progress)
        return circuit(captured, found, nodes=query.nodes, **asked)

    graph = explorer.cached(("circuit", *query.pairs()), draw)
    body = fragment(
        "circuit.html",
        text="",
        found=graph,
        source=explorer.cached(("drawn", *query.pairs()), lambda: picture_source(picture("figure")(graph, top=LISTED))),
        sections=list(split_sheet(without_verdict(without_origin(graph.sheet(LISTED))))),
        links=memory_address,
    )
    files = {"csv": graph.to_frame, "png": lambda: picture("figure")(graph, top=LISTED), "json": graph.export}
    return View("The circuit behind an answer", body, "circuit", graph.provenance.to_dict(), files)
