"""Arrays on disk: what is read is what was written, or an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.core.errors import FileError, OutOfRangeError
from ffnmem.corpus import packed
from ffnmem.corpus.packed import ChunkedFile, ChunkedWriter

from ..helpers import refuses

VALUES = np.arange(1000, dtype=np.int64) % 251


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """VALUES in uint16 with a checksum every 64 bytes."""
    monkeypatch.setattr(packed, "CHUNK", 64)
    return written(tmp_path / "file.bin", [VALUES[:3], VALUES[3:3], VALUES[3:500], VALUES[500:]])


def written(path: Path, parts: list[np.ndarray], dtype: str = "<u2") -> tuple[Path, dict[str, Any]]:
    with path.open("wb") as file:
        writer = ChunkedWriter(file, np.dtype(dtype))
        for part in parts:
            writer.write(part)
        return path, writer.record()


@given(st.lists(st.integers(0, 200), max_size=6), st.sampled_from(["<u2", "<u4", "<i8"]))
def test_parts_do_not_matter(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], dtype: str) -> None:
    """The checksums are of the file, not of the writes."""
    folder = tmp_path_factory.mktemp("parts")
    values = np.arange(sum(sizes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "CHUNK", 64)
        one, record = written(folder / "one", [values], dtype)
        other, same = written(folder / "other", np.split(values, np.cumsum(sizes)), dtype)
    assert record == same
    assert one.read_bytes() == other.read_bytes() == values.astype(dtype).tobytes()
    file = ChunkedFile(one, record)
    assert file.read(0, len(file)).tolist() == values.tolist()
    file.verify()


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_any_part_can_be_read(tmp_path_factory: pytest.TempPathFactory, a: int, b: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "CHUNK", 64)
        file = ChunkedFile(*written(tmp_path_factory.mktemp("any") / "f", [VALUES]))
    start, stop = sorted((a, b))
    for _ in range(2):  # before and after its chunks were checked
        found = file.read(start, stop)
        assert found.dtype == np.dtype("<u2")
        assert found.tolist() == VALUES[start:stop].tolist()
    assert file.map.tolist() == VALUES.tolist()


def test_a_flipped_bit_is_found_where_it_is(small: tuple[Path, dict[str, Any]]) -> None:
    """Parts that are whole stay readable; the part that is not names its file and place."""
    path, record = small
    data = bytearray(path.read_bytes())
    data[700] ^= 4  # in chunk 10, bytes 640 to 704: values 320 to 351
    path.write_bytes(data)
    file = ChunkedFile(path, record)
    assert file.read(0, 320).tolist() == VALUES[:320].tolist()
    assert file.read(352, 1000).tolist() == VALUES[352:].tolist()
    for start, stop in ((320, 321), (351, 352), (0, 1000)):
        with refuses(FileError, OSError, str(path), "damaged", "640", "704"):
            file.read(start, stop)
    with refuses(FileError, OSError, "damaged", "640"):
        file.verify()


def test_a_chunk_is_checked_once(small: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan reads the same chunk many times."""
    file = ChunkedFile(*small)
    file.read(5, 200)
    monkeypatch.setattr("zlib.crc32", lambda data: pytest.fail("checked again"))
    assert file.read(6, 150).tolist() == VALUES[6:150].tolist()


@pytest.mark.parametrize("size", [0, 1999, 2001])
def test_another_size(small: tuple[Path, dict[str, Any]], size: int) -> None:
    path, record = small
    path.write_bytes((path.read_bytes() + b"\0")[:size])
    with refuses(FileError, OSError, str(path), f"{size:,} bytes", "2,000"):
        ChunkedFile(path, record)


def test_missing_or_cut_later(small: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    path, record = small
    with refuses(FileError, OSError, "none.bin", "is missing"):
        ChunkedFile(tmp_path / "none.bin", record)
    file = ChunkedFile(path, record)
    path.write_bytes(path.read_bytes()[:100])
    with refuses(FileError, OSError, str(path), "shorter"):
        file.read(0, 1000)
    path.unlink()
    with refuses(FileError, OSError, str(path)):
        file.read(0, 1000)


def test_checksums_that_do_not_fit(small: tuple[Path, dict[str, Any]]) -> None:
    path, record = small
    with refuses(FileError, OSError, str(path), "checksums"):
        ChunkedFile(path, {**record, "crc32": record["crc32"][:-1]})


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (5, 4), (0, 1001)])
def test_out_of_range(small: tuple[Path, dict[str, Any]], start: int, stop: int) -> None:
    with refuses(OutOfRangeError, IndexError, "0 to 1000"):
        ChunkedFile(*small).read(start, stop)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk() -> None:
    """Writing fails with one line that names the folder."""
    with Path("/dev/full").open("wb", buffering=0) as file:
        writer = ChunkedWriter(file, np.dtype("<u2"))
        with refuses(FileError, OSError, "/dev", "No space left"):
            writer.write(VALUES)
