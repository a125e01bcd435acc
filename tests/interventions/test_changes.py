"""What may become of a coefficient, where means and draws come from, and what of it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError
from ffnmem.interventions import Add, Mean, Resample, Scale, Set
from ffnmem.scanning import Store

from ..helpers import PROMPT, allclose, refuses
from .naive import IDS


def changed(model: fm.Model, asked: Any, tokens: Any = IDS, layer: int = 0) -> torch.Tensor:
    """A layer's coefficients ``[batch, pos, d_mlp]`` under an intervention."""
    with fm.intervene(model, asked):
        return fm.capture(model, tokens).coefficients[layer]


@pytest.mark.parametrize(
    "number", [2, 2.0, np.float32(2), np.int64(2), torch.tensor(2.0), Set(np.float32(2))], ids=repr
)
def test_numbers_set(tiny: fm.Model, number: Any) -> None:
    """Values from a table are NumPy's."""
    assert (changed(tiny, {(0, 3): number})[..., 3] == 2).all()


def test_changes_say_what_they_do(tiny: fm.Model, tiny_store: Store) -> None:
    capture = fm.capture(tiny, PROMPT)
    words = {
        Set(0.0): "= 0",
        Scale(-2): "× -2",
        Add(0.25): "+ 0.25",
        Mean(capture): "= mean of a capture",
        Mean(tiny_store): "= mean of a store",
        Resample(tiny_store, seed=4): "resampled from a store (seed 4)",
    }
    assert {change: str(change) for change in words} == words
    with fm.intervene(tiny, [{(0, 3): 1.0, (1, None): 5.0}, {}, {"0.3": Scale(2.0)}]):
        assert tiny.interventions == ("row 0: 0.3 = 1, every neuron of layer 1 = 5, row 2: 0.3 × 2",)
    with fm.intervene(tiny, [{(0, n): 0.0 for n in range(40)}] * 30):
        (many,) = tiny.interventions
    assert "(40 in all)" in many
    assert "(30 in all)" in many
    assert len(many) < 500


@pytest.mark.parametrize("turned", [False, True])
def test_a_neuron_keeps_its_own_beside_its_layer(tiny: fm.Model, turned: bool) -> None:
    """In whichever order they are named."""
    capture = fm.capture(tiny, IDS)
    m = capture.coefficients[0]
    for whole, own in ((Set(0.0), Set(4.0)), (Resample(capture), Set(4.0)), (Add(1.0), Scale(1.0))):
        items = [((0, None), whole), ((0, 6), own)]
        found = changed(tiny, dict(items[::-1] if turned else items))
        expected = {Set: torch.zeros_like(m), Add: m + 1}.get(type(whole), changed(tiny, {(0, None): whole}))
        expected[..., 6] = 4.0 if isinstance(own, Set) else m[..., 6]
        assert torch.equal(found, expected)


def test_draws_come_from_one_place(tiny: fm.Model) -> None:
    """Neurons of one source and seed move together; another seed draws elsewhere."""
    capture = fm.capture(tiny, PROMPT)
    pool = capture.coefficients[0][0, 1:]
    found = changed(tiny, {(0, 3): Resample(capture, 1), (0, 5): Resample(capture, 1), (0, 9): Resample(capture, 2)})[0]
    draws = [np.random.default_rng([seed, 0]).random(tiny.n_ctx) for seed in (1, 2)]
    for position in range(len(IDS)):
        one, two = (int(draw[position] * len(pool)) for draw in draws)
        assert found[position, [3, 5, 9]].tolist() == [pool[one, 3], pool[one, 5], pool[two, 9]]


def test_gradients_pass(tiny_hf: Any, tokenizer: Any) -> None:
    """Whoever trains or attributes inside a block would get slopes of the unchanged model."""
    model = fm.load(tiny_hf, tokenizer=tokenizer)
    m = torch.ones(2, model.d_mlp, requires_grad=True)
    with fm.intervene(model, {(0, 3): 1.0, (0, 4): Scale(3.0)}):
        out = model.ffn[0].project_out(m)
    (found,) = torch.autograd.grad(out.sum(), m)
    slopes = model.ffn[0].values.detach().sum(-1)
    assert allclose(found[0, 2:6], slopes[2:6] * torch.tensor([1.0, 0.0, 3.0, 1.0]), 1e-5)


def test_means_and_draws_of_a_store(tiny: fm.Model, tiny_store: Store) -> None:
    stats = tiny_store.stats(1).set_index("neuron")["mean"]
    means = changed(tiny, {(1, None): Mean(tiny_store)}, layer=1)[0]
    assert allclose(means, np.tile([stats[neuron] for neuron in range(tiny.d_mlp)], (len(IDS), 1)), 1e-6)
    values, positions = tiny_store.view(1).draw, tiny_store.state.shared["draw_positions"]
    drawn = changed(tiny, {(1, None): Resample(tiny_store)}, layer=1)[0]
    assert {tuple(row) for row in drawn.tolist()} <= {tuple(row) for row in values[positions >= 0].tolist()}


def test_means_are_over_content(tiny: fm.Model) -> None:
    """Neither pads nor the beginning-of-sequence token."""
    capture = fm.capture(tiny, ["The city of", PROMPT])
    m = capture.coefficients[1]
    kept = torch.cat([m[0, 1 : capture.length(0)], m[1, 1 : capture.length(1)]])
    assert allclose(changed(tiny, {(1, None): Mean(capture)}, layer=1)[0, 0], kept.double().mean(0), 1e-6)


REFUSED: list[tuple[Any, Any, tuple[str, ...]]] = [
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
    ([{(0, 1): 0.0}, (0, 2)], InputError, ("interventions[1]", "a dict")),
    *(({(0, 1): what}, InputError, ()) for what in (True, None, [0.0], float("nan"), 1j, torch.zeros(2))),
    ({(0, 1): torch.tensor(float("inf"))}, InputError, ("inf",)),
]


@pytest.mark.parametrize(("asked", "kind", "named"), REFUSED)
def test_what_is_refused(tiny: fm.Model, asked: Any, kind: Any, named: tuple[str, ...]) -> None:
    with refuses(kind, IndexError if kind is OutOfRangeError else ValueError, *named):
        fm.intervene(tiny, asked)


def test_no_finite_number_and_no_source(tiny: fm.Model, make_tiny: Callable[..., fm.Model]) -> None:
    """When they are made, not in the midst of a pass: an infinity would run through every later layer."""
    for make in (Set, Scale, Add):
        with refuses(InputError, ValueError, make.__name__, "inf"):
            make(float("inf"))
    for source in (Mean, Resample):
        with refuses(InputError, ValueError, source.__name__, "str", "Store or a Capture"):
            source("atlas")
    with refuses(InputError, ValueError, "seed", "-1"):
        Resample(fm.capture(tiny, PROMPT), seed=-1)
    half = make_tiny(dtype="float16")
    with fm.intervene(half, {(0, 3): 6e4}):
        assert half.interventions == ("0.3 = 60000",)
    for change in (1e6, Scale(1e6), Add(-1e6)):
        with refuses(InputError, ValueError, "layer 0", "float16"):
            fm.intervene(half, {(0, 3): change})


def test_sources_without_numbers(tiny: fm.Model, tiny_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean of nothing is no number."""
    positions = tiny_store.state.shared["draw_positions"]
    monkeypatch.setitem(tiny_store.state.shared, "draw_positions", np.full_like(positions, -1))
    stats = tiny_store.stats(0).assign(mean=np.nan)
    monkeypatch.setattr(Store, "stats", lambda store, layer: stats)
    nothing, other_layer = fm.capture(tiny, torch.tensor([0])), fm.capture(tiny, PROMPT, layers=1)
    for change, named in (
        (Mean(nothing), ["no content positions"]),
        (Resample(nothing), ["no content positions"]),
        (Mean(other_layer), ["layer 0", "[1]"]),
        (Mean(tiny_store), ["layer 0", "no tokens"]),
        (Resample(tiny_store), ["no random positions"]),
    ):
        with refuses(InputError, ValueError, *named):
            fm.intervene(tiny, {(0, 3): change})


def test_sources_of_another_model(make_tiny: Callable[..., fm.Model], tiny_store: Store) -> None:
    model = make_tiny()
    capture = fm.capture(model, PROMPT)
    with torch.no_grad():
        model.ffn[0].keys[0] += 1
    for change in (Mean, Resample):
        for source in (capture, tiny_store):
            with refuses(InputError, ValueError, model.name):
                fm.intervene(model, {(0, 3): change(source)})
