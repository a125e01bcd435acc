"""v*: its loss and gradient against whole forward passes, and the two ways to δ."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import ffnmem as fm
from ffnmem.editing import values
from ffnmem.editing.closed_forms import find_directions
from ffnmem.editing.preparing import EditPlan, plan_edits
from ffnmem.editing.requests import Request, RequestRow
from ffnmem.editing.searching import AIM, Search, span
from ffnmem.editing.settings import EditSettings
from ffnmem.editing.values import Descent, RequestBatch, optimise, request_batches

from ..helpers import ARCHITECTURES, Pair, allclose
from .plans import CONTEXTS, FACTS, random_like
from .plans import plan_of as moved_plan

SETTINGS = {"optimiser": "adam", "decay": 0.5, "steps": 6, "rate": 0.3, "stop": 0.0, "clamp": 50.0}
Logits = Callable[[RequestRow, Tensor], Tensor]


def plan_of(model: fm.Model, layer: int = 0, **settings: Any) -> Any:
    return plan_edits(model, FACTS, layer=layer, contexts=CONTEXTS, settings={**SETTINGS, **settings})


def logits_with(model: fm.Model, layer: int, row: RequestRow, delta: Tensor) -> Tensor:
    """A whole forward pass of the model with ``delta`` added to what the FFN writes at the lookup."""

    def more(_module: Any, _args: Any, out: Tensor) -> Tensor:
        place = torch.zeros(len(row.tokens), 1, dtype=delta.dtype)
        place[row.lookup] = 1.0
        return out + (place * delta).reshape(out.shape)

    handle = model.ffn[layer].project_out.register_forward_hook(more)
    try:
        found: Tensor = model.hf_model(input_ids=torch.tensor([row.tokens])).logits[0]
    finally:
        handle.remove()
    return found


def plain_loss(plan: EditPlan, request: Request, delta: Tensor, logits: Logits) -> Tensor:
    """The loss of Meng et al. 2022, eq. 4, one whole pass a row."""
    settings, ids = plan.settings, torch.tensor(request.ids).unsqueeze(1)
    logs = [logits(row, delta).log_softmax(-1)[-len(ids) :] for row in request.rows]
    nll = torch.stack([-log.gather(1, ids).mean() for log in logs])
    at = request.essence.lookup if settings.kl_at == "subject" else -1
    now, old = (logits(request.essence, d)[at].log_softmax(-1) for d in (delta, torch.zeros_like(delta)))
    written = fm.capture(plan.model, torch.tensor([request.rows[0].tokens])).ffn_out[settings.layer]
    decay = delta.norm() / written[0, request.rows[0].lookup].norm() ** 2
    return settings.weights(len(nll)) @ nll + settings.kl * (now.exp() * (now - old)).sum() + settings.decay * decay


def check_losses(plan: EditPlan, batch: RequestBatch, logits: Callable[[int], Logits], tolerance: float) -> None:
    """Loss and gradient of a random δ for each request, against whole passes."""
    delta = random_like(len(plan.requests), plan.model.d_model).requires_grad_()
    with torch.enable_grad():
        loss, _nll = batch.losses(delta, batch.every)
        (gradient,) = torch.autograd.grad(loss.sum(), delta)
        for i, request in enumerate(plan.requests):
            own = delta[i].detach().clone().requires_grad_()
            expected = plain_loss(plan, request, own, logits(i))
            (slope,) = torch.autograd.grad(expected, own)
            assert allclose(loss[i], expected, tolerance)
            size = float(slope.norm())  # of what reaches no answer, that of the decay alone
            assert allclose(gradient[i] / size, slope / size, tolerance)


@pytest.mark.parametrize(("layer", "kl_at"), [(0, "subject"), (0, "last"), (1, "last")])
def test_loss_and_gradient_are_those_of_whole_passes(pair64: Pair, layer: int, kl_at: str) -> None:
    """A pad that is read, keys of another row, a target's token at the wrong place, a weight forgotten."""
    plan = plan_of(pair64.model, layer, kl_at=kl_at)
    batch = RequestBatch(plan.layers, plan.requests, plan.settings)

    def logits(_i: int) -> Logits:
        return lambda row, delta: logits_with(pair64.model, layer, row, delta)

    check_losses(plan, batch, logits, 1e-4 if pair64.rounds_attention else 1e-11)


@pytest.mark.parametrize(("kind", "kl_at"), [("gpt2", "last"), ("llama", "last"), ("llama", "subject")])
def test_a_change_is_searched_as_it_acts(
    kind: str, kl_at: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With directions, loss and gradient are those of the model with W + ΔW in its weights, at every position.

    A gain of a pad, of another request's direction, none before the subject or behind it, none in the essence.
    """
    monkeypatch.setattr(values, "LEAST", 0.0)
    model = fm.load(ARCHITECTURES[kind](), tokenizer=tokenizer, dtype="float64")
    model.hf_model.set_attn_implementation("sdpa")  # the eager one takes its softmax in float32
    plan = moved_plan(model, layer=0, settings={**SETTINGS, "kl_at": kl_at})
    directions = find_directions(plan, None, None)
    assert directions is not None
    batch = RequestBatch(plan.layers, plan.requests, plan.settings, directions)
    nothing = Descent(torch.zeros(len(FACTS), model.d_model), *([0] * 3 for _ in range(4)))
    along = directions(torch.stack([one.key for one in batch.found(nothing)]))
    weight = model.ffn[0].project_out.weight
    name = next(name for name, parameter in model.hf_model.named_parameters() if parameter is weight)

    def logits(i: int) -> Logits:
        def of(row: RequestRow, delta: Tensor) -> Tensor:
            change = torch.outer(along[i], delta)
            changed = weight.detach() + (change.T if weight.shape == change.T.shape else change)
            tokens = {"input_ids": torch.tensor([row.tokens]), "use_cache": False}
            found: Tensor = torch.func.functional_call(model.hf_model, {name: changed}, (), tokens).logits[0]
            return found

        return of

    check_losses(plan, batch, logits, 1e-10)


# -- by Adam -----------------------------------------------------------------------------------------------------------


def test_many_are_as_one_by_one(tiny64: fm.Model) -> None:
    """Gradients that mix, a stop or a clamp of another request."""
    plan = plan_of(tiny64, stop=4.0, clamp=1.0)
    together = optimise(plan.layers, plan.requests, plan.settings)
    split = optimise(plan.layers, plan.requests, plan.settings, batch_tokens=1)
    after, rows = [max(row.after for row in (*one.rows, one.essence)) for one in plan.requests], len(CONTEXTS) + 1
    for limit, count in ((1, 3), (2 * rows * sorted(after)[1], 2), (10**6, 1)):  # as many together as fit
        batches = list(request_batches(plan.requests, limit))
        assert len(batches) == count
        assert sorted(i for batch in batches for i in batch) == [0, 1, 2]
        assert all(len(some) * rows * max(after[i] for i in some) <= limit for some in batches if len(some) > 1)
    for request, found, other in zip(plan.requests, together, split, strict=True):
        (alone,) = optimise(plan.layers, [request], plan.settings)
        assert found.steps == alone.steps
        assert allclose(found.delta, alone.delta, 1e-5)
        assert allclose(other.delta, alone.delta, 1e-5)
        assert allclose(found.keys, alone.keys, 1e-9)
        assert found.after == pytest.approx(alone.after, rel=1e-4)


def test_the_target_gets_likelier_and_delta_stays_in_its_clamp(tiny: fm.Model) -> None:
    plan = plan_of(tiny, steps=25, clamp=0.5)
    done: list[tuple[int, int]] = []
    before = optimise(plan.layers, plan.requests, replace(plan.settings, stop=1e9))  # low enough: no step
    found_all = optimise(plan.layers, plan.requests, plan.settings, progress=lambda *at: done.append(at[1:]))
    for found, still in zip(found_all, before, strict=True):
        assert found.after > still.after
        assert float(found.delta.norm()) <= 0.5 * found.scale * (1 + 1e-5)
        assert (found.steps, found.passes) == (24, 25)
    assert done[-1] == (3, 3)
    for still in before:
        assert still.steps == 0
        assert not still.delta.any()


# -- by projections ----------------------------------------------------------------------------------------------------

PROJECTIONS = EditSettings(0, optimiser="projections", steps=30, rate=1.0, stop=0.05, decay=0.0)


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


@pytest.mark.parametrize("rows", [3, 5])
def test_linear_margins_take_a_few_looks(rows: int) -> None:
    """Where the loss's slope vanishes, steps along it would take a hundred; δ is hardly longer than need be."""
    slopes, weights = random_like(rows, 40), torch.full((rows,), 1 / rows).double()
    search, held = Search(PROJECTIONS, 100.0, 40), torch.zeros(rows, dtype=torch.bool)
    while search.running:
        margins = slopes @ search.candidate - 12.0
        each = torch.nn.functional.softplus(-margins)
        if search.look(each, weights, held):
            search.turn(each, -torch.sigmoid(-margins).unsqueeze(1) * slopes, weights, held)
    assert search.looks <= 6
    assert float(torch.nn.functional.softplus(torch.tensor(-search.goal))) == pytest.approx(AIM * PROJECTIONS.stop)
    assert AIM * PROJECTIONS.stop / 2 < search.nll <= PROJECTIONS.stop
    far = torch.linalg.lstsq(slopes, torch.full((rows, 1), 12.0 + search.goal).double()).solution
    assert float(search.best.norm()) <= 1.05 * float(far.norm())


class Searched:
    """A search in a model that is linear, or whose losses are told."""

    def __init__(self, rows: int = 3, **settings: Any) -> None:
        self.slopes, self.weights = random_like(rows, 8), torch.full((rows,), 1 / rows).double()
        self.search = Search(replace(PROJECTIONS, **settings), 1.0, 8)

    def step(self, told: float | None = None) -> Search:
        margins = self.slopes @ self.search.candidate - 5.0
        each = torch.nn.functional.softplus(-margins) if told is None else torch.full((len(self.slopes),), told)
        held = torch.zeros(len(self.slopes), dtype=torch.bool)
        if self.search.look(each.double(), self.weights, held):
            self.search.turn(each, -torch.sigmoid(-margins).unsqueeze(1) * self.slopes, self.weights, held)
        return self.search


def test_radius_and_clamp_hold_and_the_best_is_kept() -> None:
    near, losses = Searched(rate=0.1, clamp=0.3), []
    while near.search.running and len(losses) < 12:
        assert float((near.search.candidate - near.search.best).norm()) <= near.search.radius + 1e-9
        losses.append(near.step().nll)
    assert float(near.search.best.norm()) <= 0.3 + 1e-9
    assert losses == sorted(losses, reverse=True)
    worse = Searched()
    length = float(worse.step().candidate.norm())
    search = worse.step(50.0)  # whose slopes nobody needs
    assert float(search.best.norm()) == 0.0
    assert 0 < float(search.candidate.norm()) < length / 2
    assert search.shrink == search.again().shrink == Search(PROJECTIONS, 1.0, 8).shrink / 2


def test_what_keeps_the_essence_within_its_bound_is_no_worse() -> None:
    """A divergence below its bound would count, or an equal loss be refused."""
    search, held, weights = Search(PROJECTIONS, 1.0, 8), torch.tensor([False, True]), torch.tensor([1.0, 0.0]).double()
    for kl in (0.0, 0.99 * search.bound):
        each, looked = torch.tensor([3.0, kl]).double(), search.candidate
        assert search.look(each, weights, held)
        assert search.best is looked
        search.turn(each, random_like(2, 8), weights, held)
    assert not search.look(torch.tensor([3.0, 1.01 * search.bound]).double(), weights, held)


def test_a_search_ends() -> None:
    """Where there is nowhere to go, and where losses are NaN."""
    flat = Searched(1)
    flat.slopes = torch.zeros(1, 8).double()
    assert [flat.step(3.0).running for _ in range(2)] == [True, False]
    lost = Searched(1)
    assert not lost.step(math.nan).running
    assert math.isnan(lost.search.nll)


def test_targets_are_reached_in_few_passes(atlas: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam's small steps took 40 to 120, and what they left was above the loss to stop at without a word; a pass back
    where nobody goes on is none."""
    facts = [fact for fact in fm.load_facts("atlas") if fact.target_new][::900]
    back, grad = [0], torch.autograd.grad

    def counted(*args: Any) -> tuple[Tensor, ...]:
        back[0] += 1
        return grad(*args)

    monkeypatch.setattr(torch.autograd, "grad", counted)
    contexts = ("{}", "They say. {}", "In a book of the city. {}")
    plan = plan_edits(atlas, facts, contexts=contexts, settings={"optimiser": "projections"})
    found = optimise(plan.layers, plan.requests, plan.settings)
    for one in found:
        assert one.nll <= plan.settings.stop
        assert one.steps <= 8
        assert float(one.delta.norm()) < one.scale
    assert 0 < back[0] <= max(one.steps for one in found)  # as many as there were looks, but for the last


def test_a_search_begins_with_few_contexts_and_ends_with_all(atlas: fm.Model) -> None:
    """The loss that is told is over all contexts; of passes over few of them only their share is counted."""
    facts = [fact for fact in fm.load_facts("atlas") if fact.target_new][::900]
    contexts = ("{}", *(f"{words} {{}}" for words in ("They say.", "A book.", "In the city.", "Of it.", "As of old.")))
    plan = plan_edits(atlas, facts, contexts=contexts, settings={"first": 2})
    batch, width = RequestBatch(plan.layers, plan.requests, plan.settings), len(contexts) + 1
    few = batch.few().reshape(-1, width).nonzero()[:, 1].reshape(-1, 3)
    assert few.tolist() == [[0, width - 2, width - 1]] * len(facts)
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
