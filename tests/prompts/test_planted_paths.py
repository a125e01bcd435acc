"""Where a planted fact is recalled: attribution, ablation and circuits find what was written into the weights."""

from __future__ import annotations

import pandas as pd
import pytest

import ffnmem as fm

from ..planted_models import CARRIER, STAGES, Planted, plant_chains, plant_facts

AT = {"subject last": -3, "trigger": -2, "last": -1}
"""Where a planted memory fires in a prompt of its own, counted from its end."""


def of_fact(planted: Planted, fact: fm.Fact) -> pd.DataFrame:
    """The planted memories that recall a fact."""
    truth = planted.truth[planted.truth["subject"] == fact.subject]
    return truth[truth["relation"].isin(["", fact.relation])]


@pytest.mark.parametrize("site", ["early", "late"])
def test_attribution_names_late_neurons_and_cannot_name_early_ones(site: str) -> None:
    """Late: the neuron at the last token wrote the answer. Early: attention brought it, and only ablation tells."""
    planted = plant_facts(1, site, n_subjects=12, n_objects=4, n_none=12)
    for fact in planted.facts[::5]:
        row = of_fact(planted, fact).query("role == 'fact'").iloc[0]
        capture = fm.capture(planted.model, fact.text)
        found = fm.attribute(capture, target=f" {fact.target_true}")
        top = found.neurons.iloc[0]
        assert ((top.layer, top.neuron) == (row.layer, row.neuron)) == (site == "late")
        component = found.components.loc[found.components.logit.idxmax()]
        assert (component.component, component.layer) == ("ffn" if site == "late" else "attention", CARRIER)
        where = [(int(row.layer), n) for n in range(planted.model.d_mlp)]
        worst = fm.ablate(capture, f" {fact.target_true}", neurons=where).neurons.sort_values("logit").iloc[-1]
        assert worst.neuron == row.neuron


def check_circuit(planted: Planted, fact: fm.Fact, stages: tuple[str, ...]) -> None:
    """The circuit is the planted path: its firings, its edges, and all of the difference."""
    foil = next(one.target_true for one in planted.facts if one.target_true != fact.target_true)
    capture = fm.capture(planted.model, fact.text)
    asked = f" {fact.target_true}", f" {foil}"
    circuit = fm.circuit(capture, fm.minimal_circuit(capture, *asked, faithfulness=0.95), *asked)
    assert circuit.kept is not None
    assert circuit.kept >= 0.95
    truth, length = of_fact(planted, fact).set_index("role"), len(circuit.tokens)
    path = [f"{row.layer}.{row.neuron}@{length + AT[row.position]}" for row in (truth.loc[one] for one in stages)]
    assert set(circuit.firings["id"]) == set(path)
    ends = {*path, "answer"}
    strong = circuit.edges[circuit.edges["share"] > 0.02]
    drawn = {(edge.source, edge.target) for edge in strong.itertuples()}
    assert {edge for edge in drawn if set(edge) <= ends} == set(zip(path, [*path[1:], "answer"], strict=True))


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_the_circuit_of_a_chain_is_the_planted_path(noise: float) -> None:
    planted = plant_chains(1, n_chains=8, n_none=20, noise=noise)
    for fact in planted.facts[::3]:
        check_circuit(planted, fact, STAGES)


@pytest.mark.parametrize("site", ["early", "late"])
def test_the_circuit_of_a_planted_fact_is_its_path(site: str) -> None:
    planted = plant_facts(1, site, n_subjects=12, n_objects=4, noise=0.02)
    for relation in {fact.relation for fact in planted.facts}:
        facts = [fact for fact in planted.facts if fact.relation == relation]
        check_circuit(Planted(planted.model, planted.truth, (), tuple(facts)), facts[3], ("subject", "fact"))
