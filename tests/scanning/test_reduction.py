"""Pages into the state: what counts, where, and what is kept of it, of classic and of gated neurons."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.core.threads import Threads
from ffnmem.core.types import CASES
from ffnmem.corpus import batches
from ffnmem.corpus.batches import Batch, Sequences
from ffnmem.corpus.excerpts import Page
from ffnmem.scanning import exact_sums, kernels, reduction
from ffnmem.scanning.reduction import DRAWS, SEQUENCES, Lowest, RandomSample, Reducer, choose, uniforms
from ffnmem.scanning.settings import ScanSettings
from ffnmem.scanning.state import BINS, NOWHERE, ScanState, place_of, position_of, sequence_of
from ffnmem.scanning.statistics import histogram_columns

from ..corpus.packs import packed
from ..helpers import allclose
from .states import D_MODEL, bin_of, difference, settings

WIDTH, BOS, SPECIAL = 131, 99, np.array([45, 99])  # more neurons than a strip of the kernels has
LENGTHS = [1 + 5 * i % 13 for i in range(30)]
CHOSEN = settings(context=9, k=4, sample=5, draws=4, frequent=(44, 7, 21))
HALF = settings(context=9, dtype="bfloat16", k=2, sample=5, draws=4, frequent=())


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Sequences:
    return Sequences(packed(LENGTHS, tmp_path_factory.mktemp("corpus") / "corpus"), CHOSEN.context, BOS)


@pytest.fixture(scope="module")
def sample(sequences: Sequences) -> RandomSample:
    return choose(sequences, SPECIAL.tolist(), CHOSEN.seed, CHOSEN.sample, CHOSEN.draws)


@pytest.fixture(scope="module", params=[False, True], ids=["classic", "gated"])
def gated(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def activations(sequence: int, length: int, gated: bool) -> np.ndarray:
    """Pre-activations (of gated neurons: gates), coefficients and linear parts of a sequence, multiples of 1/16, so
    that sums are exact in any order; of few values, so that nearly all tie."""
    pre, linear = np.random.default_rng(sequence).integers(-8, 9, (2, length, WIDTH)).astype(np.float32) / 4
    return np.stack([pre, pre * linear if gated else np.maximum(pre, 0), linear])


def read_at(sequence: int, length: int) -> np.ndarray:
    """What the FFN reads of a sequence."""
    return np.random.default_rng([sequence, 1]).normal(size=(length, D_MODEL)).astype(np.float32)


def reducer_of(sample: RandomSample, chosen: ScanSettings, gated: bool, workers: int = 1) -> tuple[ScanState, Reducer]:
    kept = len(sample.inputs), D_MODEL
    state = ScanState.empty(chosen, [WIDTH], sample.sequences, sample.draws, gated, inputs=kept)
    return state, Reducer(state, sample, Threads(workers))


def reduced(
    sequences: Sequences, sample: RandomSample, gated: bool, batch_tokens: int = 40, workers: int = 1,
    chosen: ScanSettings = CHOSEN,
) -> ScanState:  # fmt: skip
    state, reducer = reducer_of(sample, chosen, gated, workers)
    for unit in sequences.units:
        for batch in sequences.batches(unit, batch_tokens):
            page, (rows, pos) = Page(batch, 1, SPECIAL), batch.tokens.shape
            three = np.full((3, rows, pos, WIDTH), 1e9, np.float32)  # at pads anything may stand
            x = np.full((rows, pos, D_MODEL), 1e9, np.float32)
            for row, (number, length) in enumerate(zip(batch.sequences, batch.lengths, strict=True)):
                x[row, :length] = read_at(int(number), int(length))
                three[:, row, :length] = activations(int(number), int(length), gated)
            pre, m, linear = (torch.from_numpy(a.reshape(-1, WIDTH)) for a in three)
            reducer.begin(page)
            reducer.read(page, 0, torch.from_numpy(x))
            reducer.add(page, 0, pre, m, linear if gated else None)
    reducer.threads.close()
    return state


@pytest.fixture(scope="module")
def state(sequences: Sequences, sample: RandomSample, gated: bool) -> ScanState:
    return reduced(sequences, sample, gated)


def content(sequences: Sequences, gated: bool) -> list[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """Of every sequence: number, positions, ids, and the three activations, content only."""
    found = []
    for number in range(len(sequences)):
        ids = sequences.sequence_tokens(number)
        at = np.flatnonzero(~np.isin(ids, SPECIAL))
        found.append((number, at, ids[at], activations(number, len(ids), gated)[:, at]))
    return found


def in_case(gate: np.ndarray, linear: np.ndarray, case: int) -> np.ndarray:
    return ((gate > 0) == (case < 2)) & ((linear > 0) == (case % 2 == 0))


def test_equals_looking_at_every_token(state: ScanState, sequences: Sequences, gated: bool) -> None:
    """BOS, pads and special tokens in a statistic, or a token in the wrong place."""
    rows = content(sequences, gated)
    pre, m, linear = np.concatenate([row[3] for row in rows], axis=1)
    (layer,) = state.layers
    sums = [(a.astype(np.float64) ** p).sum(0) for a in (pre, m, *([linear] if gated else [])) for p in (1, 2, 3, 4)]
    cases = [in_case(pre, linear, case) for case in range(4)] if gated else []
    sums += [np.where(case, m, 0).sum(0) for case in cases]
    assert (exact_sums.as_integers(layer.sums) / 2**64 == np.stack(sums)).all()
    assert (layer.counts == [(pre > 0).sum(0), (m == 0).sum(0), *(case.sum(0) for case in cases)]).all()
    assert (layer.range == [m.min(0), m.max(0)]).all()
    assert (
        layer.pre_range == [f(a, axis=0) for a in ((pre, linear) if gated else (pre,)) for f in (np.min, np.max)]
    ).all()
    for neuron in range(WIDTH):
        assert (layer.histogram[neuron] == np.bincount(bin_of(m[:, neuron]), minlength=BINS)).all()
    assert state.arrays["totals"].tolist() == [len(m), len(sequences)]

    ids, at = np.concatenate([row[2] for row in rows]), np.concatenate([row[1] for row in rows])
    bucket = np.array([int(p).bit_length() for p in at])
    for index in range(CHOSEN.n_buckets):
        assert layer.bucket_counts[0, index] == (bucket == index).sum()
        assert allclose(layer.bucket_sums[index] / 2.0**25, m[bucket == index].sum(0), 0)
    for index, token in enumerate(CHOSEN.frequent):
        assert layer.token_counts[0, index] == (ids == token).sum() > 0
        assert allclose(layer.token_sums[index] / 2.0**25, m[ids == token].sum(0), 0)


def test_keeps_the_best_sequences(state: ScanState, sequences: Sequences, gated: bool) -> None:
    """The earlier sequence and its first position win ties; gate and linear part are those of that place."""
    (layer,) = state.layers
    rows = [row for row in content(sequences, gated) if len(row[1])]
    for side in range(2 + len(CASES) if gated else 2):
        best: list[list[tuple[float, ...]]] = [[] for _ in range(WIDTH)]
        for number, at, _, (x, m, u) in rows:
            strength = m if side == 0 else -m if side == 1 else np.where(in_case(x, u, side - 2), abs(m), 0)
            first = strength.argmax(0), np.arange(WIDTH)
            columns = (-strength[first], place_of(number, at[first[0]]), m[first], x[first], u[first])
            for neuron, row in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
                if side < 2 or row[0] < 0:
                    best[neuron].append(row)
        for neuron, expected in enumerate(best):
            kept = [layer.kept_at[side, neuron], layer.kept[side, neuron], *layer.parts[side, :, neuron]]
            found = [row for row in zip(*(row.tolist() for row in kept), strict=True) if row[0] != NOWHERE]
            assert found == [row[1 : 5 if gated else 3] for row in sorted(expected)[:4]]


def test_the_sample(state: ScanState, sequences: Sequences, sample: RandomSample, gated: bool) -> None:
    rows = {row[0]: row for row in content(sequences, gated)}
    (layer,) = state.layers
    assert len(sample.sequences) == 5
    for slot, number in enumerate(sample.sequences):
        _, at, _, (pre, m, linear) = rows[int(number)]
        for side, first in enumerate((m.argmax(0), m.argmin(0))):
            there = first, np.arange(WIDTH)
            assert (layer.sample[side, slot] == m[there]).all()
            assert (layer.sample_at[side, slot] == at[first]).all()
            assert (layer.sample_parts[side, :, slot] == np.stack([pre[there], linear[there]])[: 2 * gated]).all()
    for slot, number in enumerate(sample.draws):
        _, at, _, (pre, m, linear) = rows[int(number)]
        index = int(sample.places[slot] * len(at))
        assert state.arrays["draw_positions"][slot] == at[index]
        assert (layer.draw[slot] == m[index]).all()
        assert (layer.draw_parts[:, slot] == np.stack([pre[index], linear[index]])[: 2 * gated]).all()
    everywhere = {int(place_of(number, at)) for number in sample.sequences for at in rows[int(number)][1]}
    assert everywhere == set(sample.inputs.tolist())
    for place, x in zip(sample.inputs.tolist(), layer.inputs, strict=True):
        assert (x == read_at(sequence_of(place), position_of(place) + 1)[-1]).all()


@pytest.mark.parametrize(("batch_tokens", "workers"), [(9, 1), (1000, 1), (40, 3)])
def test_batches_and_threads_do_not_matter(
    state: ScanState, sequences: Sequences, sample: RandomSample, gated: bool, batch_tokens: int, workers: int
) -> None:
    """Sums here are exact in floats, so every byte must be the same."""
    assert difference(reduced(sequences, sample, gated, batch_tokens, workers), state) == []


def test_nothing_exact_after_half_precision(sequences: Sequences, sample: RandomSample, gated: bool) -> None:
    """Half-precision numbers would be shown as exact ones."""
    (layer,) = reduced(sequences, sample, gated, chosen=HALF).layers
    for name in ("exact", "parts", "sample", "sample_parts", "draw", "draw_parts", "inputs"):
        assert np.isnan(getattr(layer, name)).all()
    assert np.isfinite(layer.kept).all()


def test_a_page_without_content(sample: RandomSample, gated: bool) -> None:
    """A sequence of special tokens alone has no extreme: −∞ would be kept as its coefficient."""
    state, reducer = reducer_of(sample, CHOSEN, gated)
    page = Page(Batch(np.array([[BOS, 45, 45]]), sample.sequences[:1], np.array([3])), 1, SPECIAL)
    reducer.begin(page)
    reducer.read(page, 0, torch.ones(1, 3, D_MODEL))
    ones = torch.ones(3, WIDTH)
    reducer.add(page, 0, ones, ones, ones if gated else None)
    before, _ = reducer_of(sample, CHOSEN, gated)
    before.arrays["totals"][1] = 1
    assert difference(state, before) == []


def test_a_bin_is_closed_at_its_end_nearer_to_zero(sample: RandomSample) -> None:
    """A reader who took each bin for closed below would count −0.5 one bin too far from zero."""
    x = np.array([-2.0, -0.5, -0.5, -0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 2.0, 0.0078125], np.float32)
    state = one_page(sample, torch.from_numpy(np.append(9, x)[:, None]).float(), settings(context=40, frequent=()))
    found = histogram_columns(state.layers[0].histogram)[0]
    inside = [
        int(((low <= x) & (x < high) & ~np.signbit(x) if low >= 0 else (low < x) & (x <= high) & np.signbit(x)).sum())
        for low, high in zip(found["low"], found["high"], strict=True)
    ]
    assert found["count"].tolist() == inside
    assert sum(inside) == len(x)
    assert (found["low"][0], found["high"][-1]) == (-2.5, 2.5)


@pytest.mark.parametrize("width", [1, 7, 128, 300])
def test_numbers_of_any_size(sample: RandomSample, width: int) -> None:
    """In the bin that ``bin_of`` says and in the powers' sums, of fewer neurons than a strip of the kernels, too."""
    random = np.random.default_rng(0)
    m = random.normal(size=(40, width)) * 2.0 ** random.integers(-14, 14, (40, width))
    m[1:7, 0] = [-0.0, 1e-42, -1e-42, 256.0, -256.0, -(2.0**-8)]
    exact = 2.0 ** np.arange(-9, 9)
    m[1 : 1 + len(exact), width // 2] = np.nextafter(np.float32(exact), np.float32(0))
    m[1 : 1 + len(exact), -1] = -exact
    state = one_page(sample, torch.from_numpy(m).float(), settings(context=40, frequent=()))
    m = m[1:].astype(np.float32)  # without BOS
    (layer,) = state.layers
    for neuron in {0, width // 2, width - 1}:
        assert (layer.histogram[neuron] == np.bincount(bin_of(m[:, neuron]), minlength=BINS)).all()
    sums = exact_sums.as_integers(layer.sums[:, 4:]).astype(np.float64) / 2.0**64
    assert allclose(sums, np.stack([(m.astype(np.float64) ** power).sum(0) for power in (1, 2, 3, 4)]), 1e-12)


def test_a_bin_that_is_fuller_than_a_strip_can_count(sample: RandomSample) -> None:
    """65,536 tokens in one batch would count as none."""
    tokens = 2 * kernels.FULL
    state = one_page(sample, torch.ones(tokens, 1), settings(context=tokens, frequent=()))
    assert state.layers[0].histogram.max() == tokens - 1


def one_page(sample: RandomSample, m: torch.Tensor, chosen: ScanSettings) -> ScanState:
    """A page of one sequence with these coefficients, BOS first."""
    state = ScanState.empty(chosen, [m.shape[1]], sample.sequences, sample.draws)
    reducer = Reducer(state, sample, Threads(1))
    ids = np.concatenate([[BOS], np.full(len(m) - 1, 7)])
    page = Page(Batch(ids[None], np.array([10**6]), np.array([len(m)])), 1, SPECIAL)
    reducer.begin(page)
    reducer.add(page, 0, m, m, None)
    return state


# -- the random sample: a function of the seed and the numbers of the sequences, and nothing else --------------------

MANY = [1 + 7 * i % 23 for i in range(300)]
EITHER = (5, 11)


@pytest.mark.parametrize("unit", [1, 7, 64])
def test_the_size_of_units_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: int) -> None:
    """Shards and a single machine would draw different samples."""
    corpus = packed(MANY, tmp_path / "corpus")
    whole = choose(Sequences(corpus, 10, 0), EITHER, 3, 20, 15)
    monkeypatch.setattr(batches, "UNIT", unit)
    pieces = Sequences(corpus, 10, 0)
    assert len(pieces.units) > 1
    found = choose(pieces, EITHER, 3, 20, 15)
    for name in ("sequences", "draws", "places", "inputs"):
        assert (getattr(found, name) == getattr(whole, name)).all()
    assert len(whole.sequences) == 20
    assert len(whole.draws) == len(whole.places) == 15
    assert (np.diff(whole.sequences) > 0).all()
    assert (np.diff(whole.draws) > 0).all()


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75]), max_size=30), st.integers(1, 6), st.integers(1, 10))
def test_the_lowest_are_the_same_in_any_parts(priorities: list[float], k: int, part: int) -> None:
    """A reservoir that depends on the order of reading; ties go to the lower number."""
    values, numbers = np.array(priorities), np.arange(len(priorities))
    best = sorted(range(len(values)), key=lambda i: (values[i], i))[:k]
    for starts in (range(0, len(values), part), reversed(range(0, len(values), part))):
        lowest = Lowest(k)
        for start in starts:
            lowest.offer(values[start : start + part], numbers[start : start + part])
        assert lowest.numbers().tolist() == sorted(best)


def test_inputs_are_kept_at_content_in_random_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pads, BOS or special tokens among them, or the first of the text alone where there are more than are kept."""
    sequences = Sequences(packed(MANY, tmp_path / "corpus"), 10, 0)
    whole = choose(sequences, EITHER, 3, 20, 15)
    found = whole.inputs.tolist()
    expected = [
        place_of(int(number), at)
        for number in whole.sequences
        for at, token in enumerate(sequences.sequence_tokens(int(number)).tolist())
        if at > 0 and token not in EITHER
    ]
    assert sorted(found) == expected != found
    assert choose(sequences, EITHER, 4, 20, 15).inputs.tolist() != found
    monkeypatch.setattr(reduction, "INPUTS", 30)
    assert choose(sequences, EITHER, 3, 20, 15).inputs.tolist() == found[:30]


def test_draws_are_weighted_by_content(tmp_path: Path) -> None:
    """Random positions would come from short sequences too often; BOS is none of the tokens that count."""
    lengths = np.array([1, 2, 3, 6])
    whole = Sequences(packed(lengths, tmp_path / "corpus"), 10, 0)
    drawn = np.array([choose(whole, (), seed, 1, 1).draws[0] for seed in range(360)])
    expected = 360 * lengths / lengths.sum()
    assert ((np.bincount(drawn, minlength=4) - expected) ** 2 / expected).sum() < 16.3  # 3 degrees of freedom


def test_random_numbers_are_uniform_and_streams_independent() -> None:
    numbers = np.arange(20_000)
    streams = [uniforms(seed, stream, numbers) for seed in (0, 1, 12345) for stream in (SEQUENCES, DRAWS)]
    for values in streams:
        assert values.min() >= 0
        assert values.max() < 1
        counts = np.histogram(values, 50, (0, 1))[0]
        assert ((counts - 400) ** 2 / 400).sum() < 86  # 49 degrees of freedom
    correlations = np.corrcoef(streams) - np.eye(len(streams))
    assert np.abs(correlations).max() < 0.03
    assert not np.isin(streams[0][:100], streams[1]).any()
