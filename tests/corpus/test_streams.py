"""Bytes of files: decompressed in a stream, and an error for what was cut off."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.core.errors import FileError
from ffnmem.corpus import readers
from ffnmem.corpus.readers import lines, opened, without_end

from ..helpers import refuses

DATA = b"".join(b"line %d of a text\n" % i for i in range(5000))


def compressed(name: str, data: bytes) -> bytes:
    if name.endswith(".gz"):
        return gzip.compress(data)
    return zstandard.compress(data) if name.endswith(".zst") else data


def read(path: Path) -> bytes:
    with opened(path) as stream:
        return stream.read()


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.zst", "a.txt.GZ", "a.txt.ZST"])
def test_round_trip(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(compressed(name.lower(), DATA))
    assert read(path) == DATA
    with opened(path) as stream:
        assert list(lines(stream, path)) == DATA.splitlines(keepends=True)


@pytest.mark.parametrize("name", ["a.gz", "a.zst"])
def test_several_members(tmp_path: Path, name: str) -> None:
    """Parallel compressors write many, and `cat` joins files."""
    path = tmp_path / name
    path.write_bytes(b"".join(compressed(name, part) for part in (DATA, b"", b"end")))
    assert read(path) == DATA + b"end"


@pytest.mark.parametrize("name", ["a.gz", "a.zst"])
@pytest.mark.parametrize("left", [5, 0.5, -1], ids=str)
def test_cut_off(tmp_path: Path, name: str, left: float) -> None:
    """A download that broke off would otherwise be a shorter corpus."""
    path = tmp_path / name
    data = compressed(name, DATA)
    path.write_bytes(data[: int(left * len(data)) if isinstance(left, float) else left])
    with refuses(FileError, OSError, str(path), "cut off"):
        read(path)


@pytest.mark.parametrize("name", ["a.gz", "a.zst"])
def test_damaged(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for data in (b"no compressed data", compressed(name, DATA) + b"garbage behind"):
        path.write_bytes(data)
        with refuses(FileError, OSError, str(path), "decompressed"):
            read(path)


def test_no_such_file(tmp_path: Path) -> None:
    with refuses(FileError, OSError, "none.txt", "No such file"):
        read(tmp_path / "none.txt")
    with refuses(FileError, OSError, str(tmp_path), "a folder"):
        read(tmp_path)


def test_errors_of_others_pass(tmp_path: Path) -> None:
    """A FileError from within says what it says."""
    path = tmp_path / "a.txt"
    path.write_bytes(DATA)
    with pytest.raises(FileError, match="mine"), opened(path):
        raise FileError("mine")


def test_decompression_is_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line of a file is there before its last byte is read."""
    path = tmp_path / "a.zst"
    whole = zstandard.compress(b"first\n" + bytes(range(256)) * 20_000)
    path.write_bytes(whole[:-100])
    monkeypatch.setattr(readers, "BLOCK", 1000)
    with opened(path) as stream:
        assert stream.readline() == b"first\n"


@given(st.lists(st.binary(max_size=8).filter(lambda b: b"\n" not in b and b"\r" not in b), min_size=1))
def test_line_ends(parts: list[bytes]) -> None:
    for end in (b"\n", b"\r\n"):
        found = list(lines(io.BufferedReader(io.BytesIO(end.join(parts))), Path("x")))  # type: ignore[type-var]
        if parts[0][:2] not in readers.UTF16 and not parts[0].startswith(readers.BOM):
            kept = parts if parts[-1] else parts[:-1]
            assert [without_end(line) for line in found] == kept


def test_byte_order_marks(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("one\ntwo".encode("utf-8-sig"))
    with opened(path) as stream:
        assert list(lines(stream, path)) == [b"one\n", b"two"]
    path.write_bytes("one\n".encode("utf-16"))
    with opened(path) as stream, refuses(FileError, OSError, str(path), "UTF-16", "UTF-8"):
        list(lines(stream, path))


def test_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk image that is called .txt must not fill the memory."""
    monkeypatch.setattr(readers, "LONGEST", 100)
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 100 + b"\n" + b"y" * 101)
    with opened(path) as stream, refuses(FileError, OSError, str(path), "line of more than"):
        list(lines(stream, path))
