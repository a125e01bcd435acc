"""From what is asked to tensors, against loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError
from ffnmem.interventions import changes as planning
from ffnmem.interventions.changes import Plan, make_plan

from ..helpers import PROMPT, allclose, refuses

M = torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(0))


def applied(plan: Plan, layer: int, m: torch.Tensor = M, **options: Any) -> torch.Tensor:
    return plan.layers[layer].applied(m, **options)


def test_each_kind(tiny: fm.Model) -> None:
    capture = fm.capture(tiny, PROMPT)
    mean = capture.coefficients[0][0, 1:].double().mean(0)
    plan = make_plan(
        tiny,
        {
            (0, 3): 2,
            (0, 5): fm.interventions.Scale(-2),
            (0, 7): fm.interventions.Add(0.5),
            (0, 9): fm.interventions.Mean(capture),
        },
    )
    expected = M.clone()
    expected[..., 3], expected[..., 5], expected[..., 7] = 2.0, M[..., 5] * -2, M[..., 7] + 0.5
    expected[..., 9] = mean[9].float()
    assert torch.equal(applied(plan, 0), expected)
    assert list(plan.layers) == [0]
    assert plan.rows is None
    assert plan.layers[0].uniform
    assert plan.words == "0.3 = 2, 0.5 × -2, 0.7 + 0.5, 0.9 = mean of a capture"


def test_setting_forgets_what_was_there(tiny: fm.Model) -> None:
    """Zero times an infinity would be NaN."""
    plan = make_plan(tiny, {(0, 3): 1.0, (0, 4): fm.interventions.Scale(0)})
    found = applied(plan, 0, torch.full((1, 2, 64), float("inf")))
    assert found[0, :, [3, 4]].tolist() == [[1.0, 0.0], [1.0, 0.0]]


def test_only_the_cells(tiny: fm.Model) -> None:
    cells = torch.zeros(3, 5, dtype=torch.bool)
    cells[0, 1] = cells[2, 4] = True
    found = applied(make_plan(tiny, {(1, 3): 9.0, (1, 60): 8.0}), 1, cells=cells)
    expected = M.clone()
    expected[0, 1, [3, 60]] = expected[2, 4, [3, 60]] = torch.tensor([9.0, 8.0])
    assert torch.equal(found, expected)


def test_a_dict_for_each_row(tiny: fm.Model) -> None:
    plan = make_plan(
        tiny, [{(0, 3): 1.0, (1, 2): 5.0}, {}, {(0, 3): fm.interventions.Scale(2.0), (0, 8): fm.interventions.Add(1.0)}]
    )
    expected = M.clone()
    expected[0, :, 3], expected[2, :, 3], expected[2, :, 8] = 1.0, M[2, :, 3] * 2, M[2, :, 8] + 1
    assert torch.equal(applied(plan, 0), expected)
    assert torch.equal(applied(plan, 1)[1:], M[1:])
    assert plan.rows == 3
    assert not plan.layers[0].uniform
    assert plan.words == "row 0: 0.3 = 1, 1.2 = 5, row 2: 0.3 × 2, 0.8 + 1"


@pytest.mark.parametrize("turned", [False, True])
def test_a_neuron_keeps_its_own_beside_its_layer(tiny: fm.Model, turned: bool) -> None:
    """In whichever order they are named."""
    capture = fm.capture(tiny, PROMPT)
    for whole, own in (
        (fm.interventions.Set(0.0), fm.interventions.Set(4.0)),
        (fm.interventions.Resample(capture), fm.interventions.Set(4.0)),
        (fm.interventions.Add(1.0), fm.interventions.Scale(1.0)),
    ):
        items = [((0, None), whole), ((0, 6), own)]
        plan = make_plan(tiny, dict(items[::-1] if turned else items))
        found = applied(plan, 0, uniforms=lambda seed: torch.zeros(3, 5))
        if isinstance(whole, fm.interventions.Resample):
            expected = capture.coefficients[0][0, 1].expand(3, 5, -1).clone()
        else:
            expected = torch.zeros_like(M) if isinstance(whole, fm.interventions.Set) else M + 1
        expected[..., 6] = 4.0 if isinstance(own, fm.interventions.Set) else M[..., 6]
        assert torch.equal(found, expected)
    assert "every neuron of layer 0 + 1" in plan.words


def test_draws_come_from_one_place(tiny: fm.Model) -> None:
    """Neurons of one source and seed move together; another seed draws elsewhere."""
    capture = fm.capture(tiny, PROMPT)
    pool = capture.coefficients[0][0, 1:]
    first, second = fm.interventions.Resample(capture, 1), fm.interventions.Resample(capture, 2)
    plan = make_plan(tiny, {(0, 3): first, (0, 5): first, (0, 9): second})
    draws = {seed: torch.tensor(np.random.default_rng(seed).random((3, 5))) for seed in (1, 2)}
    found = applied(plan, 0, uniforms=lambda seed: draws[seed])
    for row in range(3):
        for position in range(5):
            one, two = (int(draws[seed][row, position] * len(pool)) for seed in (1, 2))
            assert found[row, position, [3, 5, 9]].tolist() == [pool[one, 3], pool[one, 5], pool[two, 9]]
    assert not plan.layers[0].uniform


def test_a_source_is_read_once_a_layer(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand neurons would open a store a thousand times."""
    reads = []
    real = planning.means_of

    def counted(source: Any, model: fm.Model, layer: int) -> torch.Tensor:
        reads.append(layer)
        return real(source, model, layer)

    monkeypatch.setattr(planning, "means_of", counted)
    capture = fm.capture(tiny, PROMPT)
    row = {(layer, neuron): fm.interventions.Mean(capture) for layer in (0, 1) for neuron in range(9)}
    make_plan(tiny, [row, row])
    assert reads == [0, 1]


def test_gradients_pass(tiny: fm.Model) -> None:
    m = M.clone().requires_grad_()
    applied(make_plan(tiny, {(0, 3): 1.0, (0, 4): fm.interventions.Scale(3.0)}), 0, m).sum().backward()  # type: ignore[no-untyped-call]
    assert m.grad is not None
    assert m.grad[0, 0, 2:6].tolist() == [1.0, 0.0, 3.0, 1.0]


@pytest.mark.parametrize(
    ("asked", "kind", "named"),
    [
        ({}, InputError, ("nothing is intervened",)),
        ([{}, {}], InputError, ("nothing is intervened",)),
        ([], InputError, ("nothing is intervened",)),
        ({(2, 0): 0.0}, OutOfRangeError, ("layer 2", "0 to 1")),
        ({(0, 64): 0.0}, OutOfRangeError, ("neuron 64", "0 to 63")),
        ({3: 0.0}, InputError, ("3 names no neuron", "(layer, None)")),
        ({(0, 1, 2): 0.0}, InputError, ("(0, 1, 2) names no neuron",)),
        ({(0, 63): 0.0, (0, -1): 1.0}, InputError, ("0.63 is named twice",)),
        ({(1, None): 0.0, (-1, None): 1.0}, InputError, ("every neuron of layer 1 is named twice",)),
        ({(0, 1): "zero"}, InputError, ("'zero'", "Set, Scale, Add, Mean or Resample")),
        ([{(0, 1): 0.0}, (0, 2)], InputError, ("{(layer, neuron): what}",)),
    ],
)
def test_what_is_refused(tiny: fm.Model, asked: Any, kind: Any, named: tuple[str, ...]) -> None:
    with refuses(kind, IndexError if kind is OutOfRangeError else ValueError, *named):
        make_plan(tiny, asked)


def test_numbers_that_the_dtype_cannot_hold(make_tiny: Callable[..., fm.Model]) -> None:
    """An infinity would run through every later layer."""
    model = make_tiny(dtype="float16")
    assert make_plan(model, {(0, 3): 6e4}).words == "0.3 = 60000"
    for change in (1e6, fm.interventions.Scale(1e6), fm.interventions.Add(-1e6)):
        with refuses(InputError, ValueError, "layer 0", "float16"):
            make_plan(model, {(0, 3): change})


def test_words_stay_short(tiny: fm.Model) -> None:
    words = make_plan(tiny, [{(0, n): 0.0 for n in range(40)}] * 30).words
    assert "(40 in all)" in words
    assert "(30 in all)" in words
    assert len(words) < 500
    assert allclose(applied(make_plan(tiny, {(0, n): 0.0 for n in range(64)}), 0), torch.zeros_like(M))
