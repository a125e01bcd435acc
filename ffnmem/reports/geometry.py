"""What notebooks show of the geometry of a model's memories."""

from __future__ import annotations

from dataclasses import dataclass

from ..semantics.geometry import Geometry
from ..show.rendering import provenance_line
from .templating import display

PAIRS = 5  # near-duplicates shown of each kind
ALIGNED = {"io": "key and value", "gate_io": "gate and value", "gate_key": "gate and key"}


@dataclass(frozen=True)
class SideRow:
    """Keys, values or gates of one layer, in the numbers that a table shows."""

    layer: int
    side: str
    rms: float
    high: float
    chance: float
    largest: float
    chance_largest: float
    pair: str
    rank: float
    random_rank: float
    capacity: float
    random_capacity: float
    features_per_dimension: float


def side_rows(geometry: Geometry) -> list[SideRow]:
    """Two rows a layer, its keys and its values; three in a gated model, whose gates follow."""
    return [
        SideRow(
            layer=row["layer"],
            side=f"{side}s",
            rms=row[f"{side}_cosine_rms"],
            high=row[f"{side}_cosine_q999"],
            chance=row[f"{side}_matched_q999"],
            largest=row[f"{side}_cosine_max"],
            chance_largest=abs(row[f"{side}_matched_max"]),
            pair="" if row[f"{side}_max_neuron"] < 0 else f"{row[f'{side}_max_neuron']}, {row[f'{side}_max_other']}",
            rank=row[f"{side}_entropy_rank"],
            random_rank=row[f"{side}_isotropic_entropy_rank"],
            capacity=row[f"{side}_capacity_q50"],
            random_capacity=row[f"{side}_isotropic_capacity_q50"],
            features_per_dimension=row[f"{side}_features_per_dimension"],
        )
        for row in geometry.layers.to_dict("records")
        for side in geometry.sides
    ]


@dataclass(frozen=True)
class CosineRow:
    """One of the cosines within the neurons of a layer: its median and spread, beside mismatched pairs."""

    layer: int
    of: str
    median: float
    low: float
    high: float
    chance_low: float
    chance_high: float
    beyond: float
    above: float
    below: float


def cosine_rows(geometry: Geometry, name: str) -> list[CosineRow]:
    """A row a layer for one of ``geometry.alignments``; above and below are shares beyond the thresholds."""
    parts = ("q50", "q5", "q95", "null_low", "null_high", "beyond", "strengthening", "weakening")
    return [
        CosineRow(row["layer"], ALIGNED[name], *(row[f"{name}_{part}"] for part in parts))
        for row in geometry.layers.to_dict("records")
    ]


def geometry_html(geometry: Geometry) -> str:
    """A geometry: its sides by layer, the cosines within neurons, and the closest near-duplicates."""
    duplicates = geometry.duplicates
    return display(
        "geometry.html",
        model=geometry.provenance.model,
        neurons=len(geometry.neurons),
        dimensions=geometry.dimensions,
        gated="gate" in geometry.sides,
        sides=side_rows(geometry),
        cosines=sorted(
            (row for name in geometry.alignments for row in cosine_rows(geometry, name)), key=lambda row: row.layer
        ),
        strengthening=geometry.strengthening,
        weakening=geometry.weakening,
        duplicates=None if duplicates is None else duplicates[duplicates["rank"] <= PAIRS].to_dict("records"),
        threshold=geometry.threshold,
        totals={by: geometry.duplicate_total(by) for by in geometry.kinds},
        provenance=provenance_line(geometry.provenance.as_dict()),
    )
