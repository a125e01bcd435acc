"""The parts of planted facts, each by itself; the whole is in test_recall.py."""

from __future__ import annotations

import numpy as np
import torch

from ffnmem.planted.facts import RATE, Memories, answered, draw_statements, fact_rows, fill_layer, scaled
from ffnmem.planted.skeleton import empty_gpt2

from ..helpers import allclose

STATEMENTS = draw_statements(np.random.default_rng(0), 6, 2, 3)


def test_scaled_rows_meet_their_inputs_with_one() -> None:
    rows, x = torch.randn(2, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert allclose((scaled(rows, x) * x).sum(-1), torch.ones(5), 1e-9)


def test_answers_are_in_the_order_of_the_facts() -> None:
    """Off by one, every subject would recall another's object."""
    number = torch.arange(6, dtype=torch.float64).reshape(2, 3, 1)
    for fact, found in zip(STATEMENTS.facts(), answered(number, STATEMENTS)[:, 0].tolist(), strict=True):
        relation, answer = divmod(int(found), 3)
        assert STATEMENTS.relations[relation][0] == fact.relation
        assert STATEMENTS.objects[relation][answer] == fact.target_true


def test_rows_are_those_of_the_chosen_facts() -> None:
    chosen = torch.zeros(6, 2, dtype=torch.bool)
    chosen[1, 0] = chosen[4, 1] = True
    facts = STATEMENTS.facts()
    rows = fact_rows(STATEMENTS, chosen, "late")
    assert [(row["subject"], row["relation"]) for row in rows] == [
        (facts[i].subject, facts[i].relation) for i in (2, 9)
    ]
    assert {row["position"] for row in rows} == {"last"}


def test_a_layer_holds_its_memories_and_neurons_without_a_role() -> None:
    hf = empty_gpt2(5, n_layers=2, d_model=8, d_mlp=20, n_ctx=4)
    keys = 10 + torch.arange(3, dtype=torch.float64)[:, None] * torch.ones(3, 8, dtype=torch.float64)
    met = torch.randn(600, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    memories = Memories(keys, -keys[:, 0], -keys, tuple({"role": "fact", "subject": str(i)} for i in range(3)))
    rows = list(fill_layer(hf, 1, memories, met, np.random.default_rng(0)))
    assert [(row["layer"], row["neuron"]) for row in rows] == [(1, n) for n in range(20)]
    mlp = hf.transformer.h[1].mlp.requires_grad_(False)
    for n, row in enumerate(rows):
        if row["role"] == "fact":
            i = int(row["subject"])
            assert allclose(mlp.c_fc.weight[:, n], keys[i])
            assert allclose(mlp.c_proj.weight[n], -keys[i])
            assert float(mlp.c_fc.bias[n]) == -float(keys[i, 0])
        else:
            fires = (met @ mlp.c_fc.weight[:, n].double() + mlp.c_fc.bias[n]).detach() > 0
            assert abs(float(fires.double().mean()) - RATE) < 0.01
    assert sum(row["role"] == "fact" for row in rows) == 3
    assert not hf.transformer.h[0].mlp.c_fc.weight.any()
