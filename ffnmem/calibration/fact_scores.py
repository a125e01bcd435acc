"""Whether attribution and ablation find the neuron that a fact was planted in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from ..captures import capture
from ..contributions import attribute
from ..facts import Fact
from ..interventions import ablate, knowledge_neurons
from ..paths import attribute_paths
from ..planted import Planted, plant

SITES = ("early", "late")
FACTS = 10  # asked of each model
WITHIN = 2  # a fact's subject has a neuron of its own, without which nothing is recalled either


def of_facts(seeds: Sequence[int], step: Callable[[], None], facts: int = FACTS) -> pd.DataFrame:
    """One row a measure and site: first, the share of facts whose planted neuron it ranks first of all layers' neurons,
    its exact 95% interval low and high; second, the share ranked first or second; facts, how many were asked.

    attribute: the direct effect on the target's logit. attribute_paths: the same with what attention carries from all
    positions. ablate: the total effect of removing the neuron everywhere. knowledge_neurons: integrated gradients of
    the target's probability. The first and the last look at the last token only, where a fact recalled early is not.
    """
    ranks: dict[tuple[str, str], list[int]] = {}
    for seed in seeds:
        for site in SITES:
            planted = plant("facts", seed=seed, site=site)
            for fact in planted.facts[:: max(1, len(planted.facts) // facts)][:facts]:
                for measure, rank in planted_ranks(planted, fact).items():
                    ranks.setdefault((measure, site), []).append(rank)
            step()
    rows = []
    for (measure, site), found in sorted(ranks.items()):
        counts = np.array(found)
        first = int((counts == 0).sum())
        interval = binomtest(first, len(counts)).proportion_ci(method="exact")
        rows.append(
            {
                "measure": measure,
                "site": site,
                "first": first / len(counts),
                "low": interval.low,
                "high": interval.high,
                "second": float((counts < WITHIN).mean()),
                "facts": len(counts),
            }
        )
    return pd.DataFrame(rows)


def planted_ranks(planted: Planted, fact: Fact) -> dict[str, int]:
    """How many neurons each measure puts before the fact's own."""
    truth = planted.truth
    mine = truth[
        (truth["role"] == "fact") & (truth["subject"] == fact.subject) & (truth["relation"] == fact.relation)
    ].iloc[0]
    where = (int(mine["layer"]), int(mine["neuron"]))
    cap = capture(planted.model, fact.text)
    target = f" {fact.target_true}"
    paths = attribute_paths(cap, target).neurons.groupby(["layer", "neuron"], as_index=False)["logit"].sum()
    tables = {
        "attribute": attribute(cap, target).neurons.rename(columns={"logit": "effect"}),
        "attribute_paths": paths.rename(columns={"logit": "effect"}),
        "ablate": ablate(cap, target, top=None, batch=512).neurons.rename(columns={"logit": "effect"}),
        "knowledge_neurons": knowledge_neurons(cap, target).neurons.rename(columns={"attribution": "effect"}),
    }
    return {name: rank_of(table, where) for name, table in tables.items()}


def rank_of(table: pd.DataFrame, where: tuple[int, int]) -> int:
    """How many other rows have an effect that is not smaller than a neuron's: what is the same for all tells nothing.

    All of them if the neuron is not there.
    """
    mine = (table["layer"] == where[0]) & (table["neuron"] == where[1])
    if not mine.any():
        return len(table)
    return int((~(table["effect"] < table.loc[mine, "effect"].iloc[0]))[~mine].sum())
