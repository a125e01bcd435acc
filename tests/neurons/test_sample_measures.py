"""Firing rate, kurtosis and the explanation by one token: known answers, naive references, honest nulls."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

import ffnmem as fm
from ffnmem.neurons.inputs import Inputs
from ffnmem.neurons.sample_measures import (
    MEASURES,
    Sample,
    coefficients,
    excess,
    of_rows,
    own_keys,
    random_keys,
    sample_measures,
    share_explained,
    token_sample,
)
from ffnmem.neurons.verdicts import Estimate
from ffnmem.scanning import Store

from ..helpers import PROMPT, allclose

N = 40


@pytest.fixture(scope="module")
def made() -> Sample:
    """Text without any order: 40 sequences of 50 tokens out of 30."""
    tokens = np.random.default_rng(0).integers(0, 30, N * 50)
    previous = np.roll(tokens, 1)
    previous[::50] = -1
    return Sample(np.arange(N * 50), tokens, previous, np.repeat(np.arange(N), 50))


def again(draws: int = 200) -> np.ndarray:
    return np.random.default_rng(1).multinomial(N, np.full(N, 1 / N), draws)


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
    expected = tiny_store.state.shared["sequences"].tolist()
    place = 0
    for number, sequence in enumerate(expected):
        ids = tiny_store.sequences.sequence_tokens(sequence).tolist()
        content = [p for p, t in enumerate(ids) if p > 0 and t not in tiny_store.settings.special]
        part = slice(place, place + len(content))
        assert sample.tokens[part].tolist() == [ids[p] for p in content]
        assert sample.previous[part].tolist() == [ids[p - 1] for p in content]
        assert set(sample.sequences[part].tolist()) == {number}
        assert (sample.places[part] & 0xFFFFF).tolist() == content
        place += len(content)
    assert len(sample) == place
    assert sample.lengths.sum() == place


def test_smaller_samples_are_whole_sequences(tiny_store: Store) -> None:
    few = token_sample(tiny_store, positions=1, seed=1)
    whole = token_sample(tiny_store)
    assert few.n_sequences == 1
    start = whole.places.tolist().index(few.places[0])
    assert whole.tokens[start : start + len(few)].tolist() == few.tokens.tolist()
    assert whole.lengths[whole.sequences[start]] == len(few)


def test_groups_keep_neighbours_together(made: Sample) -> None:
    assert made.groups.tolist() == sorted(made.groups.tolist())
    assert np.bincount(made.groups).tolist() == [5] * 8
    assert Sample(made.places[:150], made.tokens[:150], made.previous[:150], made.sequences[:150]).groups.tolist() == [
        0,
        1,
        2,
    ]


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


def test_token_detectors_are_explained(made: Sample) -> None:
    """One token's neuron, one of the token before, one of two tokens, and noise."""
    random = np.random.default_rng(3)
    x = 0.1 * random.standard_normal((4, len(made))).astype(np.float32)
    x[0] += 5 * (made.tokens == 7)
    x[1] += 5 * (made.previous == 11)
    x[2] += 5 * np.isin(made.tokens, (2, 3))
    _, _, unigram, previous = of_rows(x, made, again())
    assert unigram[0, 0] > 0.99
    assert previous[0, 1] > 0.99
    assert 0.3 < unigram[0, 2] < 0.6
    assert np.abs([unigram[0, 1], unigram[0, 3], previous[0, 0], previous[0, 2], previous[0, 3]]).max() < 0.02


def test_choosing_earns_nothing(made: Sample) -> None:
    """The best of thirty tokens, scored where it was chosen, explains pure noise."""
    noise = np.random.default_rng(4).standard_normal((64, len(made))).astype(np.float32)
    found = of_rows(noise, made, again(2))
    assert found[2:, 0].mean() < 0
    left = np.zeros((30, 64))
    for token in range(30):
        for there in (made.tokens == token, made.tokens != token):
            part = noise[:, there] - noise[:, there].mean(1, keepdims=True)
            left[token] += (part**2).sum(1)
    everything = (noise - noise.mean(1, keepdims=True)) ** 2
    naive = share_explained(left.min(0), everything.sum(1).astype(np.float64))
    assert naive.mean() > 0.002


def test_intervals_hold_the_truth(made: Sample) -> None:
    """Of sequences drawn anew: an interval too narrow would be believed."""
    random, truth = np.random.default_rng(5), 0.3
    inside = []
    for _ in range(60):
        rates = np.clip(truth + 0.1 * random.standard_normal((1, N)), 0, 1)[:, made.sequences]
        x = (random.random((1, len(made))) < rates).astype(np.float32) - 0.5
        rate, _, _, _ = of_rows(x, made, again(100))
        inside.append(rate[1, 0] <= truth <= rate[2, 0])
    assert np.mean(inside) > 0.85


def test_never_and_always(made: Sample) -> None:
    """Nothing seen is not nothing there; what does not vary is not explained."""
    x = np.stack([np.full(len(made), value, np.float32) for value in (-0.1, 0.7)])
    found = of_rows(x, made, again())
    assert found[0, :, 0].tolist() == [0, 0, 1 - 0.025 ** (1 / len(made))]
    assert allclose(found[0, :, 1], [1, 0.025 ** (1 / len(made)), 1], 1e-12)
    assert np.isnan(found[1:]).all()


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
    assert tuple(again) == tuple(MEASURES)
    for name, estimate in again.items():
        for part in ("value", "low", "high", "null", "p"):
            np.testing.assert_array_equal(getattr(estimate, part), getattr(found[name], part))


def test_random_keys_are_neurons_turned_round(architecture: fm.Model) -> None:
    """Of a gated neuron key and gate, both of the same donor: lengths and products at the mean input are its own."""
    mean = torch.randn(16, generator=torch.Generator().manual_seed(0))
    drawn = random_keys(architecture, 0, mean, [0, 0])
    ffn = architecture.ffn[0]

    def facts(keys: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
        if keys is None:
            return torch.zeros(0, 0)
        return torch.stack([keys @ mean + (0.0 if bias is None else bias), keys.norm(dim=1)], dim=1).detach()

    ours = [facts(*pair) for pair in drawn]
    theirs = [facts(ffn.keys, ffn.key_bias), facts(ffn.gates, ffn.gate_bias)]
    assert len(drawn) == (2 if architecture.gated else 1)
    mine, donors = (torch.cat(parts[: len(drawn)], dim=1) for parts in (ours, theirs))
    for one in mine:
        assert (donors - one).abs().sum(dim=1).min() < 1e-4
    assert not torch.equal(drawn[0][0], random_keys(architecture, 0, mean, [1, 0])[0][0])


def test_coefficients_are_the_captured_ones(architecture: fm.Model) -> None:
    """From the FFN's input, each neuron's coefficient again: with its bias, its gate, the model's activation."""
    captured = fm.capture(architecture, PROMPT)
    for layer in range(2):
        some = torch.tensor([0, 9, 63])
        found = coefficients(architecture, layer, captured.ffn_in[layer][0], own_keys(architecture, layer, some))
        assert allclose(found.T, captured.coefficients[layer][0][:, some], 1e-5)


def test_random_weights_are_within_the_null(architecture: fm.Model) -> None:
    """p of weights drawn at random, on inputs drawn at random: at most its nominal level, and a bit of chance."""
    random = np.random.default_rng(6)
    tokens = random.integers(0, 20, 2000)
    sample = Sample(np.arange(2000), tokens, np.roll(tokens, 1), np.repeat(np.arange(50), 40))
    inputs = random.standard_normal((2000, architecture.d_model)).astype(np.float32)
    inputs += random.standard_normal((20, architecture.d_model))[tokens].astype(np.float32)
    found = sample_measures(architecture, 0, sample, inputs, draws=2)
    for name, estimate in found.items():
        known = np.isfinite(estimate.p)
        assert (estimate.p[known] <= 0.05).sum() <= stats.binom(known.sum(), 0.05).ppf(0.9995), name


def test_excess_is_scipys() -> None:
    x = np.random.default_rng(7).standard_t(5, (3, 400))
    away = x - 0.3
    sums = [np.asarray((away**power).sum(1)) for power in range(1, 5)]
    assert allclose(excess(400, *sums), stats.kurtosis(x, axis=1), 1e-9)
