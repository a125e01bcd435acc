"""A state on disk: what is read is what was written, or an error with the file's name."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from safetensors import SafetensorError

from ffnmem.core.errors import FileError
from ffnmem.scanning.settings import ScanSettings
from ffnmem.scanning.state import ScanState
from ffnmem.scanning.state_file import Identity, ScanProgress, StateFile, save_state

from ..helpers import refuses
from .states import HALF, difference, empty, settings, shards

IDENTITY = Identity("tiny", "f00d", "70c3", "c0de", 5, "1.2.3")
PROGRESS = ScanProgress(shard=(1, 3), batch=7, rescored=2, complete=False)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_state(tmp_path / "state.safetensors", shards(0, 1, settings())[0], IDENTITY, PROGRESS)
    return tmp_path / "state.safetensors"


@pytest.mark.parametrize("chosen", [settings(), settings(**HALF), settings(frequent=())])
def test_round_trip(tmp_path: Path, chosen: ScanSettings) -> None:
    """A resumed scan would go on from another state."""
    for number, state in enumerate([*shards(4, 2, chosen), empty(chosen)]):
        path = tmp_path / f"{number}.safetensors"
        save_state(path, state, IDENTITY, PROGRESS)
        file = StateFile(path)
        assert difference(file.state(), state) == []
        assert (file.identity, file.progress, file.settings) == (IDENTITY, PROGRESS, chosen)
        assert (file.array("0.high") == state.layers[0].high).all()
        save_state(tmp_path / "again", file.state(), IDENTITY, PROGRESS)
        assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_what_is_read_can_be_written_to(saved: Path) -> None:
    state = StateFile(saved).state()
    state.layers[0].counts += 1
    state.draw_positions[0] = 3


def read_all(path: Path) -> ScanState:
    return StateFile(path).state()


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.99])
def test_truncated(saved: Path, share: float) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data[: int(len(data) * share)])
    with refuses(FileError, OSError, str(saved)):
        read_all(saved)


def test_a_flipped_bit_anywhere(saved: Path) -> None:
    """Damage would pass for a result: in the header as in the numbers."""
    data = bytearray(saved.read_bytes())
    header = 8 + int.from_bytes(data[:8], "little")
    random = np.random.default_rng(0)
    places = [*range(0, 20), *range(20, header, 23), *random.integers(header, len(data), 60), len(data) - 1]
    for place in places:
        bit = 1 << int(random.integers(8))
        data[place] ^= bit
        saved.write_bytes(data)
        with refuses(FileError, OSError, str(saved)):
            read_all(saved)
        data[place] ^= bit


def rewritten(path: Path, **changes: Any) -> None:
    """The file with a changed header and a checksum that fits it."""
    with safetensors.safe_open(path, framework="numpy") as file:
        header = {**json.loads(file.metadata()["ffnmem"].partition(" ")[2]), **changes}
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    text = json.dumps(header)
    safetensors.numpy.save_file(arrays, path, {"ffnmem": f"{zlib.crc32(text.encode()):08x} {text}"})


def test_newer_schema_and_other_kinds(saved: Path, tmp_path: Path) -> None:
    rewritten(saved, schema=99)
    with refuses(FileError, OSError, str(saved), "schema 99", "up to 2", "newer"):
        StateFile(saved)
    rewritten(saved, kind="shopping list")
    with refuses(FileError, OSError, str(saved), "no scan state", "shopping list"):
        StateFile(saved)
    other = tmp_path / "weights.safetensors"
    safetensors.numpy.save_file({"a": np.zeros(3)}, other)
    with refuses(FileError, OSError, str(other), "no scan state"):
        StateFile(other)
    other.write_text("something else entirely, and long enough to look at")
    with refuses(FileError, OSError, str(other)):
        StateFile(other)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with refuses(FileError, FileError, "there is no", str(tmp_path / "nothing")):
        StateFile(tmp_path / "nothing")
    with refuses(FileError, OSError, str(tmp_path)):
        StateFile(tmp_path)
    with refuses(FileError, OSError, "cannot write", str(tmp_path / "none" / "state")):
        save_state(tmp_path / "none" / "state", empty(settings()), IDENTITY, PROGRESS)


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), SafetensorError("I/O error: disk full")])
def test_a_write_that_fails_leaves_the_old_file(
    saved: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """A full disk would take the last checkpoint with it."""
    before = saved.read_bytes()

    def fail(_arrays: object, path: Path, _metadata: object) -> None:
        path.write_bytes(b"half a file")
        raise failure

    monkeypatch.setattr(safetensors.numpy, "save_file", fail)
    with refuses(FileError, OSError, "cannot write", str(saved)):
        save_state(saved, empty(settings()), IDENTITY, PROGRESS)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_others_may_read_it(saved: Path, tmp_path: Path) -> None:
    """safetensors makes files for their owner alone, and a shared store could not be opened."""
    (tmp_path / "plain").touch()
    assert saved.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_identities_differ_by_what_is_scanned() -> None:
    """Other weights or another text must not be merged; another name or version may."""
    same = Identity("other name", "f00d", "70c3", "c0de", 5, "9.9")
    assert IDENTITY.differences(same) == []
    other = Identity("tiny", "beef", "70c4", "c0d3", 6, "1.2.3")
    assert IDENTITY.differences(other) == [
        "model f00d and beef",
        "tokenizer 70c3 and 70c4",
        "corpus c0de and c0d3",
        "units 5 and 6",
    ]
