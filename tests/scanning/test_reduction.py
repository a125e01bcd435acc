"""Batches into the state: what counts, where, and what is kept of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ffnmem.core.errors import InputError
from ffnmem.core.threads import Threads
from ffnmem.corpus.batches import Batch, Sequences
from ffnmem.corpus.excerpts import Page
from ffnmem.scanning import exact_sums
from ffnmem.scanning.reduction import Planner, RandomSample, Reducer, choose, common, runs
from ffnmem.scanning.settings import ScanSettings
from ffnmem.scanning.state import BINS, ScanState, place_of

from ..corpus.packs import packed
from ..helpers import allclose, refuses
from .binning import bin_of
from .states import difference, settings

WIDTH, BOS, SPECIAL = 6, 99, np.array([45, 99])
LENGTHS = [1 + 5 * i % 13 for i in range(30)]
CHOSEN = settings(context=9, k=4, candidates=4, sample=5, draws=4, frequent=(44, 7, 21))


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Sequences:
    return Sequences(packed(LENGTHS, tmp_path_factory.mktemp("corpus") / "corpus"), CHOSEN.context, BOS)


@pytest.fixture(scope="module")
def sample(sequences: Sequences) -> RandomSample:
    return choose(sequences, CHOSEN.seed, CHOSEN.sample, CHOSEN.draws)


def activations(sequence: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Pre-activations and coefficients of one sequence, multiples of 1/8, so that sums are exact in any order."""
    random = np.random.default_rng(sequence)
    pre = random.integers(-20, 21, (length, WIDTH)).astype(np.float32) / 8
    return pre, np.maximum(pre, 0)


def reduced(
    sequences: Sequences, sample: RandomSample, batch_tokens: int, workers: int, chosen: ScanSettings
) -> ScanState:
    state = ScanState.empty(chosen, [WIDTH], sample.sequences, sample.draws)
    pool = Threads(workers)
    reducer = Reducer(state, Planner(state, sample), pool)
    for unit in sequences.units:
        for batch in sequences.batches(unit, batch_tokens):
            plan = reducer.begin(Page(batch, 1, SPECIAL))
            rows, pos = batch.tokens.shape
            pre, m = np.full((2, rows, pos, WIDTH), 1e9, np.float32)  # at pads anything may stand
            for row, (number, length) in enumerate(zip(batch.sequences, batch.lengths, strict=True)):
                pre[row, :length], m[row, :length] = activations(int(number), int(length))
            tensors = (torch.from_numpy(a.reshape(-1, WIDTH)) for a in (pre, m))
            reducer.layer(plan, 0, *tensors)
    pool.close()
    return state


@pytest.fixture(scope="module")
def state(sequences: Sequences, sample: RandomSample) -> ScanState:
    return reduced(sequences, sample, 40, 1, CHOSEN)


def content(sequences: Sequences) -> list[tuple[int, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Of every sequence: number, positions, ids, pre-activations, coefficients, content only."""
    found = []
    for number in range(len(sequences)):
        ids = sequences.sequence_tokens(number)
        at = np.flatnonzero(~np.isin(ids, SPECIAL))
        pre, m = activations(number, len(ids))
        found.append((number, at, ids[at], pre[at], m[at]))
    return found


def test_equals_looking_at_every_token(state: ScanState, sequences: Sequences, sample: RandomSample) -> None:
    """BOS, pads and special tokens in a statistic, or a token in the wrong place."""
    rows = content(sequences)
    pre, m = np.concatenate([row[3] for row in rows]), np.concatenate([row[4] for row in rows])
    layer = state.layers[0]
    powers = [a.astype(np.float64) ** p for a in (pre, m) for p in (1, 2, 3, 4)]
    found = exact_sums.as_integers(layer.sums) / 2**64
    assert found.tolist() == [power.sum(0).tolist() for power in powers]
    assert layer.counts.tolist() == [(pre > 0).sum(0).tolist(), (m == 0).sum(0).tolist()]
    assert (layer.range == [m.min(0), m.max(0)]).all()
    assert (layer.pre_range == [pre.min(0), pre.max(0)]).all()
    for neuron in range(WIDTH):
        assert (layer.histogram[neuron] == np.bincount(bin_of(m[:, neuron]), minlength=BINS)).all()
    assert (state.tokens, state.n_sequences) == (len(m), len(sequences))

    ids, at = np.concatenate([row[2] for row in rows]), np.concatenate([row[1] for row in rows])
    bucket = np.array([int(p).bit_length() for p in at])
    for index in range(CHOSEN.n_buckets):
        assert state.bucket_counts[index] == (bucket == index).sum()
        assert allclose(layer.bucket_sums[index] / 2.0**25, m[bucket == index].sum(0), 0)
    for index, token in enumerate(CHOSEN.frequent):
        assert state.token_counts[index] == (ids == token).sum() > 0
        assert allclose(layer.token_sums[index] / 2.0**25, m[ids == token].sum(0), 0)


def test_keeps_the_best_sequences(state: ScanState, sequences: Sequences) -> None:
    """Values are few, so nearly all tie: the earlier sequence and its first position win."""
    for side, sign in (("high", 1), ("low", -1)):
        for neuron in range(WIDTH):
            best = []
            for number, at, _, _, m in content(sequences):
                if len(at):
                    first = int(np.argmax(sign * m[:, neuron]))
                    best.append((-sign * m[first, neuron], int(place_of(number, int(at[first])))))
            best.sort()
            layer = state.layers[0]
            assert getattr(layer, side)[neuron].tolist() == [-sign * value for value, _ in best[:4]]
            assert getattr(layer, f"{side}_at")[neuron].tolist() == [place for _, place in best[:4]]


def test_the_sample(state: ScanState, sequences: Sequences, sample: RandomSample) -> None:
    rows = {row[0]: row for row in content(sequences)}
    layer = state.layers[0]
    assert len(sample.sequences) == 5
    for slot, number in enumerate(sample.sequences):
        _, at, _, _, m = rows[int(number)]
        assert (layer.sample_high[slot] == m.max(0)).all()
        assert (layer.sample_low[slot] == m.min(0)).all()
        assert (layer.sample_high_at[slot] == at[m.argmax(0)]).all()
        assert (layer.sample_low_at[slot] == at[m.argmin(0)]).all()
    for slot, number in enumerate(sample.draws):
        _, at, _, _, m = rows[int(number)]
        index = int(sample.places[slot] * len(at))
        assert state.draw_positions[slot] == at[index]
        assert (layer.draw[slot] == m[index]).all()


@pytest.mark.parametrize(("batch_tokens", "workers"), [(9, 1), (1000, 1), (40, 3)])
def test_batches_and_threads_do_not_matter(
    state: ScanState, sequences: Sequences, sample: RandomSample, batch_tokens: int, workers: int
) -> None:
    """Sums here are exact in floats, so every byte must be the same."""
    assert difference(reduced(sequences, sample, batch_tokens, workers, CHOSEN), state) == []


def test_no_sample_before_the_exact_pass(sequences: Sequences, sample: RandomSample) -> None:
    """Half-precision numbers would be shown as exact ones."""
    half = settings(context=9, dtype="bfloat16", k=2, candidates=4, frequent=())
    layer = reduced(sequences, sample, 40, 1, half).layers[0]
    assert np.isnan(layer.sample_high).all()
    assert np.isnan(layer.draw).all()
    assert np.isfinite(layer.high).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_refuses_numbers_that_are_none(sequences: Sequences, sample: RandomSample, value: float) -> None:
    state = ScanState.empty(CHOSEN, [WIDTH], sample.sequences, sample.draws)
    reducer = Reducer(state, Planner(state, sample), Threads(1))
    batch = next(sequences.batches(sequences.units[0], 40))
    plan = reducer.begin(Page(batch, 1, SPECIAL))
    values = torch.zeros(batch.tokens.size, WIDTH)
    values[int(np.flatnonzero(plan.mask)[0]), 2] = value
    with refuses(InputError, ValueError, "layer 0", "no usable number"):
        reducer.layer(plan, 0, values, values)


def test_a_batch_without_content(sample: RandomSample) -> None:
    """A sequence of special tokens alone has no extreme: −∞ would be kept as its coefficient."""
    state = ScanState.empty(CHOSEN, [WIDTH], sample.sequences, sample.draws)
    reducer = Reducer(state, Planner(state, sample), Threads(1))
    batch = Batch(np.array([[BOS, 45, 45]]), sample.sequences[:1], np.array([3]))
    plan = reducer.begin(Page(batch, 1, SPECIAL))
    before = ScanState.empty(CHOSEN, [WIDTH], sample.sequences, sample.draws)
    reducer.layer(plan, 0, torch.ones(3, WIDTH), torch.ones(3, WIDTH))
    before.n_sequences = 1
    assert difference(state, before) == []


def test_runs_and_common() -> None:
    tokens, bucket = np.array([1, 2, 3, 5, 8, 9]), np.array([1, 2, 2, 2, 0, 1])
    assert runs(tokens, bucket).tolist() == [[1, 1], [2, 2], [5, 1], [8, 1], [9, 1]]
    assert runs(tokens[:0], bucket[:0]).shape == (0, 2)
    assert common(np.array([7, 2, 30, 4]), np.array([2, 3, 4, 7])).tolist() == [[0, 3], [1, 0], [3, 2]]
    assert common(np.array([7]), np.array([], np.int64)).shape == (0, 2)


def test_planner_without_frequent_tokens(sequences: Sequences, sample: RandomSample, tmp_path: Path) -> None:
    chosen = settings(context=9, frequent=())
    state = ScanState.empty(chosen, [WIDTH], sample.sequences, sample.draws)
    plan = Planner(state, sample).plan(Page(next(sequences.batches(sequences.units[0], 40)), 1, SPECIAL))
    assert plan.chosen.shape == (0, 2)
    assert plan.buckets.min() >= 1  # position 0 is BOS
    assert plan.groups[:, 1].sum() == len(plan.buckets)
