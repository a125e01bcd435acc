"""Batches of gated neurons into the state: batches and threads do not matter, and nothing wrong is kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ffnmem.core.errors import InputError
from ffnmem.core.threads import Threads
from ffnmem.core.types import CASES
from ffnmem.corpus.batches import Sequences
from ffnmem.corpus.excerpts import Page
from ffnmem.scanning.reduction import Planner, RandomSample, Reducer, choose
from ffnmem.scanning.settings import ScanSettings
from ffnmem.scanning.state import EXTREMES, NOWHERE, ScanState

from ..corpus.packs import packed
from ..helpers import refuses
from .states import difference, settings

WIDTH, BOS, SPECIAL = 40, 99, np.array([45, 99])
LENGTHS = [1 + 5 * i % 13 for i in range(30)]
CHOSEN = settings(context=9, k=4, candidates=4, sample=5, draws=4, frequent=(44, 7, 21))
HALF = settings(context=9, dtype="bfloat16", k=2, candidates=4, sample=5, draws=4, frequent=())


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Sequences:
    return Sequences(packed(LENGTHS, tmp_path_factory.mktemp("corpus") / "corpus"), CHOSEN.context, BOS)


@pytest.fixture(scope="module")
def sample(sequences: Sequences) -> RandomSample:
    return choose(sequences, CHOSEN.seed, CHOSEN.sample, CHOSEN.draws)


def activations(sequence: int, length: int) -> np.ndarray:
    """Gates, linear parts and coefficients of a sequence, multiples of 1/16: sums are exact in any order."""
    gate, linear = np.random.default_rng(sequence).integers(-8, 9, (2, length, WIDTH)).astype(np.float32) / 4
    return np.stack([gate, linear, gate * linear])


def reduced(
    sequences: Sequences, sample: RandomSample, batch_tokens: int, workers: int, chosen: ScanSettings
) -> ScanState:
    state = ScanState.empty(chosen, [WIDTH], sample.sequences, sample.draws, gated=True)
    pool = Threads(workers)
    reducer = Reducer(state, Planner(state, sample), pool)
    for unit in sequences.units:
        for batch in sequences.batches(unit, batch_tokens):
            plan = reducer.begin(Page(batch, 1, SPECIAL))
            rows, pos = batch.tokens.shape
            three = np.full((3, rows, pos, WIDTH), 1e9, np.float32)  # at pads anything may stand
            for row, (number, length) in enumerate(zip(batch.sequences, batch.lengths, strict=True)):
                three[:, row, :length] = activations(int(number), int(length))
            gate, linear, m = (torch.from_numpy(a.reshape(-1, WIDTH)) for a in three)
            reducer.layer(plan, 0, gate, m, linear)
    pool.close()
    return state


@pytest.fixture(scope="module")
def state(sequences: Sequences, sample: RandomSample) -> ScanState:
    return reduced(sequences, sample, 40, 1, CHOSEN)


@pytest.mark.parametrize(("batch_tokens", "workers"), [(9, 1), (1000, 1), (40, 3)])
def test_batches_and_threads_do_not_matter(
    state: ScanState, sequences: Sequences, sample: RandomSample, batch_tokens: int, workers: int
) -> None:
    """Sums here are exact in floats, so every byte must be the same; values are few, so nearly all tie."""
    assert difference(reduced(sequences, sample, batch_tokens, workers, CHOSEN), state) == []


def test_parts_are_those_of_each_kept_place(state: ScanState, sequences: Sequences) -> None:
    """A gate of one example beside the coefficient of another."""
    layer = state.layers[0]
    seen = [activations(number, len(sequences.sequence_tokens(number))) for number in range(len(sequences))]
    for side in (*EXTREMES, *CASES):
        ranking = layer.ranking(side)
        for neuron, slot in zip(*np.nonzero(ranking.at != NOWHERE), strict=True):
            sequence, position = divmod(int(ranking.at[neuron, slot]), 1 << 20)
            gate, linear, m = seen[sequence][:, position, neuron]
            assert ranking.value[neuron, slot] == m
            assert ranking.parts[:, neuron, slot].tolist() == [gate, linear]


def test_nothing_exact_after_half_precision(sequences: Sequences, sample: RandomSample) -> None:
    """Half-precision gates would be shown as exact ones."""
    gate = reduced(sequences, sample, 40, 1, HALF).layers[0].gate
    assert gate is not None
    assert np.isnan(gate.case_parts).all()
    assert np.isnan(gate.extreme_parts).all()
    assert np.isnan(gate.sample_parts).all()
    assert (gate.case_at != NOWHERE).any()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_refuses_linear_parts_that_are_none(sequences: Sequences, sample: RandomSample, value: float) -> None:
    state = ScanState.empty(CHOSEN, [WIDTH], sample.sequences, sample.draws, gated=True)
    reducer = Reducer(state, Planner(state, sample), Threads(1))
    batch = next(sequences.batches(sequences.units[0], 40))
    plan = reducer.begin(Page(batch, 1, SPECIAL))
    zeros = torch.zeros(batch.tokens.size, WIDTH)
    linear = zeros.clone()
    linear[int(np.flatnonzero(plan.mask)[0]), 2] = value
    with refuses(InputError, ValueError, "layer 0", "no usable number"):
        reducer.layer(plan, 0, zeros, zeros, linear)
