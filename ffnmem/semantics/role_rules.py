"""The rules of :func:`ffnmem.roles`: statistics and thresholds become roles, and nothing is measured here."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ..core.choices import ROLE_NAMES, TEXT_ROLES
from ..errors import InputError, check_count, check_number
from .unembedding import null_dimension


@dataclass(frozen=True)
class Role:
    """One role: its name, the statistic that decides, and whether it needs a store."""

    name: str
    statistic: str
    needs_store: bool = False

    @property
    def column(self) -> str:
        return "is_" + self.name.replace("-", "_")


STATISTICS = (
    "firing_rate",
    "position_information",
    "null_share",
    "frequency_cosine",
    "cosine_kurtosis",
    "cosine_kurtosis",
    "cosine_variance",
    "trigger_share",
    "io_cosine",
    "io_cosine",
)
ROLES = tuple(Role(name, by, name in TEXT_ROLES) for name, by in zip(ROLE_NAMES, STATISTICS, strict=True))
"""In order of precedence: a neuron's primary role is the first one that applies."""

NONE = "none"


@dataclass(frozen=True)
class Thresholds:
    """Where each role begins; see :func:`roles` for what each is."""

    kurtosis: float = 10.0
    partition: float = 0.005
    null_share: float = 0.5
    null_dimension: int | None = None
    norm: float = 1.25
    variance: float = 0.75
    late: int = 1
    io: float = 0.5
    position: float = 0.05
    frequency: float = 0.5
    types: int = 5
    coverage: float = 0.95
    min_count: int = 10

    def resolved(self, d_model: int) -> Thresholds:
        """With what depends on the model's width filled in; raises InputError for what makes no sense."""
        for name in ("late", "types", "min_count"):
            check_count(name, getattr(self, name))
        for name in ("kurtosis", "partition", "null_share", "norm", "variance", "io", "position", "frequency"):
            check_number(name, getattr(self, name))
        if not 0 < check_number("coverage", self.coverage) <= 1:
            raise InputError(f"coverage must be above 0 and at most 1, not {self.coverage}")
        dimension = null_dimension(d_model) if self.null_dimension is None else self.null_dimension
        return replace(self, null_dimension=dimension)


def assign(statistics: pd.DataFrame, thresholds: Thresholds, n_layers: int) -> pd.DataFrame:
    """Roles from statistics: the rules, and nothing else.

    Args:
        statistics: of :func:`weight_statistics`, or joined with :func:`firing_statistics`; all neurons of each layer.
            ``attrs["partition_null"]`` and ``attrs["frequency_null"]``, where given, are what their thresholds are
            raised to: what random directions have is no role.
        thresholds: resolved. n_layers: of the model, to know which layers are late.

    Returns:
        The table of :func:`roles`, without its attrs.
    """
    flags = flag(statistics, thresholds, n_layers)
    known = [role for role in ROLES if role.name in flags]
    applies = np.stack([flags[role.name] for role in known], axis=1)
    first = np.where(applies.any(axis=1), applies.argmax(axis=1), len(known))
    names = np.array([*(role.name for role in known), NONE], dtype=object)
    decided = np.array([*(role.statistic for role in known), ""], dtype=object)
    value = np.full(len(statistics), np.nan)
    for index, role in enumerate(known):
        value = np.where(first == index, statistics[role.statistic].to_numpy(np.float64), value)
    head = pd.DataFrame(
        {
            "layer": statistics["layer"],
            "neuron": statistics["neuron"],
            "role": names[first],
            "statistic": decided[first],
            "value": value,
            **{role.column: applies[:, index] for index, role in enumerate(known)},
        }
    )
    return head.join(statistics.drop(columns=["layer", "neuron", "dead", "detects"], errors="ignore"))


def flag(statistics: pd.DataFrame, thresholds: Thresholds, n_layers: int) -> dict[str, np.ndarray]:
    """Whether each role applies to each neuron; roles that need a store only where its columns are there."""
    column = {name: statistics[name].to_numpy() for name in statistics.columns}
    peaked = column["cosine_kurtosis"] > thresholds.kurtosis
    by_layer = statistics.groupby("layer")
    norm = column["value_norm"] > thresholds.norm * by_layer["value_norm"].transform("median").to_numpy()
    flat = column["cosine_variance"] < thresholds.variance * by_layer["cosine_variance"].transform("median").to_numpy()
    late = column["layer"] >= n_layers - thresholds.late
    splits = max(thresholds.partition, statistics.attrs.get("partition_null", 0.0))
    # A gated neuron's value and key may be turned round together; its gate says which way they count.
    skew = column["cosine_skew"] * (np.sign(column["gate_key_cosine"]) if "gate_key_cosine" in column else 1.0)
    flags = {
        "entropy": late & norm & flat & (column["null_share"] > thresholds.null_share),
        "prediction": peaked & (skew > 0),
        "suppression": peaked & (skew < 0),
        "partition": column["cosine_variance"] > splits,
        "strengthening": column["io_cosine"] > thresholds.io,
        "weakening": column["io_cosine"] < -thresholds.io,
    }
    if "dead" in column:
        aligned = max(thresholds.frequency, statistics.attrs.get("frequency_null", 0.0))
        flags |= {
            "dead": column["dead"].astype(bool),
            "position": column["position_information"] > thresholds.position,
            "token-frequency": np.abs(column["frequency_cosine"]) > aligned,
            "token-detector": column["detects"].astype(bool),
        }
    return flags
