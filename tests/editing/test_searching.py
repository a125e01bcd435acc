"""Projections: the smallest δ that satisfies rows taken as linear, within radius and clamp."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.editing.preparing import plan_edits
from ffnmem.editing.searching import AIM, Search, span
from ffnmem.editing.settings import EditSettings
from ffnmem.editing.values import RequestBatch, optimise

from .plans import random_like

SETTINGS = EditSettings(0, optimiser="projections", steps=30, rate=1.0, stop=0.05, decay=0.0)


def test_the_smallest_vector_that_goes_far_enough() -> None:
    """A row that is far enough already must not pull back, nor one be left behind."""
    rows = random_like(4, 9)
    units = rows / rows.norm(dim=1, keepdim=True)
    distance = torch.tensor([1.0, 2.0, -3.0, 0.5]).double()
    found = span(units, distance, torch.linalg.cholesky(units @ units.T + 1e-12 * torch.eye(4)))
    gone = units @ found
    assert bool((gone >= distance - 1e-6).all())
    binding = (gone - distance).abs() < 1e-6  # and of all such vectors the one in the span of rows that bind
    rest = found - units[binding].T @ torch.linalg.lstsq(units[binding].T, found).solution
    assert float(rest.norm()) < 1e-6


def margins(delta: torch.Tensor, slopes: torch.Tensor, start: float) -> tuple[torch.Tensor, torch.Tensor]:
    """−log p and its gradient where margins are truly linear."""
    m = start + slopes @ delta
    return torch.nn.functional.softplus(-m), -torch.sigmoid(-m).unsqueeze(1) * slopes


def step(
    search: Search,
    measured: tuple[torch.Tensor, torch.Tensor],
    weights: torch.Tensor,
    held: torch.Tensor,
    likeliest: bool = False,
) -> None:
    """A look, and a turn where the search goes on from there."""
    each, slopes = measured
    if search.look(each, weights, held, likeliest):
        search.turn(each, slopes, weights, held)


def test_linear_margins_take_a_few_looks() -> None:
    """Where the loss's slope vanishes, steps along it would take a hundred."""
    slopes, weights, held = random_like(5, 40), torch.full((5,), 0.2).double(), torch.zeros(5, dtype=torch.bool)
    search = Search(SETTINGS, 100.0, 40)
    while search.running:
        step(search, margins(search.candidate, slopes, -12.0), weights, held)
    assert search.looks <= 6
    assert AIM * SETTINGS.stop / 2 < search.nll <= SETTINGS.stop
    far = torch.linalg.lstsq(slopes, torch.full((5, 1), 12.0 + search.goal).double()).solution
    assert float(search.best.norm()) <= 1.05 * float(far.norm())


def test_radius_and_clamp_hold_and_the_best_is_kept() -> None:
    slopes, weights, held = random_like(3, 8), torch.full((3,), 1 / 3).double(), torch.zeros(3, dtype=torch.bool)
    search = Search(
        EditSettings(0, optimiser="projections", steps=30, rate=0.1, stop=0.05, decay=0.0, clamp=0.3), 2.0, 8
    )
    losses = []
    for _ in range(12):
        if search.running:
            assert float((search.candidate - search.best).norm()) <= search.radius + 1e-9
            step(search, margins(search.candidate, slopes, -30.0), weights, held)
            losses.append(search.nll)
    assert float(search.best.norm()) <= 0.6 + 1e-9
    assert losses == sorted(losses, reverse=True)
    worse = Search(SETTINGS, 1.0, 8)
    step(worse, margins(worse.candidate, slopes, -5.0), weights, held)
    length = float(worse.candidate.norm())
    assert not worse.look(torch.full((3,), 50.0).double(), weights, held)  # whose slopes nobody needs
    assert float(worse.best.norm()) == 0.0
    assert 0 < float(worse.candidate.norm()) < length / 2
    assert worse.shrink == worse.again().shrink == Search(SETTINGS, 1.0, 8).shrink / 2


def test_looks_at_a_likeliest_target_count_where_they_became_the_best() -> None:
    """A δ that was thrown away says nothing of the one that is kept."""
    slopes, weights, held = random_like(3, 8), torch.full((3,), 1 / 3).double(), torch.zeros(3, dtype=torch.bool)
    search = Search(replace(SETTINGS, likeliest=2), 1.0, 8)
    step(search, margins(search.candidate, slopes, -5.0), weights, held, True)
    step(search, (torch.full((3,), 50.0).double(), slopes), weights, held, True)
    assert (search.right, search.running) == (1, True)
    step(search, margins(search.candidate, slopes, -5.0), weights, held, True)
    assert (search.right, search.running, search.looks) == (2, False, 3)
    assert float(search.best.norm()) > 0


def test_nowhere_to_go_ends() -> None:
    """A layer whose output reaches no answer has no slopes; a model that gives NaN no losses."""
    weights, held = torch.ones(1).double(), torch.zeros(1, dtype=torch.bool)
    search = Search(SETTINGS, 1.0, 4)
    for _ in range(2):
        step(search, (torch.tensor([3.0]).double(), torch.zeros(1, 4).double()), weights, held)
    assert not search.running
    assert search.looks == 2
    search = Search(SETTINGS, 1.0, 4)
    assert not search.look(torch.tensor([math.nan]).double(), weights, held)
    assert not search.running
    assert math.isnan(search.nll)


def test_targets_are_reached_in_few_passes(atlas: fm.Model) -> None:
    """Adam's small steps took 40 to 120, and what they left was above the loss to stop at without a word."""
    facts = [fact for fact in fm.load_facts("atlas") if fact.target_new][::900]
    plan = plan_edits(
        atlas,
        facts,
        contexts=("{}", "They say. {}", "In a book of the city. {}"),
        settings={"optimiser": "projections"},
    )
    for found in optimise(plan.layers, plan.requests, plan.settings):
        assert found.nll <= plan.settings.stop
        assert found.steps <= 8
        assert float(found.delta.norm()) < found.scale


def test_no_pass_back_where_nobody_goes_on(atlas: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A δ that is good enough, or worse than the best, was followed by gradients that nothing read."""
    fact = next(fact for fact in fm.load_facts("atlas") if fact.target_new)
    plan = plan_edits(atlas, fact, contexts=("{}", "They say. {}"), settings={"optimiser": "projections"})
    back, grad = [0], torch.autograd.grad

    def counted(*args: Any) -> tuple[torch.Tensor, ...]:
        back[0] += 1
        return grad(*args)

    monkeypatch.setattr(torch.autograd, "grad", counted)
    (found,) = optimise(plan.layers, plan.requests, plan.settings)
    assert found.nll <= plan.settings.stop
    assert 0 < back[0] <= found.steps  # as many as there were looks, but for the last


def test_a_search_begins_with_few_contexts_and_ends_with_all(atlas: fm.Model) -> None:
    """The loss that is told is over all contexts; of passes over few of them only their share is counted."""
    facts = [fact for fact in fm.load_facts("atlas") if fact.target_new][::900]
    contexts = ("{}", *(f"{words} {{}}" for words in ("They say.", "A book.", "In the city.", "Of it.", "As of old.")))
    plan = plan_edits(atlas, facts, contexts=contexts, settings={"first": 2})
    batch = RequestBatch(plan.layers, plan.requests, plan.settings)
    width = len(contexts) + 1
    assert batch.few().reshape(-1, width).nonzero()[:, 1].reshape(-1, 3).tolist() == [[0, width - 2, width - 1]] * len(
        facts
    )
    sooner = batch.descend()
    whole = RequestBatch(plan.layers, plan.requests, replace(plan.settings, first=None)).descend()
    losses, _ = batch.losses(torch.stack([one.delta for one in sooner]), batch.every)
    for one, other, loss in zip(sooner, whole, losses.tolist(), strict=True):
        assert abs(one.loss - loss) < 1e-4
        assert one.nll <= plan.settings.stop
        assert other.passes == other.steps + 1
        assert one.passes < one.steps + 1
        assert abs(one.passes * width - round(one.passes * width)) < 1e-5
    assert sum(one.passes for one in sooner) < sum(other.passes for other in whole)
