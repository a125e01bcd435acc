"""A neuron's examples: bands of the sample, random positions, and what was kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.core.errors import InputError
from ffnmem.scanning.state_file import Identity, ScanProgress, StateFile, save_state
from ffnmem.scanning.tables import BANDS, COLUMNS, check_bands, choose_by_band, example_frame, example_rows, spread

from ..helpers import refuses
from .states import settings, shards

SAMPLE = 40
SHUFFLED = np.random.default_rng(0).permutation(SAMPLE).astype(np.float32)


@pytest.mark.parametrize("bands", [BANDS, (0.0, 1.0), (0.0, 0.31, 0.32, 1.0)])
def test_bands_partition_the_sample(bands: tuple[float, ...]) -> None:
    """A sequence in no band, or in two; a band that is not where its limits say."""
    rows = list(choose_by_band(SHUFFLED, bands, SAMPLE))
    assert sorted(slot for _, slot, _, _ in rows) == list(range(SAMPLE))
    assert [SHUFFLED[slot] for _, slot, _, _ in rows] == sorted(SHUFFLED, reverse=True)
    for _, slot, low, high in rows:
        assert low <= SHUFFLED[slot] / SAMPLE < high  # the values are 0 to 39


@pytest.mark.parametrize("k", [1, 2, 3])
def test_k_limits_every_band(k: int) -> None:
    rows = list(choose_by_band(SHUFFLED, BANDS, k))
    assert [rank for rank, *_ in rows] == list(range(1, k + 1)) * (len(BANDS) - 1)


def test_what_a_shard_has_not_seen_is_left_out_and_ties_come_in_order() -> None:
    """Unseen sequences would be shown with the coefficient NaN at position −1."""
    values = np.zeros(8, np.float32)
    assert [slot for _, slot, _, _ in choose_by_band(values, (0.0, 0.5, 1.0), 9)] == [7, 6, 5, 4, 3, 2, 1, 0]
    values[[0, 5]] = np.nan
    assert sorted(slot for _, slot, _, _ in choose_by_band(values, BANDS, 9)) == [1, 2, 3, 4, 6, 7]
    values[:] = np.nan
    assert list(choose_by_band(values, BANDS, 3)) == []


@given(st.integers(0, 40), st.integers(1, 50))
def test_spread(n: int, k: int) -> None:
    items = np.arange(n) * 3
    found = spread(items, k)
    assert len(found) == min(n, k)
    assert np.isin(found, items).all()
    assert (np.diff(found) > 0).all()
    if min(n, k) > 1:
        assert (found[0], found[-1]) == (items[0], items[-1])
        assert np.ptp(np.diff(found)) <= 3


@pytest.mark.parametrize(
    "bands",
    [(), (0.0,), (0.0, 0.5), (0.5, 1.0), (0.0, 0.5, 0.5, 1.0), (0.0, 0.9, 0.1, 1.0), (0.0, 2.0, 1.0), (0, np.nan, 1)],
)
def test_refuses_bands_that_do_not_ascend(bands: tuple[float, ...]) -> None:
    with refuses(InputError, ValueError, "bands must ascend from 0 to 1", str(tuple(float(band) for band in bands))):
        check_bands(bands)
    assert check_bands([0, 1]) == (0.0, 1.0)


KEPT = {
    "kind": ["top"] * 3 + ["bottom"] * 3,
    "rank": [1, 2, 3] * 2,
    "activation": [9.0, 8.0, 7.0, -3.0, -2.0, -1.0],
    "sequence": [1, 2, 3, 4, 5, 6],
    "position": [1, 2, 3] * 2,
}


def test_rows(tmp_path: Path) -> None:
    """Kinds in the order asked for, each with its own limit, types that do not change with what is there."""
    state = shards(0, 1, settings())[0]
    state.arrays["draw_positions"][:] = [4, -1, 9]
    save_state(tmp_path / "state", state, Identity("tiny", "f00d", "70c3", "c0de", 2, "1.2.3"), ScanProgress())
    file = StateFile(tmp_path / "state")

    def frame(most: dict[str, int | None], extremes: dict[str, list[object]] = KEPT, **more: object):  # type: ignore
        return example_frame(example_rows(file, file.layer(0), (0, 1), extremes, most, **more), False)

    every = frame(dict.fromkeys(("random", "bottom", "top", "quantile")))
    assert list(every.columns) == list(COLUMNS)
    assert list(dict.fromkeys(every["kind"])) == ["random", "bottom", "top", "quantile"]
    assert every["kind"].value_counts().to_dict() == {"quantile": 8, "top": 3, "bottom": 3, "random": 2}
    random = every[every["kind"] == "random"]
    assert random[["rank", "position"]].to_numpy().tolist() == [[1, 4], [2, 9]]
    assert random["coefficient"].tolist() == state.layers[0].draw[[0, 2], 1].tolist()
    for side, extreme in enumerate(("max", "min")):
        rows = every[every["extreme"] == extreme]
        slots = np.searchsorted(state.arrays["sequences"], rows["sequence"])
        assert rows["coefficient"].tolist() == state.layers[0].sample[side, slots, 1].tolist()
        assert rows["position"].tolist() == state.layers[0].sample_at[side, slots, 1].tolist()
        assert rows["coefficient"].is_monotonic_decreasing == (side == 0)
    assert every.loc[every["kind"] == "bottom", "coefficient"].tolist() == [-3.0, -2.0, -1.0]
    assert every.loc[every["kind"] != "quantile", ["band_low", "band_high"]].isna().all(axis=None)
    fewer = frame(dict.fromkeys(("top", "quantile"), 2), bands=(0.0, 1.0))
    assert fewer["kind"].tolist() == ["top"] * 2 + ["quantile"] * 4
    assert len(frame({"top": 99})) == 3
    nothing = frame({"top": None}, {name: [] for name in KEPT})
    assert nothing.dtypes.drop(["kind", "extreme"]).equals(every.dtypes.drop(["kind", "extreme"]))
