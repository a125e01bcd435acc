"""States of a scan add up, in any order and grouping, and with nothing."""

from __future__ import annotations

import hypothesis
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.scanning.settings import ScanSettings
from ffnmem.scanning.state import NOWHERE, join_ranges, place_of, position_of, sequence_of
from ffnmem.scanning.state_file import Identity

from .states import HALF, difference, empty, merged, settings, shards

IDENTITY = Identity("tiny", "f00d", "70c3", "c0de", 5, "1.2.3")
CHOSEN = [settings(), settings(**HALF), settings(frequent=())]
seeds = st.integers(0, 10**6)
few = hypothesis.settings(max_examples=6)


@given(st.integers(0, 1 << 42), st.integers(0, (1 << 20) - 1))
def test_places(sequence: int, position: int) -> None:
    place = place_of(np.int64(sequence), np.int64(position))
    assert (sequence_of(place), position_of(place)) == (sequence, position)
    assert place < NOWHERE
    assert place < place_of(np.int64(sequence + 1), np.int64(0))


@few
@given(st.sampled_from(CHOSEN), seeds, st.randoms(use_true_random=False), st.booleans())
def test_merging_in_any_order_and_grouping(chosen: ScanSettings, seed: int, random: object, gated: bool) -> None:
    """Stores merged by different machines in different trees would differ, or a merge change its parts."""
    parts, again = shards(seed, 4, chosen, gated), shards(seed, 4, chosen, gated)
    left, right = merged(*parts), merged(parts[0], merged(parts[1], merged(parts[2], parts[3])))
    assert not any(difference(part, same) for part, same in zip(parts, again, strict=True))
    random.shuffle(parts)  # type: ignore[attr-defined]
    pairs = merged(merged(parts[0], parts[1]), merged(parts[2], parts[3]))
    assert difference(left, right) == difference(left, pairs) == []
    nothing = empty(chosen, gated)
    assert difference(merged(left, nothing), left) == difference(merged(nothing, left), left) == []
    assert difference(merged(nothing, nothing), nothing) == []


def test_a_range_has_no_negative_zero() -> None:
    """Which of −0 and 0 is the least depends on which came first, and with it the bytes of a store."""
    zero = np.array([[0.0], [-0.0]], np.float32)
    for a, b in ((zero, -zero), (-zero, zero), (zero, zero), (-zero, -zero)):
        assert join_ranges(a, b).tobytes() == np.zeros((2, 1), np.float32).tobytes()


def test_identities_differ_by_what_is_scanned() -> None:
    """Other weights or another text must not be merged; another name or version may."""
    assert IDENTITY.differences(Identity("other name", "f00d", "70c3", "c0de", 5, "9.9")) == []
    assert IDENTITY.differences(Identity("tiny", "beef", "70c4", "c0d3", 6, "1.2.3")) == [
        "model f00d and beef",
        "tokenizer 70c3 and 70c4",
        "corpus c0de and c0d3",
        "units 5 and 6",
    ]
