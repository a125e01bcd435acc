"""``Calibration``: how well the toolkit's measures did on models whose memories are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ..arguments import public
from ..errors import check_choice

TABLES = ("measures", "verdicts", "random_keys", "nulls", "curves", "roles", "facts")


@public
@dataclass(frozen=True, eq=False)
class Calibration:
    """Made by :func:`ffnmem.calibrate`; a table is None where its kind was not asked for.

    Attributes:
        measures: one row a measure of polysemanticity: measure, auroc, spearman, precision_at_k with their ``_low`` and
            ``_high``, neurons.
        verdicts: true_meanings (0: dead) against the number of neurons with each verdict.
        random_keys: one row, the number of neurons with each verdict in models of random keys and values.
        nulls: measure, rate (of p < .05 where nothing is to be found), its exact 95% interval low and high, neurons.
        curves: as ``measures``, by superposition.
        roles: role, precision, recall, and the neurons planted, found, and hits.
        facts: measure, site, first (share of facts whose planted neuron it puts first), its exact 95% interval low
            and high, second (share where it is first or second), facts.
        settings: what it was run with.
    """

    measures: pd.DataFrame | None = None
    verdicts: pd.DataFrame | None = None
    random_keys: pd.DataFrame | None = None
    nulls: pd.DataFrame | None = None
    curves: pd.DataFrame | None = None
    roles: pd.DataFrame | None = None
    facts: pd.DataFrame | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Those that there are, by name."""
        return {name: table for name in TABLES if (table := getattr(self, name)) is not None}

    @property
    def false_polysemantic(self) -> float:
        """The share of monosemantic neurons that were called polysemantic; NaN if meanings were not asked for."""
        return self.share(1, "polysemantic")

    @property
    def random_polysemantic(self) -> float:
        """The share of neurons of random keys that were called polysemantic; NaN if meanings were not asked for."""
        if self.random_keys is None:
            return float("nan")
        return float(self.random_keys["polysemantic"].iloc[0]) / float(self.random_keys.to_numpy().sum())

    def share(self, meanings: int, verdict: str) -> float:
        """The share of neurons planted with so many meanings that got a verdict; NaN if there are none.

        Raises InputError for an unknown verdict.
        """
        if self.verdicts is None:
            return float("nan")
        row = self.verdicts[self.verdicts["true_meanings"] == meanings].drop(columns="true_meanings")
        check_choice("verdict", verdict, list(row.columns))
        total = float(row.to_numpy().sum())
        return float(row[verdict].sum()) / total if total else float("nan")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**{name: t.to_dict("records") for name, t in self.tables.items()}, "settings": dict(self.settings)}

    def __repr__(self) -> str:
        return f"Calibration({', '.join(self.tables)}; seeds {', '.join(map(str, self.settings.get('seeds', ())))})"

    def _repr_html_(self) -> str:
        from ..reports.calibration import calibration_html

        return calibration_html(self)
