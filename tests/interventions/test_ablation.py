"""What an Ablation says of itself."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import ffnmem as fm

from ..helpers import PROMPT


@pytest.fixture(scope="module")
def found(tiny: fm.Model) -> fm.interventions.Ablation:
    return fm.ablate(fm.capture(tiny, PROMPT), " Paris", " Rome", top=9)


def with_effects(
    found: fm.interventions.Ablation, direct: list[float], total: list[float]
) -> fm.interventions.Ablation:
    return replace(found, neurons=found.neurons.head(len(direct)).assign(direct=direct, logit=total))


def test_agreement(found: fm.interventions.Ablation) -> None:
    """By ranks, and by signs; an effect of zero has none."""
    some = with_effects(found, [1.0, 2.0, -3.0, 0.0], [0.1, 40.0, 5.0, -1.0])
    ranks = np.corrcoef([2, 3, 0, 1], [1, 3, 2, 0])[0, 1]
    assert some.spearman == pytest.approx(ranks)
    assert some.opposite == 1
    assert np.isnan(with_effects(found, [1.0], [2.0]).spearman)
    assert np.isnan(with_effects(found, [1.0, 1.0], [2.0, 3.0]).spearman)


def test_plain_values(found: fm.interventions.Ablation) -> None:
    record = found.to_dict()
    again = json.loads(json.dumps(record, allow_nan=False))
    assert again["neurons"] == found.neurons.to_dict("records")
    assert (again["target"], again["foil"], again["positions"]) == (" Paris", " Rome", None)
    assert again["spearman"] == found.spearman
    alone = with_effects(found, [1.0], [2.0]).to_dict()
    assert alone["spearman"] is None
    frame = found.to_frame()
    frame["logit"] = 0.0
    assert (found.neurons["logit"] != 0).any()


def test_repr(found: fm.interventions.Ablation) -> None:
    assert repr(found).startswith("Ablation(9 neurons, how 'set to zero', target ' Paris', foil ' Rome', logit ")
    assert 'class="ffnmem"' in found._repr_html_()
