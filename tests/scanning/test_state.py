"""States of a scan add up: in any order, in any grouping, with nothing."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.scanning.settings import ScanSettings
from ffnmem.scanning.state import NOWHERE, ScanState, joined_range, place_of, position_of, sequence_of

from .states import HALF, difference, empty, settings, shards

chosen_settings = st.sampled_from([settings(), settings(**HALF), settings(frequent=())])
seeds = st.integers(0, 10**6)
few = hypothesis.settings(max_examples=6)


@given(st.integers(0, 1 << 42), st.integers(0, (1 << 20) - 1))
def test_places(sequence: int, position: int) -> None:
    place = place_of(np.int64(sequence), np.int64(position))
    assert (sequence_of(place), position_of(place)) == (sequence, position)
    assert place < NOWHERE
    assert place < place_of(np.int64(sequence + 1), np.int64(0))


@few
@given(chosen_settings, seeds, st.randoms(use_true_random=False), st.booleans())
def test_merging_in_any_order_and_grouping(chosen: ScanSettings, seed: int, random: object, gated: bool) -> None:
    """Stores merged by different machines in different trees would differ."""
    parts = shards(seed, 4, chosen, gated)
    left = parts[0].merged(parts[1]).merged(parts[2]).merged(parts[3])
    right = parts[0].merged(parts[1].merged(parts[2].merged(parts[3])))
    random.shuffle(parts)  # type: ignore[attr-defined]
    pairs = parts[0].merged(parts[1]).merged(parts[2].merged(parts[3]))
    assert difference(left, right) == []
    assert difference(left, pairs) == []


@few
@given(chosen_settings, seeds, st.booleans())
def test_a_state_that_has_seen_nothing_changes_nothing(chosen: ScanSettings, seed: int, gated: bool) -> None:
    (state,) = shards(seed, 1, chosen, gated)
    nothing = empty(chosen, gated)
    assert difference(state.merged(nothing), state) == []
    assert difference(nothing.merged(state), state) == []
    assert difference(nothing.merged(nothing), nothing) == []


@pytest.mark.parametrize("changes", [{}, HALF])
def test_the_merged_lists_are_the_best_of_all(changes: dict[str, object]) -> None:
    """A shard's winners would be lost, or come in the wrong order where they tie; exact values go with them."""
    parts = shards(1, 3, settings(**changes))
    whole = parts[0].merged(parts[1]).merged(parts[2])
    for index, layer in enumerate(whole.layers):
        for side, sign in (("high", 1.0), ("low", -1.0)):
            names = [side, f"{side}_at", *([f"{side}_exact", f"{side}_exact_at"] if changes else [])]
            for neuron in range(len(layer.high)):
                rows = [
                    row
                    for part in parts
                    for row in zip(*(getattr(part.layers[index], name)[neuron].tolist() for name in names), strict=True)
                    if row[1] != NOWHERE
                ]
                rows.sort(key=lambda row: (-sign * row[0], row[1]))
                found = zip(*(getattr(layer, name)[neuron].tolist() for name in names), strict=True)
                assert [row for row in found if row[1] != NOWHERE] == rows[: layer.high.shape[1]]


def test_counts_add_and_the_sample_fills_up() -> None:
    parts = shards(2, 3, settings())
    whole = parts[0].merged(parts[1]).merged(parts[2])
    assert whole.tokens == sum(part.tokens for part in parts)
    assert whole.n_sequences == 40
    assert whole.done.tolist() == [0, 1, 2]
    assert (whole.draw_positions >= 0).all()
    for index, layer in enumerate(whole.layers):
        assert not np.isnan(layer.sample_high).any()
        assert not np.isnan(layer.draw).any()
        assert (layer.counts == sum(part.layers[index].counts for part in parts)).all()
        assert (layer.histogram == sum(part.layers[index].histogram for part in parts)).all()


def test_merging_leaves_its_parts_alone() -> None:
    first, second = shards(3, 2, settings())
    again = shards(3, 2, settings())
    first.merged(second)
    assert difference(first, again[0]) == []
    assert difference(second, again[1]) == []


def test_a_range_has_no_negative_zero() -> None:
    """Which of −0 and 0 is the least depends on which came first, and with it the bytes of a store."""
    zero = np.array([[0.0], [-0.0]], np.float32)
    for a, b in ((zero, -zero), (-zero, zero), (zero, zero), (-zero, -zero)):
        assert joined_range(a, b).tobytes() == np.zeros((2, 1), np.float32).tobytes()


def test_an_empty_state_has_the_shapes_of_its_settings() -> None:
    for chosen, exact in ((settings(), 0), (settings(**HALF), 6)):
        state: ScanState = empty(chosen)
        for width, layer in zip((5, 3), state.layers, strict=True):
            assert layer.high.shape == layer.low.shape == (width, chosen.candidates)
            assert layer.high_exact.shape == (width, exact)
            assert layer.bucket_sums.shape == (5, width)
            assert layer.token_sums.shape == (2, width)
