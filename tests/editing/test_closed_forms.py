"""Closed forms against their dense formulas, and layers that share an edit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.editing import Edit, EditedLayer, closed_forms
from ffnmem.editing.closed_forms import (
    RequestReplay,
    RequestReplays,
    alphaedit_left,
    emmet_left,
    memit_left,
    spread_changes,
)
from ffnmem.editing.preparing import find_values

from ..helpers import allclose
from .plans import FACTS, plan_of, random_like

RIDGE = 1e-6


@pytest.fixture(scope="module")
def plan(tiny: fm.Model) -> Any:
    return plan_of(tiny, layer=1, settings={"steps": 4})


def dense(plan: Any, layer: int, ridge: float = RIDGE) -> torch.Tensor:
    c = plan.moment.matrix(layer)
    return c + ridge * c.diagonal().mean() * torch.eye(len(c), dtype=c.dtype)


def test_memit_is_its_normal_equation(plan: Any) -> None:
    """(λC + KKᵀ)⁻¹K, K with a column a fact (MEMIT, eq. 14)."""
    keys = random_like(3, plan.model.d_mlp)
    for weight in (0.5, 20.0):
        found = memit_left(plan, weight, RIDGE)(0, keys)
        assert allclose(found, torch.linalg.solve(weight * dense(plan, 0) + keys.T @ keys, keys.T).T, 1e-9)


@pytest.mark.parametrize("norm", [0.0, 0.3])
@pytest.mark.parametrize("weight", [0.5, 20.0])
def test_memit_with_a_norm_and_previous_keys_is_its_normal_equation(plan: Any, norm: float, weight: float) -> None:
    """(λC + λₙI + K_pK_pᵀ + KKᵀ)⁻¹K (ENCORE): λₙ in other units than C's, a key of the wrong facts kept."""
    keys, held = random_like(3, plan.model.d_mlp), random_like(2, plan.model.d_mlp, seed=1)
    for previous in ({}, {0: held}):
        found = memit_left(plan, weight, 1e-3, norm, previous)(0, keys)
        every = weight * dense(plan, 0, 1e-3) + keys.T @ keys + (held.T @ held if previous else 0.0)
        expected = torch.linalg.solve(every + norm * torch.eye(len(every), dtype=every.dtype), keys.T).T
        assert found.shape == keys.shape
        assert allclose(found, expected, 1e-10)


def test_emmet_takes_each_key_all_the_way(plan: Any) -> None:
    """At ε = 0 left @ kⱼ is 1 for a fact's own key and 0 for the others', at the least cost for the corpus."""
    keys = random_like(3, plan.model.d_mlp)
    found = emmet_left(plan, 0.0, RIDGE)(0, keys)
    assert allclose(found @ keys.T, torch.eye(3, dtype=torch.float64), 1e-9)
    c = dense(plan, 0)
    other = found + 1e-3 * (
        random_like(3, plan.model.d_mlp, seed=1) @ (torch.eye(len(c)) - torch.linalg.pinv(keys) @ keys)
    )
    assert allclose(other @ keys.T, torch.eye(3, dtype=torch.float64), 1e-9)
    assert float(torch.trace(found @ c @ found.T)) < float(torch.trace(other @ c @ other.T))
    softened = emmet_left(plan, 0.5, RIDGE)(0, keys)
    assert float((softened @ keys.T).diagonal().max()) < 1.0


def test_alphaedit_is_its_formula_and_stays_in_the_null_space(plan: Any) -> None:
    keys, held = random_like(3, plan.model.d_mlp), random_like(2, plan.model.d_mlp, seed=1)
    threshold = float(plan.moment.eigenvalues(0)[40])
    p = plan.moment.null_projection(0, threshold)
    for previous in ({}, {0: held}):
        found = alphaedit_left(plan, {0: threshold}, 0.7, previous)(0, keys)
        every = keys.T @ keys + (held.T @ held if previous else 0.0)
        expected = torch.linalg.solve(p @ every + 0.7 * torch.eye(len(p), dtype=p.dtype), p @ keys.T).T
        assert allclose(found, expected, 1e-8)
        assert allclose(found @ p, found, 1e-9)


def test_one_layer_of_emmet_writes_all_of_delta(plan: Any) -> None:
    found = find_values(plan)
    changes = spread_changes(plan, plan.requests, found, [1], emmet_left(plan, 0.0, RIDGE))
    keys, _ = RequestReplays(plan, plan.requests, [1]).read([], 1)
    for i, one in enumerate(found):
        assert allclose((keys[i] @ changes[0].left.T) @ changes[0].right, one.delta.double(), 1e-5)


def test_later_layers_see_what_earlier_ones_did(plan: Any, tiny: fm.Model) -> None:
    """Keys and what is missing, read with the changes so far, are those of a model that has them applied."""
    found = find_values(plan)
    changes = spread_changes(plan, plan.requests, found, [0, 1], emmet_left(plan, 0.0, RIDGE))
    text = RequestReplays(plan, plan.requests, [0, 1])
    _, clean = text.read([], 0)
    keys, _ = text.read(changes[:1], 1)
    assert allclose(changes[1].left, emmet_left(plan, 0.0, RIDGE)(1, keys), 1e-6)
    first = Edit.of(tiny, changes[:1], method="first")
    with first.applied(tiny):
        for i, request in enumerate(plan.requests):
            coefficients = []
            for row in request.rows:
                capture = fm.capture(tiny, torch.tensor([row.tokens]))
                coefficients.append(capture.coefficients[1][0, row.lookup].double())
            assert allclose(keys[i], plan.settings.weights(len(request.rows)) @ torch.stack(coefficients), 1e-4)
            capture = fm.capture(tiny, torch.tensor([request.rows[0].tokens]))
            assert capture.residual is not None
            above = capture.residual.final_in[0, request.rows[0].lookup].double()  # of two layers, the last one's
            assert allclose(changes[1].right[i], clean[i] + found[i].delta.double() - above, 1e-4)
    assert allclose(2 * changes[0].right, torch.stack([one.delta.double() for one in found]), 1e-5)


def test_many_requests_are_replayed_some_at_a_time(
    tiny_hf: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand facts in one edit held every layer's coefficients of all of them at once: 23 GB on atlas."""
    plan = plan_of(fm.load(tiny_hf, tokenizer=tokenizer, dtype=torch.float64), layer=1, settings={"steps": 4})
    found = find_values(plan)
    together = spread_changes(plan, plan.requests, found, [0, 1], emmet_left(plan, 0.0, RIDGE))
    sizes: list[int] = []
    init = RequestReplay.__init__

    def counted(self: RequestReplay, plan: Any, requests: Any, layers: Any) -> None:
        sizes.append(len(requests))
        init(self, plan, requests, layers)

    monkeypatch.setattr(RequestReplay, "__init__", counted)
    monkeypatch.setattr(closed_forms, "BATCH_TOKENS", 1)
    apart = spread_changes(plan, plan.requests, found, [0, 1], emmet_left(plan, 0.0, RIDGE))
    assert sizes == [1] * len(plan.requests) * 2
    for one, other in zip(together, apart, strict=True):
        assert allclose(one.left, other.left, 1e-9)
        assert allclose(one.right, other.right, 1e-9)


def test_text_reads_the_clean_model_without_changes(plan: Any, tiny: fm.Model) -> None:
    text = RequestReplays(plan, plan.requests, [0, 1])
    keys, above = text.read([], 0)
    zero = EditedLayer(0, torch.zeros(1, tiny.d_mlp), torch.zeros(1, tiny.d_model))
    same, still = text.read([zero], 0)
    assert allclose(keys, same, 1e-9)
    assert allclose(above, still, 1e-9)
    assert keys.shape == (len(FACTS), tiny.d_mlp)
