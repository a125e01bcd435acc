"""A packed corpus: what is read is what was written, or one clear error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffnmem.core.errors import FileError, OutOfRangeError
from ffnmem.corpus import Packed, open_packed
from ffnmem.corpus import packed as module

from ..helpers import refuses
from .packs import packed, tokens_of

LENGTHS = [5, 0, 12, 3, 980]
FLAT = [token for length in LENGTHS for token in tokens_of(length)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """1,000 tokens in two bytes each, with a checksum every 64 bytes."""
    monkeypatch.setattr(module, "CHUNK", 64)
    return packed(LENGTHS, tmp_path / "pack").folder


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def test_what_it_holds(folder: Path) -> None:
    found = open_packed(folder)
    assert (found.n_documents, found.n_tokens, found.vocab) == (5, 1000, 100)
    assert found.tokens.tolist() == found.read(0, 1000).tolist() == FLAT
    assert found.documents.tolist() == found.offsets(0, 6).tolist() == [0, 5, 5, 17, 20, 1000]
    assert found.token_counts.tolist() == np.bincount(FLAT, minlength=100).tolist()
    assert [found.document(i).tolist() for i in range(-1, 4)] == [tokens_of(LENGTHS[i]) for i in range(-1, 4)]
    assert [p.kind for p in found.problems] == ["no_tokens"]
    found.verify()


def test_any_part_can_be_read(folder: Path) -> None:
    """Before and after its chunks were checked."""
    found = open_packed(folder)
    for start, stop in 2 * [(0, 0), (0, 1), (31, 32), (31, 33), (5, 200), (960, 1000), (1000, 1000)]:
        part = found.read(start, stop)
        assert (part.dtype, part.tolist()) == (np.dtype("<u2"), FLAT[start:stop])


def test_little_endian_everywhere(folder: Path) -> None:
    """A pack moves between machines."""
    assert (folder / "tokens.bin").read_bytes()[:4] == bytes([35, 0, 36, 0])
    assert (folder / "documents.bin").read_bytes()[8:16] == bytes([5, 0, 0, 0, 0, 0, 0, 0])


def test_a_flipped_bit_is_found_where_it_is(folder: Path) -> None:
    """Parts that are whole stay readable; the part that is not names its file and place."""
    path = folder / "tokens.bin"
    flip(path, 700)  # in chunk 10, bytes 640 to 704: tokens 320 to 351
    found = open_packed(folder)
    assert found.read(0, 320).tolist() == FLAT[:320]
    assert found.read(352, 1000).tolist() == FLAT[352:]
    for read in (lambda: found.read(351, 352), lambda: found.read(0, 1000), found.verify):
        with refuses(FileError, OSError, str(path), "damaged", "640", "704"):
            read()


def test_a_chunk_is_checked_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan reads the same chunk many times."""
    found = open_packed(folder)
    found.read(5, 200)
    monkeypatch.setattr("zlib.crc32", lambda data: pytest.fail("checked again"))
    assert found.read(6, 150).tolist() == FLAT[6:150]


def test_what_is_not_there(folder: Path) -> None:
    found = open_packed(folder)
    refused: dict[str, Callable[[], Any]] = {
        "document 5 0 to 4": lambda: found.document(5),
        "-1 to 3": lambda: found.read(-1, 3),
        "5 to 4": lambda: found.read(5, 4),
        "0 to 1001 0 to 1000": lambda: found.read(0, 1001),
    }
    for named, read in refused.items():
        with refuses(OutOfRangeError, IndexError, *named.split(" ")):
            read()
    with refuses(FileError, OSError, "nowhere", "no folder"):
        open_packed(folder / "nowhere")
    assert isinstance(open_packed(folder, found.tokenizer_hash), Packed)
    with refuses(FileError, OSError, str(folder), "another tokenizer", found.tokenizer_hash, "0123"):
        open_packed(folder, "0123")
