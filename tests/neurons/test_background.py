"""What inputs are like in general: whitened they vary alike, and a scan keeps what it takes to know them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.core.types import ScanDtype
from ffnmem.corpus import batches
from ffnmem.neurons.inputs import (
    CUT,
    PAIRS,
    RIDGE,
    Inputs,
    background_of,
    normalise,
    random_places,
    read_background,
)
from ffnmem.scanning import Store, merge, scan
from ffnmem.scanning.state import position_of, sequence_of

from ..helpers import allclose, refuses
from ..scanning.texts import tiny_texts


def drawn(n: int, d: int, seed: int = 0) -> np.ndarray:
    """Inputs with a mean and directions of very different variance."""
    random = np.random.default_rng(seed)
    turned = np.linalg.qr(np.random.default_rng(99).standard_normal((d, d)))[0]
    return (3 + (random.standard_normal((n, d)) * np.geomspace(0.1, 10, d)) @ turned).astype(np.float32)


LAYERS = (0, 1)  # of the tiny model


def test_whitened_inputs_vary_alike() -> None:
    """Covariance becomes one, but for the ridge: λ/(λ + ridge) in each direction."""
    x = drawn(4096, 12)
    found = background_of(x)
    rest = x[PAIRS:].astype(np.float64)
    covariance = np.cov(rest.T, bias=True)
    values, vectors = np.linalg.eigh(covariance)
    after = found.whiten.astype(np.float64) @ covariance @ found.whiten.astype(np.float64)
    expected = (vectors * (values / (values + RIDGE * values.mean()))) @ vectors.T
    assert allclose(after, expected, 1e-4)
    large = vectors[:, values > values.mean()]
    assert allclose(large.T @ after @ large, np.eye(large.shape[1]), 0.03)
    assert allclose(found.mean, rest.mean(0), 1e-5)
    assert np.abs(found.whiten - found.whiten.T).max() < 1e-5


def test_units_and_their_cosines() -> None:
    x = drawn(2000, 8)
    found = background_of(x)
    assert allclose(found.rows, x[:PAIRS])
    assert allclose(found.unit(x[:PAIRS]), found.units, 1e-4)
    assert allclose(np.linalg.norm(found.units, axis=1), np.ones(PAIRS), 1e-5)
    assert allclose(found.cosines, found.units.astype(np.float64) @ found.units.T.astype(np.float64), 1e-5)
    off = found.cosines[np.triu_indices(PAIRS, 1)]
    assert found.spread == pytest.approx(off.std(), rel=1e-4)
    assert found.cut == pytest.approx(CUT * off.std(), rel=1e-4)


def test_spread_is_that_of_inputs_never_seen() -> None:
    """Inputs whitened by themselves are less alike than others: with many dimensions every null would be too narrow."""
    d = 512
    found = background_of(drawn(2048, d))
    unseen = found.unit(drawn(400, d, seed=1))
    off = (unseen @ unseen.T)[np.triu_indices(400, 1)]
    assert found.spread == pytest.approx(off.std(), rel=0.02)


@pytest.mark.parametrize("n", [1, 2, 3, 40])
def test_few_inputs(n: int) -> None:
    found = background_of(drawn(n, 6))
    assert np.isfinite(found.whiten).all()
    assert np.isfinite(found.unit(drawn(5, 6, seed=1))).all()
    assert len(found.units) == max(1, n // 2)
    assert found.cut >= 0


def test_inputs_that_do_not_vary() -> None:
    """A layer that reads the same everywhere has no direction of its own; nothing becomes infinite."""
    with refuses(InputError, ValueError, "no text"):
        background_of(np.empty((0, 5), np.float32))
    found = background_of(np.full((100, 5), 2.0, np.float32))
    assert np.isfinite(found.whiten).all()
    assert not found.units.any()


def test_normalised_is_of_the_last_axis() -> None:
    """Scaled along another one, a neuron's examples would be weighed against each other."""
    x = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    for block, rows in zip(normalise(x), x, strict=True):
        assert block.tolist() == normalise(rows).tolist()
    assert allclose(np.linalg.norm(normalise(x), axis=-1), np.ones((3, 4)), 1e-6)
    assert not normalise(np.zeros((2, 3), np.float32)).any()


def test_random_places_are_content_of_the_sample(tiny_store: Store) -> None:
    places = random_places(tiny_store, 0)
    store = tiny_store
    assert len(set(places.tolist())) == len(places)
    assert set(sequence_of(places).tolist()) <= set(store.state.shared["sequences"].tolist())
    expected = sum(
        int((~np.isin(store.sequences.sequence_tokens(s)[store.sequences.lead :], store.settings.special)).sum())
        for s in store.state.shared["sequences"].tolist()
    )
    assert len(places) == expected
    assert (position_of(places) >= store.sequences.lead).all()
    assert not np.array_equal(places, np.sort(places))
    other = random_places(store, 1)
    assert not np.array_equal(places, other)
    assert np.array_equal(np.sort(places), np.sort(other))
    assert np.array_equal(places, random_places(store, 0))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_scan_keeps_what_ffns_read(tiny: fm.Model, tmp_path: Path, dtype: ScanDtype) -> None:
    """In float32 whatever the pass ran in, as the model reads it again."""
    store = scan(tiny, tiny_texts(), tmp_path / "store", seed=3, sample=16, dtype=dtype)
    places = random_places(store, 3)
    with Inputs(store, tiny, dict.fromkeys(LAYERS, places)) as inputs:
        for layer in LAYERS:
            found, expected = read_background(store, layer), background_of(inputs.at(layer, places))
            assert allclose(found.rows, inputs.at(layer, places[: len(found.rows)]), 1e-5)
            for name in ("mean", "whiten", "units", "spread"):
                assert allclose(getattr(found, name), getattr(expected, name), 1e-3)


def test_a_shard_knows_the_inputs_of_its_own_text(
    tiny: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they know those of all; one without text has no background, rather than one of nothing."""
    monkeypatch.setattr(batches, "UNIT", 20)
    whole = scan(tiny, tiny_texts(), tmp_path / "whole")
    count = len(whole.sequences.units)
    shards = [scan(tiny, tiny_texts(), tmp_path / f"{i}", shard=(i, count + 1)) for i in range(count + 1)]
    expected = read_background(whole, 1)
    rows = [len(read_background(shard, 1).rows) for shard in shards[:-1]]
    assert min(rows) > 0
    assert max(rows) < len(expected.rows)
    with refuses(InputError, ValueError, "no text"):
        read_background(shards[-1], 1)
    joined = read_background(merge(shards, tmp_path / "merged"), 1)
    for name in ("mean", "whiten", "rows", "units", "spread"):
        assert np.array_equal(getattr(joined, name), getattr(expected, name))
