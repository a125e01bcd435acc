"""Firing rate and kurtosis at random positions: against NumPy and SciPy draw by draw, honest nulls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import ffnmem as fm
from ffnmem.neurons.inputs import Inputs
from ffnmem.neurons.sample_measures import (
    Sample,
    coefficients,
    excess_kurtosis,
    firing_rate,
    own_keys,
    random_keys,
    sample_measures,
    token_sample,
)
from ffnmem.neurons.verdicts import p_values
from ffnmem.scanning import Store
from ffnmem.scanning.state import place_of, position_of, sequence_of

from ..helpers import PROMPT, allclose

PLAIN: dict[str, Any] = {
    "firing_rate": lambda x: (x > 0).mean(1),
    "kurtosis": lambda x: stats.kurtosis(x.astype(np.float64), axis=1),
}
NOTABLE = {"firing_rate": "less", "kurtosis": "greater"}


@pytest.mark.parametrize("sign", ["positive", "negative"])
def test_each_number_is_that_of_plain_draws(tiny: fm.Model, tiny_store: Store, sign: str) -> None:
    """Value, bootstrap over sequences, and null of random keys; kurtosis has no sign, firing has."""
    sample, ffn, factor = token_sample(tiny_store), tiny.ffn[1], 1 if sign == "positive" else -1
    with Inputs(tiny_store, tiny, {1: sample.places}) as inputs:
        x = np.array(inputs.at(1, sample.places))
    found = sample_measures(tiny, -1, sample, x, sign=sign, seed=4, draws=25)

    def coefficient(keys: torch.Tensor, bias: torch.Tensor | None) -> np.ndarray:
        pre = x @ keys.detach().numpy().T + bias.detach().numpy()  # type: ignore[union-attr]
        return torch.nn.functional.gelu(torch.from_numpy(pre), approximate="tanh").numpy().T

    own = factor * coefficient(ffn.keys, ffn.key_bias)
    chance = factor * coefficient(*random_keys(tiny, 1, torch.from_numpy(x).mean(0), [4, 1])[0][0])
    n = len(sample.lengths)
    of = [np.flatnonzero(sample.sequences == s) for s in range(n)]
    times = np.random.default_rng([4, 5]).multinomial(n, np.full(n, 1 / n), 25)
    drawn = [own[:, np.concatenate([np.tile(of[s], t) for s, t in enumerate(draw)])] for draw in times]
    assert list(found) == list(PLAIN)
    for name, plain in PLAIN.items():
        value, null = plain(own), plain(chance)
        some = (own.std(1) > 1e-6) & (value > 0) & (value < 1) if name == "firing_rate" else own.std(1) > 1e-6
        low, high = np.quantile([plain(part) for part in drawn], [0.025, 0.975], axis=0)
        assert allclose(found[name].value[some], value[some], 1e-4)
        assert allclose(found[name].low[some], np.minimum(low, value)[some], 1e-4)
        assert allclose(found[name].high[some], np.maximum(high, value)[some], 1e-4)
        assert allclose(found[name].null, np.full(64, null.mean()), 1e-4)
        assert allclose(found[name].p[some], p_values(value, null[None], NOTABLE[name])[some], 0.01)


def test_never_and_always() -> None:
    """Nothing seen is not nothing there; what does not vary has no tails."""
    made, weights = Sample(place_of(np.repeat(np.arange(40), 50), np.tile(np.arange(50), 40))), np.ones((40, 3))
    x = np.stack([np.full(2000, value, np.float32) for value in (-0.1, 0.7)])
    far = 1 - 0.025 ** (1 / 2000)
    assert allclose(firing_rate(x, made, weights), [[0, 1], [0, 1 - far], [far, 1]], 1e-12)
    assert np.isnan(excess_kurtosis(x, made, weights)).all()


def test_sample_is_the_stores_own(tiny_store: Store) -> None:
    """Its random sequences' content, whole sequences where fewer positions are asked for."""
    sample, expected = token_sample(tiny_store), []
    for number, sequence in enumerate(tiny_store.state.shared["sequences"].tolist()):
        ids = tiny_store.sequences.sequence_tokens(sequence).tolist()
        content = [p for p, t in enumerate(ids) if p > 0 and t not in tiny_store.settings.special]
        expected += [(number, sequence, place) for place in content]
    places = sample.places
    found = zip(sample.sequences.tolist(), sequence_of(places).tolist(), position_of(places).tolist(), strict=True)
    assert list(found) == expected
    few = token_sample(tiny_store, positions=1, seed=1)
    (sequence,) = set(sequence_of(few.places).tolist())
    assert few.places.tolist() == places[sequence_of(places) == sequence].tolist()


def test_random_keys_are_neurons_turned_round(architecture: fm.Model) -> None:
    """Of a gated neuron key and gate, both of the same donor: lengths and products at the mean input are its own."""
    mean, ffn = torch.randn(16, generator=torch.Generator().manual_seed(0)), architecture.ffn[0]
    drawn, neurons = random_keys(architecture, 0, mean, [0, 0])
    pairs = [(ffn.keys, ffn.key_bias), (ffn.gates, ffn.gate_bias)][: 1 + architecture.gated]

    def facts(keys: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
        assert keys is not None
        return torch.stack([keys @ mean + (0.0 if bias is None else bias), keys.norm(dim=1)], dim=1).detach()

    for ours, theirs in zip(drawn, pairs, strict=True):
        assert allclose(facts(*ours), facts(*theirs)[neurons], 1e-4)
    assert not torch.equal(drawn[0][0], random_keys(architecture, 0, mean, [1, 0])[0][0][0])


def test_coefficients_are_the_captured_ones(architecture: fm.Model) -> None:
    """From the FFN's input, each neuron's coefficient again: with its bias, its gate, the model's activation."""
    captured, some = fm.capture(architecture, PROMPT), torch.tensor([0, 9, 63])
    for layer in range(2):
        keys = own_keys(architecture, layer, some)
        found = coefficients(architecture, layer, captured.ffn_in[layer][0], keys, some)
        assert allclose(found.T, captured.coefficients[layer][0][:, some], 1e-5)
