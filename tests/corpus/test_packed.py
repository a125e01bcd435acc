"""Opening a packed corpus: everything that can be wrong with it is one clear error."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ffnmem.core.errors import FileError, OutOfRangeError
from ffnmem.corpus import open_packed
from ffnmem.corpus.packed import is_packed

from ..helpers import refuses
from .packs import packed, tokens_of

LENGTHS = [5, 0, 12, 3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return packed(LENGTHS, tmp_path / "pack").folder


def test_what_it_holds(folder: Path) -> None:
    found = open_packed(folder)
    flat = [token for length in LENGTHS for token in tokens_of(length)]
    assert (found.n_documents, found.n_tokens, found.vocab) == (4, 20, 100)
    assert found.tokens.tolist() == found.read(0, 20).tolist() == flat
    assert found.documents.tolist() == found.offsets(0, 5).tolist() == [0, 5, 5, 17, 20]
    assert found.token_counts.tolist() == np.bincount(flat, minlength=100).tolist()
    assert [found.document(i).tolist() for i in range(4)] == [tokens_of(length) for length in LENGTHS]
    assert found.document(-1).tolist() == tokens_of(3)
    assert [p.kind for p in found.problems] == ["no_tokens"]
    assert is_packed(folder)
    found.verify()
    with refuses(OutOfRangeError, IndexError, "document 4", "0 to 3"):
        found.document(4)


def test_little_endian_everywhere(folder: Path) -> None:
    """A pack moves between machines."""
    assert (folder / "tokens.bin").read_bytes()[:4] == bytes([35, 0, 36, 0])
    assert (folder / "documents.bin").read_bytes()[8:16] == bytes([5, 0, 0, 0, 0, 0, 0, 0])


def test_another_tokenizer(folder: Path) -> None:
    mine = open_packed(folder).tokenizer_hash
    assert open_packed(folder, mine).n_documents == 4
    with refuses(FileError, OSError, str(folder), "another tokenizer", mine, "0123"):
        open_packed(folder, "0123")


@pytest.mark.parametrize("name", ["tokens.bin", "documents.bin", "counts.bin"])
def test_truncated_or_missing(folder: Path, name: str) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[:-1])
    with refuses(FileError, OSError, str(path), "bytes"):
        open_packed(folder)
    path.unlink()
    with refuses(FileError, OSError, str(path)):
        open_packed(folder)


@pytest.mark.parametrize("name", ["tokens.bin", "documents.bin", "counts.bin"])
def test_a_flipped_bit(folder: Path, name: str) -> None:
    path = folder / name
    data = bytearray(path.read_bytes())
    data[9] ^= 64
    path.write_bytes(data)
    found = open_packed(folder)
    reads = {
        "tokens.bin": lambda: found.read(0, 1),
        "documents.bin": lambda: found.offsets(0, 1),
        "counts.bin": lambda: found.token_counts,
    }
    for read in (reads[name], found.verify):
        with refuses(FileError, OSError, str(path), "damaged"):
            read()


def test_a_newer_schema(folder: Path) -> None:
    """It may have any shape, so it is not looked into further."""
    (folder / "corpus.json").write_text(json.dumps({"kind": "ffnmem corpus", "schema": 2}))
    with refuses(FileError, OSError, "corpus.json", "schema 2", "up to 1"):
        open_packed(folder)


@pytest.mark.parametrize("at", [60, 200, -20])
def test_a_damaged_description(folder: Path, at: int) -> None:
    path = folder / "corpus.json"
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with refuses(FileError, OSError, str(path)):
        open_packed(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "other"}', "[" * 100_000, '{"kind": "ffnmem corpus"}'])
def test_no_description(folder: Path, text: str) -> None:
    (folder / "corpus.json").write_text(text)
    with refuses(FileError, OSError, "corpus.json"):
        open_packed(folder)


def test_no_pack_at_all(tmp_path: Path) -> None:
    with refuses(FileError, OSError, str(tmp_path), "no finished packed corpus", "ffnmem pack"):
        open_packed(tmp_path)
    with refuses(FileError, OSError, "nowhere", "no folder"):
        open_packed(tmp_path / "nowhere")
    assert not is_packed(tmp_path)
