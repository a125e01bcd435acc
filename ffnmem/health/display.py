"""What notebooks show of neuron health and of the experiment: a line, a table, where the numbers come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..show import framing

if TYPE_CHECKING:
    from .dying import Dying
    from .health import NeuronHealth

ROWS = 100


def health_html(health: NeuronHealth) -> str:
    """A row a layer."""
    said = (
        f"{len(health.neurons):,} neurons ({health.activation}) over {health.positions:,} positions; dead, stuck and "
        "saturated are shares of a layer's neurons"
    )
    return page(said, health.layers, health.provenance.as_dict())


def dying_html(dying: Dying) -> str:
    """A row for each activation and step."""
    said = "Hidden neurons that fire for no input, under the same data, weights and optimiser"
    return page(said, dying.frame, dying.settings)


def page(said: str, rows: pd.DataFrame, settings: Mapping[str, Any]) -> str:
    shown = framing.table(rows, ROWS)
    return framing.framed(framing.line(str(framing.running_html(said))) + shown + framing.provenance(settings))
