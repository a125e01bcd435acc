"""What notebooks show of neuron health and of the experiment: a line, a table, where the numbers come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..editing.showing import table
from ..reports.rendering import provenance_line
from ..token_text import page_text

if TYPE_CHECKING:
    from .dying import Dying
    from .health import NeuronHealth

ROWS = 100


def health_html(health: NeuronHealth) -> str:
    """A row a layer."""
    line = (
        f"{len(health.neurons):,} neurons ({health.activation}) over {health.positions:,} positions; dead, stuck and "
        "saturated are shares of a layer's neurons"
    )
    return page(line, table(health.layers, ROWS), provenance_line(health.provenance.as_dict()))


def dying_html(dying: Dying) -> str:
    """A row for each activation and step."""
    line = "Hidden neurons that fire for no input, under the same data, weights and optimiser"
    return page(line, table(dying.frame, ROWS), provenance_line(dying.settings))


def page(line: str, rows: str, provenance: str) -> str:
    return f"<div><p>{page_text(line)}</p>{rows}<p><small>{page_text(provenance)}</small></p></div>"
