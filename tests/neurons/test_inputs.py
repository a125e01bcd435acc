"""Where neurons fire, what FFNs read there and in general: as walks over the store and captures of the text have it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.core.types import ScanDtype
from ffnmem.corpus import batches
from ffnmem.neurons.inputs import (
    CUT,
    FLOOR,
    MOST,
    PAIRS,
    RIDGE,
    SAMPLED,
    TOP,
    Inputs,
    background_of,
    choose_sampled,
    firing,
    read_background,
    sampled_sequences,
)
from ffnmem.scanning import Store, merge, reduction, scan
from ffnmem.scanning.state import place_of, position_of, sequence_of

from ..helpers import allclose, refuses
from ..scanning.texts import tiny_texts


def random_places(store: Store, seed: int) -> np.ndarray:
    """Random positions of the store's random sequences."""
    return reduction.random_places(store.sequences, store.settings.special, sampled_sequences(store), seed)


def everywhere(store: Store, sequences: list[int]) -> np.ndarray:
    """All places of some sequences."""
    lengths = [len(store.sequences.sequence_tokens(s)) for s in sequences]
    return np.concatenate([place_of(np.full(n, s), np.arange(n)) for s, n in zip(sequences, lengths, strict=True)])


def captured(model: fm.Model, store: Store, layer: int, places: np.ndarray) -> np.ndarray:
    """The naive way: every whole sequence by itself."""
    whole = {
        s: fm.capture(model, store.sequences.sequence_tokens(s).tolist()).ffn_in[layer][0]
        for s in set(sequence_of(places).tolist())
    }
    rows = [whole[s][p] for s, p in zip(sequence_of(places).tolist(), position_of(places).tolist(), strict=True)]
    return torch.stack(rows).detach().float().numpy()


def test_any_order_is_as_captured(tiny: fm.Model, tiny_store: Store) -> None:
    """Places shuffled, repeated, of both layers."""
    random = np.random.default_rng(0)
    every = everywhere(tiny_store, list(range(0, tiny_store.sequences.n_sequences, 3)))
    places = {layer: random.choice(every, 150) for layer in (0, 1)}
    with Inputs(tiny_store, tiny, places) as inputs:
        for layer, some in places.items():
            assert inputs.at(layer, some).dtype == np.float32
            assert allclose(inputs.at(layer, some), captured(tiny, tiny_store, layer, some), 1e-5)
            again = random.permutation(some)[:9]
            assert allclose(inputs.at(layer, again), captured(tiny, tiny_store, layer, again), 1e-5)


def test_every_architecture(architecture: fm.Model, tmp_path: Path) -> None:
    """OPT flattens batch and position, NeoX norms in parallel: each is read where its FFN reads."""
    store = scan(architecture, tiny_texts()[:6], tmp_path / "s", k=2, sample=4, draws=2, frequent=2)
    places = everywhere(store, [0, 3, 5])[::2]
    with Inputs(store, architecture, {1: places}) as inputs:
        assert allclose(inputs.at(1, places), captured(architecture, store, 1, places), 1e-5)


def test_nothing_behind_the_last_place_is_run(tiny: fm.Model, tiny_store: Store) -> None:
    """Sequences are cut there: the cost is what the budget counts."""
    places = {0: place_of(np.array([4, 1, 1]), np.array([2, 0, 3])), 1: place_of(np.array([4]), np.array([0]))}
    told: list[tuple[str, int, int]] = []
    with Inputs(tiny_store, tiny, places, lambda *report: told.append(report)) as inputs:
        assert inputs.tokens_read == 3 + 4
        assert allclose(inputs.at(0, places[0]), captured(tiny, tiny_store, 0, places[0]), 1e-5)
    assert {report[0] for report in told} == {"read"}
    assert told[-1] == ("read", 5, 5)  # BOS left out
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def test_what_was_not_asked_for_is_refused(tiny: fm.Model, tiny_store: Store) -> None:
    """Its neighbour's row would be taken for it."""
    places, nowhere = place_of(np.array([1, 1]), np.array([2, 5])), np.empty(0, np.int64)
    with Inputs(tiny_store, tiny, {0: places, 1: nowhere}) as inputs:
        assert inputs.at(1, nowhere).shape == (0, tiny.d_model)
        for other in ((1, 3), (7, 0), (0, 0)):
            with refuses(InputError, ValueError, "layer 0", f"sequence {other[0]}", f"position {other[1]}"):
                inputs.at(0, np.array([place_of(*other), places[0]]))
        with refuses(InputError, ValueError, "layer 1"):
            inputs.at(1, places)


def test_leaves_no_files(tiny: fm.Model, tiny_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while it is open, not after a failure; and it works where the store cannot be written to."""
    before, places = sorted(tiny_store.folder.iterdir()), {1: everywhere(tiny_store, [1])}
    with Inputs(tiny_store, tiny, places):
        assert sorted(tiny_store.folder.iterdir()) == before

    def fail(*_: object) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        Inputs(tiny_store, tiny, places, fail)
    assert sorted(tiny_store.folder.iterdir()) == before
    monkeypatch.setattr(os, "access", lambda *_: False)
    with Inputs(tiny_store, tiny, places) as elsewhere:
        assert allclose(elsewhere.at(1, places[1]), captured(tiny, tiny_store, 1, places[1]), 1e-5)


# -- where neurons fire ------------------------------------------------------------------------------------------------

NAIVE = {"positive": ("top", 0, 1.0), "negative": ("bottom", 1, -1.0)}


def naive(store: Store, layer: int, neuron: int, sign: str) -> tuple[dict[tuple[int, int], float], ...]:
    """The examples that must be there, and those of which at most SAMPLED may be, with their strengths."""
    kind, side, factor = NAIVE[sign]
    rows = store.example_rows(layer, neuron, kind=kind)
    best = factor * rows["coefficient"].iloc[0]
    if best <= 0:
        return {}, {}
    strong = rows[factor * rows["coefficient"] >= FLOOR * best][:TOP]
    top = {
        (int(row.sequence), int(row.position)): factor * float(row.coefficient)
        for row in strong.itertuples(index=False)
    }
    view, taken = store.view(layer), {sequence for sequence, _ in top}
    values, places = view.sample[side, :, neuron].tolist(), view.sample_at[side, :, neuron].tolist()
    sampled = {
        (sequence, place): factor * value
        for sequence, place, value in zip(store.state.shared["sequences"].tolist(), places, values, strict=True)
        if factor * value >= FLOOR * best and sequence not in taken
    }
    return top, sampled


@pytest.mark.parametrize("sign", ["positive", "negative"])
@pytest.mark.parametrize("which", ["tiny_store", "meanings_store"])
def test_is_the_naive_walk(sign: str, which: str, request: pytest.FixtureRequest) -> None:
    store: Store = request.getfixturevalue(which)
    found = firing(store, 1, sign=sign)
    assert found.places.shape == found.strengths.shape == (store.d_mlp(1), MOST)
    for neuron in range(0, store.d_mlp(1), 3):
        top, sampled = naive(store, 1, neuron, sign)
        n = int(found.counts[neuron])
        places, strengths = found.places[neuron], found.strengths[neuron]
        sequences, positions = sequence_of(places[:n]), position_of(places[:n])
        mine = dict(zip(zip(sequences.tolist(), positions.tolist(), strict=True), strengths[:n].tolist(), strict=True))
        assert top.items() <= mine.items()
        rest = {place: strength for place, strength in mine.items() if place not in top}
        assert rest.items() <= sampled.items()
        assert len(rest) == min(len(sampled), SAMPLED)
        if rest:  # the whole range of them
            assert (max(rest.values()), min(rest.values())) == (max(sampled.values()), min(sampled.values()))
        assert (np.diff(strengths[:n]) <= 0).all()
        assert len(set(sequences.tolist())) == n
        assert (places[n:] == -1).all()
        assert (strengths[n:] == 0).all()
        assert found.extreme[neuron] == (strengths[0] if n else 0)


def test_others_are_strong_untaken_and_spread() -> None:
    sizes = np.array([np.nan, 0.9, 0.2, 0.8, 0.7, 0.6])
    places = np.array([-1, 10, 11, 12, 13, 14], np.int64) << 20
    assert choose_sampled(sizes, places, np.array([12 << 20 | 5]), 0.5).tolist() == [1, 4, 5]
    many = np.linspace(1, 0.5, 200)
    chosen = choose_sampled(many, np.arange(200) << 20, np.empty(0, np.int64), 0.5)
    assert len(chosen) == SAMPLED
    assert (chosen[0], chosen[-1]) == (0, 199)
    assert np.ptp(np.diff(chosen)) <= 1


# -- what inputs are like in general -----------------------------------------------------------------------------------


def drawn(n: int, d: int, seed: int = 0) -> np.ndarray:
    """Inputs with a mean and directions of very different variance."""
    random = np.random.default_rng(seed)
    turned = np.linalg.qr(np.random.default_rng(99).standard_normal((d, d)))[0]
    return (3 + (random.standard_normal((n, d)) * np.geomspace(0.1, 10, d)) @ turned).astype(np.float32)


def test_whitened_inputs_vary_alike() -> None:
    """Covariance becomes one, but for the ridge: λ/(λ + ridge) in each direction. Cosines are of others than these."""
    x = drawn(4096, 12)
    found = background_of(x)
    rest = x[PAIRS:].astype(np.float64)
    covariance = np.cov(rest.T, bias=True)
    values, vectors = np.linalg.eigh(covariance)
    after = found.whiten.astype(np.float64) @ covariance @ found.whiten.astype(np.float64)
    expected = (vectors * (values / (values + RIDGE * values.mean()))) @ vectors.T
    assert allclose(after, expected, 1e-4)
    assert allclose(found.mean, rest.mean(0), 1e-5)
    assert allclose(found.whiten, found.whiten.T, 1e-5)
    assert allclose(found.rows, x[:PAIRS])
    assert found.rows.base is None  # or every layer's background would keep all inputs that it was made of
    assert allclose(found.unit(x[:PAIRS]), found.units, 1e-4)
    assert allclose(np.linalg.norm(found.units, axis=1), np.ones(PAIRS), 1e-5)
    assert allclose(found.cosines, found.units.astype(np.float64) @ found.units.T.astype(np.float64), 1e-5)
    off = found.cosines[np.triu_indices(PAIRS, 1)]
    assert (found.spread, found.cut) == pytest.approx((off.std(), CUT * off.std()), rel=1e-4)


def test_spread_is_that_of_inputs_never_seen() -> None:
    """Inputs whitened by themselves are less alike than others: with many dimensions every null would be too narrow."""
    found = background_of(drawn(2048, 512))
    unseen = found.unit(drawn(400, 512, seed=1))
    off = (unseen @ unseen.T)[np.triu_indices(400, 1)]
    assert found.spread == pytest.approx(off.std(), rel=0.02)


@pytest.mark.parametrize("x", [*(drawn(n, 6) for n in (1, 2, 3, 40)), np.full((100, 6), 2.0, np.float32)])
def test_few_inputs_and_such_that_do_not_vary(x: np.ndarray) -> None:
    """A layer that reads the same everywhere has no direction of its own; nothing becomes infinite."""
    found = background_of(x)
    assert np.isfinite(found.whiten).all()
    assert np.isfinite(found.unit(drawn(5, 6, seed=1))).all()
    assert len(found.units) == max(1, len(x) // 2)
    assert found.units.any() == (len(x) in (2, 3, 40))
    assert found.cut >= 0
    with refuses(InputError, ValueError, "no text"):
        background_of(x[:0])


def test_random_places_are_content_of_the_sample(tiny_store: Store) -> None:
    """Without BOS and special tokens, in an order of the seed's."""
    places, same, other = (random_places(tiny_store, seed).tolist() for seed in (0, 0, 1))
    content = [
        place_of(sequence, at)
        for sequence in tiny_store.state.shared["sequences"].tolist()
        for at, token in enumerate(tiny_store.sequences.sequence_tokens(sequence).tolist())
        if at >= tiny_store.sequences.lead and token not in tiny_store.settings.special
    ]
    assert sorted(places) == sorted(content) == sorted(other)
    assert places == same
    assert sorted(places) != places != other


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.exhaustive), "bfloat16"])
def test_the_scan_keeps_what_ffns_read(tiny: fm.Model, tmp_path: Path, dtype: ScanDtype) -> None:
    """In float32 whatever the pass ran in, as the model reads it again."""
    store = scan(tiny, tiny_texts()[:12], tmp_path / "store", seed=3, sample=16, dtype=dtype)
    places = random_places(store, 3)
    with Inputs(store, tiny, dict.fromkeys((0, 1), places)) as inputs:
        for layer in (0, 1):
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
