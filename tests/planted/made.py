"""A calibration with made-up numbers, all different, so that one in the place of another shows; and small models."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ffnmem.core.types import VERDICTS
from ffnmem.neurons.role_assignment import ROLES
from ffnmem.planted import Calibration, Planted, calibrating, plant, recovery
from ffnmem.planted.recovery import MEASURES, SITES

LEVELS = (1.0, 1.5)
TINY = {"n_features": 32, "neurons": 16, "n_tokens": 4000}
SMALLER = {
    "roles": {"n_layers": 1, "neurons": 63, "per_role": 7, "n_words": 768, "n_tokens": 16_000},
    "facts": {"n_subjects": 12, "n_relations": 2, "n_objects": 4, "n_none": 8},
}


def small(kind: str, **parameters: Any) -> Planted:
    """What is planted, smaller: ``calibrate`` takes no parameters for roles and facts."""
    return plant(kind, **{**SMALLER.get(kind, {}), **parameters})


def small_models(patch: pytest.MonkeyPatch) -> None:
    """Let ``calibrate`` plant small models of roles and facts, ask for few facts, and draw little."""
    patch.setattr(recovery, "DRAWS", 40)
    patch.setattr(calibrating, "plant", small)
    patch.setattr(recovery, "plant", small)
    patch.setattr(calibrating, "of_facts", partial(recovery.of_facts, facts=2))


def made() -> Calibration:
    measures = list(MEASURES)
    curves = pd.concat([scores(measures, level).assign(superposition=level) for level in LEVELS], ignore_index=True)
    rate = np.linspace(0.01, 0.09, len(measures))
    counts = [[0, 0, 0, 1234], [15, 2, 3, 0], [1, 7, 4, 0], [0, 9, 0, 0]]
    names = [role.name for role in ROLES]
    planted = np.arange(30, 30 + len(names))
    sites = [(measure, site) for measure in ("ablate", "attribute") for site in SITES]
    first = np.linspace(0.2, 0.8, len(sites))
    return Calibration(
        measures=curves[curves["superposition"] == LEVELS[1]].drop(columns="superposition").reset_index(drop=True),
        verdicts=pd.DataFrame({"true_meanings": [0, 1, 2, 8]}).join(pd.DataFrame(counts, columns=list(VERDICTS))),
        random_keys=pd.DataFrame([dict(zip(VERDICTS, (1, 8, 1, 0), strict=True))]),
        nulls=pd.DataFrame(
            {"measure": measures, "rate": rate, "low": rate - 0.008, "high": rate + 0.02, "neurons": 346}
        ),
        curves=curves,
        roles=pd.DataFrame(
            {
                "role": names,
                "precision": [float("nan"), *np.linspace(0.5, 1, len(names) - 1)],
                "recall": np.linspace(0, 0.9, len(names)),
                "planted": planted,
                "found": planted[::-1],
                "hits": 1,
            }
        ),
        facts=pd.DataFrame(
            {
                "measure": [measure for measure, _ in sites],
                "site": [site for _, site in sites],
                "first": first,
                "low": first - 0.15,
                "high": first + 0.17,
                "second": first + 0.1,
                "facts": range(10, 10 + len(sites)),
            }
        ),
        settings={"kinds": ["meanings"], "seeds": [7, 8], "superposition": list(LEVELS), "standard": 1.5, "draws": 20},
    )


def scores(measures: list[str], level: float) -> pd.DataFrame:
    table = pd.DataFrame({"measure": measures})
    for start, name in ((0.45, "auroc"), (-0.3, "spearman"), (0.2, "precision_at_k")):
        value = np.linspace(start, 0.9, len(measures)) + level / 100
        table = table.assign(**{name: value, f"{name}_low": value - 0.04, f"{name}_high": value + 0.03})
    return table.assign(neurons=346)
