"""Planted chains, and whether a circuit is the path that was planted."""

from __future__ import annotations

import pytest

import ffnmem as fm
from ffnmem.planted import plant, plant_chains
from ffnmem.planted.planting import Planted
from ffnmem.planted.recovery import adjusted_rand, path_scores, supernode_score


def scores(planted: Planted, count: int, **options: float) -> list[tuple[dict[str, float], float]]:
    found = []
    for fact in planted.facts[:: max(1, len(planted.facts) // count)][:count]:
        foil = next(
            one.target_true
            for one in planted.facts
            if one.relation == fact.relation and one.target_true != fact.target_true
        )
        capture = fm.capture(planted.model, fact.text)
        circuit = fm.circuit(capture, f" {fact.target_true}", f" {foil}", **options)
        kept = float(circuit.faithfulness(capture).curve["faithfulness"].iloc[-1])
        assert kept >= 0.95
        found.append((path_scores(planted, fact, circuit), supernode_score(planted, fact, circuit)))
    return found


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_every_chain_is_recalled_and_its_circuit_is_the_planted_path(noise: float) -> None:
    planted = plant_chains(seed=1, n_chains=8, n_none=20, noise=noise)
    assert all(planted.recalled())
    for found, _ in scores(planted, 3):
        assert found == dict.fromkeys(("precision", "recall", "edge_precision", "edge_recall"), 1.0)


@pytest.mark.parametrize("site", ["early", "late"])
def test_the_circuit_of_a_planted_fact_is_its_path(site: str) -> None:
    for found, _ in scores(plant("facts", seed=1, site=site, n_subjects=12, n_objects=4), 3):
        assert min(found.values()) >= 0.95


def test_supernodes_are_the_planted_groups() -> None:
    """Two branches read alike and are read by others; copies of one memory are one group."""
    planted, same = (plant_chains(seed=2, n_chains=6, branches=2, copies=4, n_none=20) for _ in range(2))
    assert all(planted.recalled())
    assert same.model.fingerprint == planted.model.fingerprint
    assert len(planted.truth) == 3 * planted.model.d_mlp
    counts = planted.truth["role"].value_counts()
    assert (counts["first"], counts["second"], counts["third"]) == (24, 48, 48)
    for found, score in scores(planted, 2, node_threshold=0.98):
        assert found["recall"] >= 0.95
        assert score >= 0.9


def test_adjusted_rand() -> None:
    assert adjusted_rand([0, 0, 1, 1], ["b", "b", "a", "a"]) == 1.0
    assert adjusted_rand([0, 0, 1, 2], [0, 0, 1, 1]) == pytest.approx(0.5714285714285714)  # as scikit-learn has it
    assert adjusted_rand([0, 1, 0, 1], [0, 0, 1, 1]) == pytest.approx(-0.5)
