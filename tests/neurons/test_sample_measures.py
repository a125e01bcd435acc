"""Firing rate and kurtosis at random positions: known answers, naive references, honest nulls."""

from __future__ import annotations

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
from ffnmem.neurons.verdicts import Estimate
from ffnmem.scanning import Store
from ffnmem.scanning.state import place_of, position_of, sequence_of

from ..helpers import PROMPT, allclose

N = 40


MADE = Sample(place_of(np.repeat(np.arange(N), 50), np.tile(np.arange(50), N)))
"""40 sequences of 50 positions."""


def again(draws: int = 200) -> np.ndarray:
    return np.random.default_rng(1).multinomial(N, np.full(N, 1 / N), draws).T.astype(np.float64)


@pytest.fixture(scope="module")
def read(tiny: fm.Model, tiny_store: Store) -> tuple[Sample, np.ndarray]:
    sample = token_sample(tiny_store)
    with Inputs(tiny_store, tiny, {1: sample.places}) as inputs:
        return sample, np.array(inputs.at(1, sample.places))


@pytest.fixture(scope="module")
def found(tiny: fm.Model, read: tuple[Sample, np.ndarray]) -> dict[str, Estimate]:
    return sample_measures(tiny, 1, *read)


def test_sample_is_the_stores_own(tiny_store: Store) -> None:
    sample = token_sample(tiny_store)
    expected = []
    for number, sequence in enumerate(tiny_store.state.shared["sequences"].tolist()):
        ids = tiny_store.sequences.sequence_tokens(sequence).tolist()
        content = [p for p, t in enumerate(ids) if p > 0 and t not in tiny_store.settings.special]
        expected += [(number, sequence, place) for place in content]
    places = sample.places
    found = zip(sample.sequences.tolist(), sequence_of(places).tolist(), position_of(places).tolist(), strict=True)
    assert list(found) == expected
    assert sample.lengths.sum() == len(sample) == len(expected)


def test_smaller_samples_are_whole_sequences(tiny_store: Store) -> None:
    few, whole = token_sample(tiny_store, positions=1, seed=1), token_sample(tiny_store)
    assert len(few.lengths) == 1
    (sequence,) = set(sequence_of(few.places).tolist())
    assert few.places.tolist() == whole.places[sequence_of(whole.places) == sequence].tolist()


def test_rates_and_kurtosis_are_the_samples(
    tiny: fm.Model, read: tuple[Sample, np.ndarray], found: dict[str, Estimate]
) -> None:
    _, inputs = read
    ffn = tiny.ffn[1]
    pre = inputs @ ffn.keys.detach().numpy().T + ffn.key_bias.detach().numpy()  # type: ignore[union-attr]
    coefficients = torch.nn.functional.gelu(torch.from_numpy(pre), approximate="tanh").numpy()
    assert allclose(found["firing_rate"].value, (pre > 0).mean(0), 1e-9)
    varies = coefficients.std(0) > 1e-6
    assert allclose(
        found["kurtosis"].value[varies], stats.kurtosis(coefficients.astype(np.float64), axis=0)[varies], 1e-4
    )
    for estimate in found.values():
        known = np.isfinite(estimate.value)
        assert (estimate.low[known] <= estimate.value[known]).all()
        assert (estimate.value[known] <= estimate.high[known]).all()
        assert len(set(estimate.null.tolist())) == 1
        assert ((estimate.p[known] > 0) & (estimate.p[known] <= 1)).all()


def test_intervals_hold_the_truth() -> None:
    """Of sequences drawn anew: an interval too narrow would be believed."""
    random, truth = np.random.default_rng(5), 0.3
    inside = []
    for _ in range(60):
        rates = np.clip(truth + 0.1 * random.standard_normal((1, N)), 0, 1)[:, MADE.sequences]
        x = (random.random((1, len(MADE))) < rates).astype(np.float32) - 0.5
        rate = firing_rate(x, MADE, again(100))
        inside.append(rate[1, 0] <= truth <= rate[2, 0])
    assert np.mean(inside) > 0.85


def test_never_and_always() -> None:
    """Nothing seen is not nothing there; what does not vary has no tails."""
    x = np.stack([np.full(len(MADE), value, np.float32) for value in (-0.1, 0.7)])
    rate = firing_rate(x, MADE, again())
    assert rate[:, 0].tolist() == [0, 0, 1 - 0.025 ** (1 / len(MADE))]
    assert allclose(rate[:, 1], [1, 0.025 ** (1 / len(MADE)), 1], 1e-12)
    assert np.isnan(excess_kurtosis(x, MADE, again())).all()


def test_negative_side_is_the_mirror(
    tiny: fm.Model, read: tuple[Sample, np.ndarray], found: dict[str, Estimate]
) -> None:
    other = sample_measures(tiny, 1, *read, sign="negative")
    assert allclose(other["firing_rate"].value, 1 - found["firing_rate"].value, 1e-9)
    known = np.isfinite(found["kurtosis"].value)
    assert allclose(other["kurtosis"].value[known], found["kurtosis"].value[known])


def test_the_same_call_gives_the_same_numbers(
    tiny: fm.Model, read: tuple[Sample, np.ndarray], found: dict[str, Estimate]
) -> None:
    again = sample_measures(tiny, -1, *read)
    assert list(again) == list(found) == ["firing_rate", "kurtosis"]
    for name, estimate in again.items():
        for part in ("value", "low", "high", "null", "p"):
            np.testing.assert_array_equal(getattr(estimate, part), getattr(found[name], part))


def test_random_keys_are_neurons_turned_round(architecture: fm.Model) -> None:
    """Of a gated neuron key and gate, both of the same donor: lengths and products at the mean input are its own."""
    mean = torch.randn(16, generator=torch.Generator().manual_seed(0))
    drawn, neurons = random_keys(architecture, 0, mean, [0, 0])
    ffn = architecture.ffn[0]

    def facts(keys: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
        if keys is None:
            return torch.zeros(0, 0)
        return torch.stack([keys @ mean + (0.0 if bias is None else bias), keys.norm(dim=1)], dim=1).detach()

    ours = [facts(*pair) for pair in drawn]
    theirs = [facts(ffn.keys, ffn.key_bias), facts(ffn.gates, ffn.gate_bias)]
    assert len(drawn) == (2 if architecture.gated else 1)
    mine, donors = (torch.cat(parts[: len(drawn)], dim=1) for parts in (ours, theirs))
    assert allclose(mine, donors[neurons], 1e-4)
    assert not torch.equal(drawn[0][0], random_keys(architecture, 0, mean, [1, 0])[0][0][0])


def test_coefficients_are_the_captured_ones(architecture: fm.Model) -> None:
    """From the FFN's input, each neuron's coefficient again: with its bias, its gate, the model's activation."""
    captured = fm.capture(architecture, PROMPT)
    for layer in range(2):
        some = torch.tensor([0, 9, 63])
        keys = own_keys(architecture, layer, some)
        found = coefficients(architecture, layer, captured.ffn_in[layer][0], keys, some)
        assert allclose(found.T, captured.coefficients[layer][0][:, some], 1e-5)


def test_random_weights_are_within_the_null(architecture: fm.Model) -> None:
    """p of weights drawn at random, on inputs drawn at random: at most its nominal level, and a bit of chance."""
    random = np.random.default_rng(6)
    tokens = random.integers(0, 20, 2000)
    sample = Sample(place_of(np.repeat(np.arange(50), 40), np.tile(np.arange(40), 50)))
    inputs = random.standard_normal((2000, architecture.d_model)).astype(np.float32)
    inputs += random.standard_normal((20, architecture.d_model))[tokens].astype(np.float32)
    found = sample_measures(architecture, 0, sample, inputs, draws=2)
    for name, estimate in found.items():
        known = np.isfinite(estimate.p)
        assert (estimate.p[known] <= 0.05).sum() <= stats.binom(known.sum(), 0.05).ppf(0.9995), name


def test_intervals_are_a_bootstrap_over_sequences() -> None:
    """Against sequences drawn again with NumPy, and SciPy's kurtosis of what was drawn."""
    x = np.random.default_rng(7).standard_t(5, (3, len(MADE))).astype(np.float32) + 0.3
    weights = again(25)
    drawn = [
        x[:, np.repeat(np.arange(N), w.astype(int))[:, None] * 50 + np.arange(50)].reshape(3, -1) for w in weights.T
    ]
    for compute, plain in (
        (firing_rate, lambda part: (part > 0).mean(1)),
        (excess_kurtosis, lambda part: stats.kurtosis(part.astype(np.float64), axis=1)),
    ):
        value, low, high = compute(x, MADE, weights)
        ends = np.quantile([plain(part) for part in drawn], [0.025, 0.975], axis=0)
        assert allclose(value, plain(x), 1e-6)
        assert allclose(low, np.minimum(ends[0], value), 1e-6)
        assert allclose(high, np.maximum(ends[1], value), 1e-6)
