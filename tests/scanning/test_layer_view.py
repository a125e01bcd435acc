"""One layer of a stored state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ffnmem.core.errors import FileError
from ffnmem.scanning.state import ScanState
from ffnmem.scanning.state_file import Identity, ScanProgress, StateFile, save_state
from ffnmem.scanning.statistics import means
from ffnmem.scanning.tables import LayerView

from ..helpers import refuses
from .states import settings, shards

IDENTITY = Identity("tiny", "f00d", "70c3", "c0de", 2, "1.2.3")


@pytest.fixture
def state() -> ScanState:
    return shards(5, 1, settings())[0]


@pytest.fixture
def view(state: ScanState, tmp_path: Path) -> LayerView:
    save_state(tmp_path / "state", state, IDENTITY, ScanProgress())
    return LayerView(StateFile(tmp_path / "state"), 1)


def test_gives_the_layers_own_arrays(view: LayerView, state: ScanState) -> None:
    """Another layer's numbers would be shown under this one's name."""
    layer = state.layers[1]
    assert (view.histogram == layer.histogram).all()
    assert (view.token_sums == layer.token_sums).all()
    assert (view.bucket_sums == layer.bucket_sums).all()
    for name, side in (("max", "high"), ("min", "low")):
        assert (view.sample[name][0] == getattr(layer, f"sample_{side}")).all()
        assert (view.sample[name][1] == getattr(layer, f"sample_{side}_at")).all()
    for found, expected in zip(view.draws, (layer.draw, state.draws, state.draw_positions), strict=True):
        assert (found == expected).all()
    assert (view.sample_sequences == state.sequences).all()
    assert (view.token_counts == state.token_counts).all()


def test_token_means(view: LayerView, state: ScanState) -> None:
    """Each neuron's own, largest first, beside the token that they are of."""
    count = len(state.token_counts)
    found = view.by_token(np.arange(count) + 100, [str(i) for i in range(count)], 1, 3)
    assert [int(text) + 100 for text in found["token"]] == found["token_id"].tolist()
    assert (state.token_counts[found["token_id"] - 100] == found["count"]).all()
    for at, neuron in enumerate((1, 2)):
        expected = means(state.layers[1].token_sums[:, neuron], state.token_counts)
        mine = slice(at * count, (at + 1) * count)
        assert found["mean"][mine].tolist() == expected[found["token_id"][mine] - 100].tolist()
        assert found["mean"][mine].tolist() == sorted(expected.tolist(), reverse=True)


def test_by_position_leaves_out_what_did_not_occur(view: LayerView, state: ScanState) -> None:
    """Position 0 is BOS: a row without a count would look like a finding."""
    state.bucket_counts[[0, 3]] = 0
    state.bucket_counts[[1, 2, 4]] = [4, 5, 6]
    save_state(view.file.path, state, IDENTITY, ScanProgress())
    found = LayerView(StateFile(view.file.path), 1).by_position(16, 1, 3)
    assert found["positions"].tolist() == ["1", "2–3", "8–15"] * 2
    assert found["count"].tolist() == [4, 5, 6] * 2
    sums = state.layers[1].bucket_sums[[1, 2, 4], 1:3] / 2.0**25
    assert found["mean"].tolist() == (sums / np.array([[4], [5], [6]])).T.ravel().tolist()


def test_an_array_is_read_once(view: LayerView) -> None:
    """Every question would read and check the file anew."""
    assert view.histogram is view.histogram
    assert view.sample is view.sample


def test_a_damaged_array_is_refused_when_it_is_asked_for(view: LayerView) -> None:
    data = bytearray(view.file.path.read_bytes())
    data[-1] ^= 1
    view.file.path.write_bytes(data)
    damaged = LayerView(StateFile(view.file.path), 1)
    with refuses(FileError, OSError, str(view.file.path)):
        damaged.file.state()
