"""A neuron's examples: bands of the sample, random positions, and what was kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.core.errors import InputError
from ffnmem.scanning.state_file import Identity, ScanProgress, StateFile, save_state
from ffnmem.scanning.tables import BANDS, COLUMNS, LayerView, banded, check_bands, drawn, example_frame, spread

from ..helpers import refuses
from .states import settings, shards

IDENTITY = Identity("tiny", "f00d", "70c3", "c0de", 2, "1.2.3")
SAMPLE = 40


def made(folder: Path, values: np.ndarray, seen: int) -> LayerView:
    """A layer in which neuron 1 has these coefficients in the sampled sequences, of which the first ``seen`` ran."""
    state = shards(0, 1, settings())[0]
    state.sequences = np.arange(len(values)) * 10
    state.layers = state.layers[:1]
    (layer,) = state.layers
    for side, sign in (("high", 1), ("low", -1)):
        filled = np.full((len(values), 5), np.nan, np.float32)
        at = np.full((len(values), 5), -1, np.int32)
        filled[:seen], at[:seen] = (sign * values[:seen])[:, None], np.arange(seen)[:, None]
        setattr(layer, f"sample_{side}", filled)
        setattr(layer, f"sample_{side}_at", at)
    state.draw_positions[:] = [4, -1, 9]
    layer.draw[:] = np.arange(15, dtype=np.float32).reshape(3, 5)
    save_state(folder / "state", state, IDENTITY, ScanProgress())
    return LayerView(StateFile(folder / "state"), 0)


@pytest.fixture
def view(tmp_path: Path) -> LayerView:
    return made(tmp_path, np.random.default_rng(0).permutation(SAMPLE).astype(np.float32), SAMPLE)


@pytest.mark.parametrize("extreme", ["max", "min"])
@pytest.mark.parametrize("bands", [BANDS, (0.0, 1.0), (0.0, 0.31, 0.32, 1.0)])
def test_bands_partition_the_sample(view: LayerView, extreme: str, bands: tuple[float, ...]) -> None:
    """A sequence in no band, or in two; a band that is not where its limits say."""
    rows = list(banded(view, 1, extreme, bands, SAMPLE))
    assert sorted(row[2] for row in rows) == [10 * i for i in range(SAMPLE)]
    limits = [(row[5], row[6]) for row in rows]
    assert limits == sorted(limits, reverse=True)
    sign = 1 if extreme == "max" else -1
    strength = [sign * row[1] for row in rows]
    assert strength == sorted(strength, reverse=True)
    for rank, value, sequence, position, name, low, high in rows:
        share = sign * value / SAMPLE  # the values are 0 to 39
        assert low <= share < high
        assert name == extreme
        assert position == sequence // 10
        assert rank >= 1


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


@pytest.mark.parametrize("k", [1, 2, 3])
def test_k_limits_every_band(view: LayerView, k: int) -> None:
    rows = pd.DataFrame(banded(view, 1, "max", BANDS, k))
    assert (rows.groupby(5).size() == k).all()
    assert (rows.groupby(5)[0].apply(list).apply(lambda ranks: ranks == list(range(1, k + 1)))).all()


def test_a_shard_leaves_out_what_it_has_not_seen(tmp_path: Path) -> None:
    """Unseen sequences would be shown with the coefficient NaN at position −1."""
    view = made(tmp_path, np.arange(20, dtype=np.float32), 7)
    rows = list(banded(view, 1, "max", BANDS, 99))
    assert sorted(row[2] for row in rows) == [0, 10, 20, 30, 40, 50, 60]
    found = list(drawn(view, 1, 10))
    assert [(row[0], row[1], row[3]) for row in found] == [(1, 1.0, 4), (2, 11.0, 9)]
    assert len(list(drawn(view, 1, 1))) == 1


def test_a_shard_that_has_seen_nothing(tmp_path: Path) -> None:
    view = made(tmp_path, np.arange(20, dtype=np.float32), 0)
    assert list(banded(view, 1, "min", BANDS, 3)) == []


def test_ties_come_in_the_order_of_the_text(tmp_path: Path) -> None:
    view = made(tmp_path, np.zeros(8, np.float32), 8)
    assert [row[2] for row in banded(view, 1, "max", (0.0, 0.5, 1.0), 9)] == [70, 60, 50, 40, 30, 20, 10, 0]


@pytest.mark.parametrize(
    "bands",
    [(), (0.0,), (0.0, 0.5), (0.5, 1.0), (0.0, 0.5, 0.5, 1.0), (0.0, 0.9, 0.1, 1.0), (0.0, 2.0, 1.0), (0, np.nan, 1)],
)
def test_refuses_bands_that_do_not_ascend(bands: tuple[float, ...]) -> None:
    with refuses(InputError, ValueError, "bands must ascend from 0 to 1", str(tuple(float(band) for band in bands))):
        check_bands(bands)


def test_whole_numbers_are_bands_too() -> None:
    assert check_bands([0, 1]) == (0.0, 1.0)


def kept() -> pd.DataFrame:
    ranks = [1, 2, 3, 1, 2, 3]
    return pd.DataFrame(
        {
            "kind": ["top"] * 3 + ["bottom"] * 3,
            "rank": ranks,
            "activation": [9.0, 8.0, 7.0, -3.0, -2.0, -1.0],
            "sequence": [1, 2, 3, 4, 5, 6],
            "position": ranks,
        }
    )


def test_example_frame(view: LayerView) -> None:
    """Kinds in the order asked for, each with its own limit, types that do not change with what is there."""
    frame = example_frame(
        view, settings(), (0, 1), kept().to_dict("list"), ["random", "bottom", "top", "quantile"], None, BANDS
    )
    assert list(frame.columns) == list(COLUMNS)
    assert list(dict.fromkeys(frame["kind"])) == ["random", "bottom", "top", "quantile"]
    assert frame["kind"].value_counts().to_dict() == {"quantile": 30, "top": 3, "bottom": 3, "random": 2}
    assert set(frame.loc[frame["kind"] == "quantile", "extreme"]) == {"max", "min"}
    assert frame.loc[frame["kind"] == "bottom", "coefficient"].tolist() == [-3.0, -2.0, -1.0]
    others = frame[frame["kind"] != "quantile"]
    assert others[["band_low", "band_high"]].isna().all(axis=None)
    fewer = example_frame(view, settings(), (0, 1), kept().to_dict("list"), ["top", "quantile"], 2, (0.0, 1.0))
    assert fewer["kind"].tolist() == ["top"] * 2 + ["quantile"] * 4
    more = example_frame(view, settings(), (0, 1), kept().to_dict("list"), ["top"], 99, BANDS)
    assert len(more) == 3
    nothing = example_frame(view, settings(), (0, 1), kept().iloc[:0].to_dict("list"), ["top"], None, BANDS)
    assert nothing.dtypes.drop(["kind", "extreme"]).equals(frame.dtypes.drop(["kind", "extreme"]))
