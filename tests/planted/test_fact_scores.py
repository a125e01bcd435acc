"""Where measures rank the neuron that a fact was planted in."""

from __future__ import annotations

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.planted import Planted, plant, recovery
from ffnmem.planted.recovery import SITES, of_facts, planted_ranks, rank_of

SMALL = {"n_subjects": 12, "n_relations": 2, "n_objects": 4, "n_none": 8}


@pytest.fixture(scope="module", params=SITES)
def planted(request: pytest.FixtureRequest) -> Planted:
    return plant("facts", seed=7, site=request.param, **SMALL)


@pytest.mark.parametrize(
    ("values", "rank"),
    [
        ((3.0, 2.0, 1.0), 0),
        ((1.0, 2.0, 3.0), 2),
        ((1.0, -5.0, 0.5), 0),
        ((0.0, 0.0, 0.0), 2),  # what is the same for all finds nothing
        ((1.0, 1.0, 0.0), 1),
        ((float("nan"), 1.0, 0.0), 2),
        ((1.0, float("nan"), 0.0), 1),
    ],
)
def test_rank_of_the_first_neuron(values: tuple[float, ...], rank: int) -> None:
    effects = pd.DataFrame({"layer": 0, "neuron": range(3), "effect": values})
    assert rank_of(effects, (0, 0)) == rank
    assert rank_of(effects, (1, 0)) == 3  # which is not there


def test_measures_find_the_planted_neuron(planted: Planted) -> None:
    """Late facts are written where attribution looks; early ones only paths and ablation can see."""
    for fact in planted.facts[::8]:
        ranks = planted_ranks(planted, fact)
        assert ranks["attribute_paths"] <= 1
        assert ranks["ablate"] <= 1
        if planted.settings["site"] == "late":
            assert ranks["attribute"] == ranks["knowledge_neurons"] == 0
        else:
            assert min(ranks["attribute"], ranks["knowledge_neurons"]) > 1
    fact, truth = planted.facts[1], planted.truth
    (row,) = truth[(truth["subject"] == fact.subject) & (truth["relation"] == fact.relation)].itertuples()
    table = fm.attribute(fm.capture(planted.model, fact.text), f" {fact.target_true}").neurons
    own = table["logit"][(table["layer"] == row.layer) & (table["neuron"] == row.neuron)].item()
    assert planted_ranks(planted, fact)["attribute"] == (table["logit"] >= own).sum() - 1


def test_of_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of first and second places over all models, measure by measure and site by site."""
    monkeypatch.setattr(recovery, "plant", lambda kind, seed, site: plant(kind, seed=seed, site=site, **SMALL))
    ranks = {"early": iter([0, 1, 2, 0, 1, 5]), "late": iter([0, 0, 0, 0, 0, 0])}
    asked: list[tuple[int, str, str]] = []

    def ranked(planted: Planted, fact: fm.Fact) -> dict[str, int]:
        asked.append((planted.seed, str(planted.settings["site"]), fact.id))
        return {"measure": next(ranks[str(planted.settings["site"])])}

    monkeypatch.setattr(recovery, "planted_ranks", ranked)
    steps: list[None] = []
    found = of_facts([0, 1], lambda: steps.append(None), facts=3)
    assert len(steps) == 4
    assert len(set(asked)) == len(asked) == 12
    early, late = found.to_dict("records")
    assert (early["measure"], early["site"], early["facts"]) == ("measure", "early", 6)
    assert (early["first"], early["second"]) == (2 / 6, 4 / 6)
    assert (early["low"], early["high"]) == pytest.approx((0.0433, 0.7772), abs=1e-4)  # Clopper and Pearson
    assert (late["site"], late["first"], late["second"], late["high"]) == ("late", 1, 1, 1)
