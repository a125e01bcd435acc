"""Capacity and interference of keys: those of fm.neurons.geometry, against random keys."""

from __future__ import annotations

import numpy as np
import torch

import ffnmem as fm
from ffnmem.neurons.overlap import by_neuron, isotropic_rows, key_estimates
from ffnmem.neurons.verdicts import Estimate, beside_shared

from ..helpers import allclose


def exact(value: np.ndarray, null: np.ndarray, direction: str) -> Estimate:
    return beside_shared(value, value, value, null, direction)


def test_are_those_of_geometry(architecture: fm.Model) -> None:
    neurons = fm.neurons.geometry(architecture, threshold=None).neurons
    for layer in range(architecture.n_layers):
        own = neurons[neurons["layer"] == layer]
        for name, estimate in key_estimates(architecture, layer).items():
            assert allclose(estimate.value, own[f"key_{name}"].to_numpy(), 1e-6)
            assert estimate.low is estimate.value
            assert estimate.high is estimate.value
            assert len(set(estimate.null.tolist())) == 1


def test_random_keys_are_within_the_null() -> None:
    """Keys without any preferred direction, of unequal lengths: p below .05 in 5% of them, over many layers."""
    p: dict[str, list[np.ndarray]] = {"capacity": [], "interference": []}
    for seed in range(60):
        random = np.random.default_rng([seed, 1])
        lengths = random.uniform(0.5, 2.0, 64)
        own = by_neuron(torch.from_numpy(isotropic_rows(lengths, 32, [seed, 2])))
        chance = by_neuron(torch.from_numpy(isotropic_rows(lengths, 32, [seed, 3])))
        p["capacity"].append(exact(own["capacity"], chance["capacity"], "less").p)
        p["interference"].append(exact(own["interference"], chance["interference"], "greater").p)
    for name, parts in p.items():
        rates = [float((part <= 0.05).mean()) for part in parts]  # neurons of one layer are not independent
        assert np.mean(rates) <= 0.05 + 3 * np.std(rates) / len(rates) ** 0.5, name


def test_a_crowded_pair_is_notable() -> None:
    """Two equal keys among random ones have half a dimension less each and disturb each other."""
    rows = torch.randn(40, 200, generator=torch.Generator().manual_seed(0))
    rows[1] = rows[0]
    found = by_neuron(rows)
    chance = by_neuron(torch.randn(40, 200, generator=torch.Generator().manual_seed(1)))
    less = exact(found["capacity"], chance["capacity"], "less")
    more = exact(found["interference"], chance["interference"], "greater")
    assert (less.p[:2] < 0.03).all()
    assert (more.p[:2] < 0.03).all()
    assert found["capacity"][0] < 0.55


def test_naive() -> None:
    rows = torch.randn(9, 6, generator=torch.Generator().manual_seed(2))
    rows[4] = 0
    found = by_neuron(rows)
    k = rows.double().numpy()
    for i in range(9):
        if i == 4:
            assert np.isnan([found["capacity"][i], found["interference"][i]]).all()
            continue
        products = k @ k[i]
        assert abs(found["capacity"][i] - (k[i] @ k[i]) ** 2 / (products**2).sum()) < 1e-6
        others = [j for j in range(9) if j not in (i, 4)]
        cosines = [k[i] @ k[j] / np.linalg.norm(k[i]) / np.linalg.norm(k[j]) for j in others]
        assert abs(found["interference"][i] - np.sqrt(np.mean(np.square(cosines)))) < 1e-6


def test_one_neuron_disturbs_nobody() -> None:
    found = by_neuron(torch.ones(1, 4))
    assert found["capacity"].tolist() == [1.0]
    assert np.isnan(found["interference"]).all()
    assert np.isnan(exact(found["interference"], found["interference"], "greater").null).all()


def test_seeds(tiny: fm.Model) -> None:
    one, same, other = (key_estimates(tiny, 1, seed) for seed in (0, 0, 1))
    for name in ("capacity", "interference"):
        np.testing.assert_array_equal(one[name].p, same[name].p)
        np.testing.assert_array_equal(one[name].value, other[name].value)
        assert one[name].null[0] != other[name].null[0]
