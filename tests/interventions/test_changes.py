"""What may become of a coefficient, and where means and draws come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.interventions.changes import as_change, draws_of, means_of
from ffnmem.scanning import Store

from ..helpers import PROMPT, allclose, refuses


@pytest.mark.parametrize("number", [2, 2.0, np.float32(2), np.int64(2), torch.tensor(2.0)], ids=repr)
def test_numbers_set(number: Any) -> None:
    """Values from a table are NumPy's."""
    assert as_change(number) == fm.interventions.Set(2.0)


def test_changes_stay_and_say_what_they_do(tiny: fm.Model, tiny_store: Store) -> None:
    capture = fm.capture(tiny, PROMPT)
    for change, words in (
        (fm.interventions.Set(0.0), "= 0"),
        (fm.interventions.Scale(-2), "× -2"),
        (fm.interventions.Add(0.25), "+ 0.25"),
        (fm.interventions.Mean(capture), "= mean of a capture"),
        (fm.interventions.Mean(tiny_store), "= mean of a store"),
        (fm.interventions.Resample(tiny_store, seed=4), "resampled from a store (seed 4)"),
    ):
        assert as_change(change) is change
        assert str(change) == words


@pytest.mark.parametrize("what", [True, "0", None, [0.0], float("nan"), 1j, torch.zeros(2), torch.tensor(float("inf"))])
def test_no_change(what: Any) -> None:
    with refuses(InputError, ValueError):
        as_change(what)


def test_no_finite_number_and_no_source(tiny: fm.Model) -> None:
    """When they are made, not in the midst of a pass."""
    for make in (fm.interventions.Set, fm.interventions.Scale, fm.interventions.Add):
        with refuses(InputError, ValueError, make.__name__, "inf"):
            make(float("inf"))
    for source in (fm.interventions.Mean, fm.interventions.Resample):
        with refuses(InputError, ValueError, source.__name__, "str", "Store or a Capture"):
            source("atlas")
    with refuses(InputError, ValueError, "seed", "-1"):
        fm.interventions.Resample(fm.capture(tiny, PROMPT), seed=-1)


def test_means_and_draws_of_a_capture(tiny: fm.Model) -> None:
    """Over content: neither pads nor the beginning-of-sequence token."""
    capture = fm.capture(tiny, ["The city of", PROMPT])
    m = capture.coefficients[1]
    kept = torch.cat([m[0, 1 : capture.length(0)], m[1, 1 : capture.length(1)]])
    assert torch.equal(draws_of(capture, tiny, 1), kept)
    means = means_of(capture, tiny, 1)
    assert means.dtype == torch.float64
    assert allclose(means, kept.double().mean(0), 1e-12)


def test_means_and_draws_of_a_store(tiny: fm.Model, tiny_store: Store) -> None:
    stats = tiny_store.stats(1).set_index("neuron")["mean"]
    assert means_of(tiny_store, tiny, 1).tolist() == [stats[neuron] for neuron in range(tiny.d_mlp)]
    values, _, positions = tiny_store.view(1).draws
    assert allclose(draws_of(tiny_store, tiny, 1), values[positions >= 0], 0)


def test_empty_sources(tiny: fm.Model, tiny_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean of nothing is no number."""
    nothing = fm.capture(tiny, torch.tensor([0]))
    for find in (means_of, draws_of):
        with refuses(InputError, ValueError, "no content positions"):
            find(nothing, tiny, 0)
    with refuses(InputError, ValueError, "layer 0", "[1]"):
        means_of(fm.capture(tiny, PROMPT, layers=1), tiny, 0)
    unseen = np.zeros((2, 64), np.float32), np.zeros(2, np.int64), np.full(2, -1)
    monkeypatch.setitem(vars(tiny_store.view(0)), "draws", unseen)  # what it has read already is there
    with refuses(InputError, ValueError, "no random positions"):
        draws_of(tiny_store, tiny, 0)
    stats = tiny_store.stats(0).assign(mean=np.nan)
    monkeypatch.setattr(Store, "stats", lambda store, layer: stats)
    with refuses(InputError, ValueError, "layer 0", "no tokens"):
        means_of(tiny_store, tiny, 0)


def test_sources_of_another_model(make_tiny: Callable[..., fm.Model], tiny_store: Store) -> None:
    model = make_tiny()
    capture = fm.capture(model, PROMPT)
    with torch.no_grad():
        model.ffn[0].keys[0] += 1
    for find in (means_of, draws_of):
        for source in (capture, tiny_store):
            with refuses(InputError, ValueError, model.name):
                find(source, model, 0)
