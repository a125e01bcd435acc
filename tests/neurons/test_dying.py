"""``dying_relu``: dead ReLU neurons never move, GELU neurons come back, and the same seed gives the same numbers."""

from __future__ import annotations

import json
import math

import pandas as pd
import pytest
import torch

from ffnmem.core.errors import InputError
from ffnmem.ffn.activations import activation
from ffnmem.neurons import Dying, dying_relu
from ffnmem.neurons.dying import D_MLP, Run

from ..helpers import refuses

STEPS = 600


@pytest.fixture(scope="module", params=[0, 1])
def dying(request: pytest.FixtureRequest) -> Dying:
    return dying_relu(seed=request.param, steps=STEPS)


def of(dying: Dying, name: str) -> pd.DataFrame:
    return dying.frame[dying.frame["activation"] == name]


def test_dead_relu_neurons_stay_dead(dying: Dying) -> None:
    """The gradient of a dead ReLU neuron is exactly 0, at every input and every step."""
    relu = of(dying, "relu")
    assert relu["step"].tolist() == [60 * n for n in range(11)]
    assert relu["pushed_dead"].tolist() == [1.0] * 11
    assert relu["gradient"].tolist() == [0.0] * 11
    assert (relu["zero_slope"] == relu["dead"]).all()
    assert relu["loss"].iloc[-1] < 0.2 * relu["loss"].iloc[0]  # the others learn


@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_others_come_back(dying: Dying, name: str) -> None:
    """At least 40% of the pushed neurons fire again after 600 steps, and the dead ones have a gradient throughout."""
    found = of(dying, name)
    assert found["pushed_dead"].iloc[0] == 1.0
    assert found["pushed_dead"].iloc[-1] <= 0.6
    assert found["dead"].iloc[-1] < found["dead"].iloc[0]
    assert (found["zero_slope"] == 0).all()
    assert (found["gradient"] > 0).all()


def test_weights_of_dead_relu_neurons_do_not_move_at_all() -> None:
    """Adam would move them by a rounding error, or by momentum."""
    run = Run(activation("relu"), 0, 32, 0.5)
    before = [parameter.detach().clone() for parameter in run.parameters]
    trainer = torch.optim.Adam(run.parameters, lr=0.01)
    for _ in range(50):
        run.differentiate()
        trainer.step()
    keys, biases, values, _ = (now.detach() == then for now, then in zip(run.parameters, before, strict=True))
    assert bool(keys[:, :32].all() and biases[:32].all() and values[:32].all())
    assert not bool(keys[:, 32:].all() or biases[32:].all() or values[32:].all())


@pytest.mark.parametrize("depth", [0.5, 3.0])
def test_pushed_as_said(depth: float) -> None:
    """Neurons would be pushed deeper or less deep, or runs begin from other weights."""
    runs = [Run(activation(name), 5, 20, depth) for name in ("relu", "gelu")]
    assert all(torch.equal(a, b) for a, b in zip(*(run.parameters for run in runs), strict=True))
    assert torch.equal(runs[0].targets, runs[1].targets)
    _, pre = runs[0].differentiate()
    assert torch.allclose(pre[:, :20].amax(0) / pre[:, :20].std(0), torch.tensor(-depth, dtype=torch.float64))
    assert bool((pre[:, 20:].amax(0) > 0).all())


def test_gradients_are_those_of_differences() -> None:
    """The largest gradient of dead neurons would be of other weights, or wrong."""
    run = Run(activation("gelu"), 0, 32, 0.5)
    _, pre = run.differentiate()
    dead = (pre <= 0).all(0)
    keys = run.parameters[0]
    assert keys.grad is not None
    place = divmod(int(keys.grad[:, dead].abs().argmax()), int(dead.sum()))
    with torch.no_grad():
        losses = []
        for step in (1e-5, -2e-5):
            keys[place[0], place[1]] += step
            losses.append(run.differentiate()[0])
        keys[place[0], place[1]] += 1e-5
    run.differentiate()
    slope = float(keys.grad[place])
    assert slope == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-6)
    assert run.largest_gradient(dead) >= abs(slope) > 0
    assert math.isnan(run.largest_gradient(torch.zeros(D_MLP, dtype=torch.bool)))


def test_the_same_seed_gives_the_same_numbers() -> None:
    """And does not disturb what else draws at random."""
    state = torch.get_rng_state()
    a, b, c = (dying_relu(seed=seed, steps=5) for seed in (3, 3, 4))
    assert a.frame.equals(b.frame)
    assert not a.frame.equals(c.frame)
    assert torch.equal(torch.get_rng_state(), state)


def test_none_pushed() -> None:
    """A control without dead neurons."""
    found = dying_relu(steps=3, share=0.0)
    assert (found.frame["dead"] < 0.05).all()
    assert found.frame["pushed_dead"].isna().all()
    assert found.to_dict()["outcomes"][0]["recovered"] is None
    json.dumps(found.to_dict(), allow_nan=False)


def test_summary_and_line(dying: Dying) -> None:
    """The summary would be of the beginning, or of another activation."""
    table = dying.outcomes.set_index("activation")
    for name in ("relu", "gelu", "silu"):
        end = of(dying, name).iloc[-1]
        assert table.loc[name, "recovered"] == 1 - end["pushed_dead"]
        assert table.loc[name, "loss"] == end["loss"]
    assert table.loc["relu", "largest_gradient"] == 0
    assert "relu 0%" in repr(dying)
    assert "\n" not in repr(dying)
    assert dying.to_frame().equals(dying.frame)


def test_sheet(dying: Dying) -> None:
    """A step or an activation in the place of another."""
    steps, outcomes, whole, _ = dying.sheet().blocks
    assert "32 of 64 neurons pushed" in dying.sheet().title
    assert [row[0] for row in steps.rows] == [str(step) for step in of(dying, "relu")["step"]]
    for place, name in enumerate(dying.activations):
        rows = of(dying, name)
        assert [row[1 + 2 * place] for row in steps.rows] == rows["pushed_dead"].tolist()
        assert [row[2 + 2 * place] for row in steps.rows] == rows["loss"].tolist()
    for row, end in zip(outcomes.rows, dying.outcomes.to_dict("records"), strict=True):
        assert row[:4] == (end["activation"], end["recovered"], end["dead"], end["zero_slope"])
    assert outcomes.rows[0][4] == "0, at every step"
    assert len(whole.rows) == len(dying.frame)
    assert "none was pushed" in dying_relu(steps=1, share=0.0, activations=["relu"]).step_table().caption


def test_settings_and_progress() -> None:
    """Plain gradient descent moves weights by the rate times the gradient."""
    seen: list[tuple[str, int, int]] = []
    found = dying_relu(steps=1, optimiser="sgd", rate=0.25, activations=("gelu",), progress=lambda *s: seen.append(s))
    assert found.settings["rate"] == 0.25
    assert seen == [("dying", 0, 1), ("dying", 1, 1)]
    run = Run(activation("gelu"), 0, 32, 0.5)
    run.differentiate()
    with torch.no_grad():
        for parameter in run.parameters:
            assert parameter.grad is not None
            parameter -= 0.25 * parameter.grad
    assert found.frame["loss"].iloc[-1] == pytest.approx(run.differentiate()[0], rel=1e-12)


def test_mistakes() -> None:
    with refuses(InputError, ValueError, "share", "1.5"):
        dying_relu(share=1.5)
    with refuses(InputError, ValueError, "depth", "0"):
        dying_relu(depth=0)
    with refuses(InputError, ValueError, "rate", "inf"):
        dying_relu(rate=math.inf)
    with refuses(InputError, ValueError, "steps", "0"):
        dying_relu(steps=0)
    with refuses(InputError, ValueError, "optimiser", "'lbfgs'", "adam"):
        dying_relu(optimiser="lbfgs")
    with refuses(InputError, ValueError, "'mish'", "gelu"):
        dying_relu(activations=["mish"])
    with refuses(InputError, ValueError, "activations", "'relu'"):
        dying_relu(activations="relu")
    with refuses(InputError, ValueError, "relu diverged", "rate"):
        dying_relu(optimiser="sgd", rate=1e6, steps=40)
