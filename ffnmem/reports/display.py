"""What notebooks show of results: compact HTML, legible on light and dark pages, with styles that stay inside."""

from __future__ import annotations

from ..scanning.neuron import Neuron
from ..scanning.store import Store
from ..show.rendering import provenance_line
from .cards import card
from .summary import QUANTILES, RATES, facts, layer_summary
from .templating import display

PROMPTS = 10
TOKENS = 64  # of each prompt
NEURONS = 10
POSITIONS = 20


def neuron_html(neuron: Neuron) -> str:
    """A neuron's card."""
    return display("neuron.html", "card", card=card(neuron), provenance=provenance_line(neuron.store.provenance))


def store_html(store: Store) -> str:
    """A store: what was scanned, and dead neurons and firing rates by layer."""
    return display(
        "store.html",
        "card",
        store=store,
        facts=facts(store),
        quantiles=["median" if quantile == 0.5 else f"{quantile:.0%}" for quantile in QUANTILES],
        layers=[(row, [row[name] for name in RATES]) for row in layer_summary(store).to_dict("records")],
        problems=store.corpus.problems,
        provenance=provenance_line(store.provenance),
    )
