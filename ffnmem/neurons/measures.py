"""The measures of :func:`ffnmem.polysemanticity`. Each is declared where it is computed, by :func:`measure`: columns,
calibration, and by what kept tables are recognised follow from that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Reads = Literal["examples", "sample"]
Compute = TypeVar("Compute", bound=Callable[..., Any])


@dataclass(frozen=True)
class Measure:
    """One measure of a neuron.

    Attributes:
        reads: a neuron's own "examples", or the random "sample" of positions that all neurons share. Calibration asks
            how often its null is rejected of examples at random places, or of random keys.
        many: 1 if many meanings make it large, −1 if they make it small.
        compute: of ``reads="examples"``, an ``Estimate`` of :class:`ffnmem.neurons.clustering.Examples`; of "sample",
            value, low and high ``[3, rows]`` of coefficients ``[rows, n]``, the ``Sample`` that they are of, and how
            often each draw of the bootstrap takes each of its sequences ``[sequences, draws]``.
    """

    reads: Reads
    many: Literal[1, -1]
    compute: Callable[..., Any]

    @property
    def notable(self) -> str:
        """In which direction p counts: that of few meanings."""
        return "less" if self.many > 0 else "greater"


MEASURES: dict[str, Measure] = {}
"""By name, in the order of the table's columns."""


def measure(name: str, *, reads: Reads, many: Literal[1, -1]) -> Callable[[Compute], Compute]:
    """Register a function as the measure of this name; see :class:`Measure`."""

    def register(compute: Compute) -> Compute:
        MEASURES[name] = Measure(reads, many, compute)
        return compute

    return register


def measures_of(reads: Reads) -> dict[str, Measure]:
    """Those that read the same."""
    return {name: one for name, one in MEASURES.items() if one.reads == reads}
