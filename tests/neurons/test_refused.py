"""What every function of this subpackage refuses, in one line that says what would be right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ffnmem as fm
from ffnmem.core.errors import FfnmemError, InputError
from ffnmem.neurons.counting import sample_of
from ffnmem.neurons.inputs import Inputs
from ffnmem.scanning import Store

from ..helpers import refuses

NAN = float("nan")
CALLS: dict[str, Callable[..., Any]] = {
    "geometry": lambda model, _, **options: fm.neurons.geometry(model, **options),
    "roles": lambda model, store, **options: fm.roles(model, store, **options),
    "meanings": lambda model, store, at=(1, 0), **options: fm.meanings(store, *at, model, **options),
    "polysemanticity": lambda model, store, **options: fm.polysemanticity(store, model, **options),
    "health": lambda model, _, texts="atlas", **options: fm.neurons.neuron_health(model, texts, **options),
    "virtual": lambda model, _, at: fm.virtual_weights(model, *at),
    "readable": lambda _, store, **options: fm.neurons.find_readable(store, **options),
    "rule": lambda _, __, **options: fm.neurons.Rule(**options),
    "sample": lambda _, store, **options: sample_of(store, **options),
}


@pytest.mark.parametrize(
    ("call", "wrong", "says"),
    [
        ("geometry", {"layers": [0, 2]}, ("layer 2", "0 to 1")),
        ("roles", {"layer": 2}, ("layer 2", "0 to 1")),
        ("roles", {"coverage": 2.0}, ("coverage", "2")),
        ("roles", {"basis": "flat"}, ("basis", "'flat'", "'folded'")),
        ("roles", {"null_dimension": 16}, ("null_dimension", "15")),
        ("roles", {"kurtosis": NAN}, ("kurtosis", "nan")),  # nothing is above NaN: a role without neurons
        ("rule", {"above": NAN}, ("above", "nan")),
        ("rule", {"enough": 1}, ("enough", "1")),
        ("meanings", {"at": (1, 64)}, ("neuron 64", "0 to 63")),
        ("meanings", {"sign": "both"}, ("sign", "'both'", "'positive'")),
        ("polysemanticity", {"layers": 2}, ("layer 2", "0 to 1")),
        ("polysemanticity", {"layers": []}, ("layers",)),
        ("polysemanticity", {"sign": "up"}, ("sign", "'up'", "'both'")),
        ("polysemanticity", {"draws": 19}, ("draws", "20", "19")),
        ("polysemanticity", {"budget": 999}, ("budget", "1,000", "999")),
        ("health", {"context": 64}, ("context 64", "32")),
        ("health", {"texts": [""]}, ("no text",)),
        ("virtual", {"at": ("1.999",)}, ("neuron 999", "layer 1")),
        ("virtual", {"at": ("1.e0.3",)}, ("e0.3", "no experts")),
        ("readable", {"layers": 2}, ("layer 2",)),
        ("sample", {"n_sequences": 0}, ("n_sequences", "0")),
    ],
)
def test_mistakes(call: str, wrong: dict[str, Any], says: tuple[str, ...], tiny: fm.Model, tiny_store: Store) -> None:
    with refuses(FfnmemError, Exception, *says):
        CALLS[call](tiny, tiny_store, **wrong)


def test_another_models_store(atlas: fm.Model, tiny_store: Store) -> None:
    """Numbers of one model at another's places."""
    calls = [CALLS[name] for name in ("roles", "meanings", "polysemanticity")]
    for call in (*calls, lambda model, store: Inputs(store, model, {0: np.array([0])})):
        with refuses(InputError, ValueError, atlas.fingerprint, tiny_store.fingerprint):
            call(atlas, tiny_store)
