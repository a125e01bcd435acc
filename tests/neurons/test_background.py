"""What inputs are like in general: whitened they vary alike, and a kept file is believed only if it is whole."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError
from ffnmem.neurons import inputs as module
from ffnmem.neurons.inputs import (
    CUT,
    FILE,
    PAIRS,
    RIDGE,
    Background,
    Inputs,
    background_of,
    normalise,
    random_places,
    read_backgrounds,
)
from ffnmem.planted import Planted
from ffnmem.scanning import Store, open_store
from ffnmem.scanning.state import position_of, sequence_of

from ..helpers import allclose, refuses


def drawn(n: int, d: int, seed: int = 0) -> np.ndarray:
    """Inputs with a mean and directions of very different variance."""
    random = np.random.default_rng(seed)
    turned = np.linalg.qr(np.random.default_rng(99).standard_normal((d, d)))[0]
    return (3 + (random.standard_normal((n, d)) * np.geomspace(0.1, 10, d)) @ turned).astype(np.float32)


@pytest.fixture
def own(tiny_store: Store, tmp_path: Path) -> Store:
    without = shutil.ignore_patterns(FILE)  # which another test may have left there
    return open_store(shutil.copytree(tiny_store.folder, tmp_path / "own", ignore=without))


LAYERS = (0, 1)  # of the tiny model


def same(one: dict[int, Background], other: dict[int, Background]) -> bool:
    assert list(one) == list(other)
    names = ("mean", "whiten", "rows", "units", "spread")
    return all(
        np.array_equal(getattr(a, n), getattr(b, n))
        for a, b in zip(one.values(), other.values(), strict=True)
        for n in names
    )


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


def test_read_is_of_the_inputs_and_kept(tiny: fm.Model, own: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    found = read_backgrounds(own, tiny, LAYERS)
    places = random_places(own, 0)
    with Inputs(own, tiny, {1: places}) as inputs:
        expected = background_of(inputs.at(1, places))
    assert allclose(found[1].whiten, expected.whiten, 1e-3)
    assert (own.folder / FILE).is_file()
    assert not list(own.folder.glob(".*.tmp"))
    monkeypatch.setattr(module, "Inputs", None)  # so that reading again would fail
    assert same(read_backgrounds(own, tiny, LAYERS), found)


def test_no_deeper_than_asked_for(tiny: fm.Model, own: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read up to a layer serves those before; a deeper one is read anew, to the same numbers."""
    deepest = own.n_layers - 1
    every = read_backgrounds(own, tiny, range(own.n_layers))
    (own.folder / FILE).unlink()
    first = read_backgrounds(own, tiny, [0])
    assert same(first, {0: every[0]})
    assert not (own.folder / FILE).read_bytes().count(b'"1.whiten"')
    assert same(read_backgrounds(own, tiny, [deepest]), {deepest: every[deepest]})
    monkeypatch.setattr(module, "Inputs", None)  # so that reading again would fail
    assert same(read_backgrounds(own, tiny, [0]), first)


@pytest.mark.parametrize("damage", ["cut", "noise", "empty"])
def test_a_damaged_file_is_read_anew(tiny: fm.Model, own: Store, damage: str) -> None:
    found = read_backgrounds(own, tiny, LAYERS)
    path = own.folder / FILE
    content = path.read_bytes()
    path.write_bytes({"cut": content[: len(content) // 2], "noise": os.urandom(400), "empty": b""}[damage])
    with pytest.raises(FileError, match=FILE):
        own.verify()
    with pytest.warns(fm.FfnmemWarning, match="read again"):
        assert same(read_backgrounds(own, tiny, LAYERS), found)
    assert path.read_bytes() == content
    own.verify()


def test_of_another_seed_or_version_is_read_anew(tiny: fm.Model, own: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    first = read_backgrounds(own, tiny, LAYERS)
    second = read_backgrounds(own, tiny, LAYERS, seed=1, progress=lambda phase, *_: told.append(phase))
    assert set(told) == {"read"}
    assert not np.array_equal(first[0].rows, second[0].rows)
    told.clear()
    monkeypatch.setattr(module, "VERSION", module.VERSION + 1)
    assert same(read_backgrounds(own, tiny, LAYERS, seed=1, progress=lambda phase, *_: told.append(phase)), second)
    assert set(told) == {"read"}


def test_an_unwritable_folder(tiny: fm.Model, own: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read_backgrounds(own, tiny, LAYERS)
    (own.folder / FILE).unlink()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert same(read_backgrounds(own, tiny, LAYERS), expected)
    assert not (own.folder / FILE).exists()


def test_another_models_store(meanings: Planted, tiny_store: Store) -> None:
    with refuses(InputError, ValueError, tiny_store.fingerprint):
        read_backgrounds(tiny_store, meanings.model, [0])
