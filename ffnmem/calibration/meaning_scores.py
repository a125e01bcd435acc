"""How well the measures of :func:`ffnmem.polysemanticity` recover planted meanings."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ..errors import InputError, quoted
from ..planted import Planted
from ..semantics.verdicts import VERDICTS
from .scoring import auroc, over_models, precision_at, spearman

MANY = {
    "meanings": 1, "clusters": 1, "ms": -1, "trigger_tokens": 1, "firing_rate": 1, "kurtosis": -1, "unigram": -1,
    "previous": -1, "coherence": -1, "capacity": -1, "interference": 1,
}  # fmt: skip
"""Measures, and whether many meanings make them large (1) or small (−1)."""
K = 20


def with_truth(planted: Planted, table: pd.DataFrame) -> pd.DataFrame:
    """The table with the planted number of meanings as ``true_meanings`` and the planted ``true_verdict``.

    Raises InputError for another kind of model, or a table of other neurons.
    """
    if planted.kind != "meanings":
        raise InputError(f"planted must be of kind 'meanings', not {quoted(planted.kind)}")
    truth = planted.truth[["layer", "neuron", "meanings", "verdict"]]
    truth = truth.rename(columns={"meanings": "true_meanings", "verdict": "true_verdict"})
    both = table.merge(truth, on=["layer", "neuron"], how="inner")
    if len(both) != len(table):
        raise InputError(f"the table has {len(table)} neurons, of which only {len(both)} are in the truth")
    return both


def meaning_scores(models: Sequence[pd.DataFrame], k: int = K, seed: int = 0) -> pd.DataFrame:
    """One row a measure: auroc of polysemantic against monosemantic neurons, spearman with the planted number,
    precision_at_k, each with ``_low`` and ``_high``, and neurons, how many it measures.

    Args:
        models: a table of each from :func:`with_truth`; dead neurons are left out.
        k: of the precision: the share of polysemantic neurons among the k that a measure puts first.
        seed: of the bootstrap over models and neurons.
    """
    alive = [table[table["true_meanings"] > 0] for table in models]
    rows = []
    for name, sign in MANY.items():
        pairs = [(sign * t[name].to_numpy(float), t["true_meanings"].to_numpy()) for t in alive]
        row: dict[str, str | float | int] = {"measure": name}
        for score, function in (("auroc", auroc), ("spearman", spearman), ("precision_at_k", precision_at(k))):
            found = over_models(pairs, function, seed)
            row |= dict(zip((score, f"{score}_low", f"{score}_high"), found, strict=True))
        row["neurons"] = int(sum(t[name].notna().sum() for t in alive))
        rows.append(row)
    return pd.DataFrame(rows)


def verdict_counts(models: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """How many neurons of each planted number of meanings (0: dead) got each verdict: true_meanings, then verdicts."""
    both = pd.concat(models)
    counts = both.groupby("true_meanings")["verdict"].value_counts().unstack(fill_value=0)
    counts = counts.reindex(columns=list(VERDICTS), fill_value=0)
    counts.columns = pd.Index(list(VERDICTS))
    return counts.reset_index()


def by_chance(models: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """How many neurons of random keys got each verdict: one row. What most strongly lies along a random direction is of
    several kinds too, so a share of polysemantic neurons is to be held against this one."""
    counts = pd.concat(models)["verdict"].value_counts()
    return pd.DataFrame([{name: int(counts.get(name, 0)) for name in VERDICTS}])
