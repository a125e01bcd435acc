"""Packing: the tokenizer's tokens, made once, whole or not at all; what is read is what was written."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError, OutOfRangeError
from ffnmem.core.folders import claimed
from ffnmem.corpus import Document, Problem, open_corpus, open_packed, pack, packing, tokenizing
from ffnmem.corpus import packed as module
from ffnmem.corpus.packed import FILES, FOLDER
from ffnmem.corpus.packing import corpus_hash
from ffnmem.corpus.tokenizing import Encoder, cut, pieces, tokenizer_hash

from ..helpers import BOS, REPOSITORY, build_tokenizer, refuses
from .packs import Counting, packed, tokens_of

TEXTS = ["The city of Paris", "Rome", "The Eiffel Tower\nis in Paris"]


# -- tokens ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real() -> Any:
    return transformers.AutoTokenizer.from_pretrained(REPOSITORY / "data" / "atlas")


def whole(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


@given(st.lists(st.text(alphabet="ab \n\tß🙂.", max_size=80), max_size=8), st.integers(3, 40), st.integers(1, 60))
def test_pieces_and_batches_change_nothing_but_a_token_at_a_forced_cut(
    texts: list[str], limit: int, batch: int
) -> None:
    """Whatever the sizes of pieces and batches, documents come back whole and in order."""
    tokenizer = build_tokenizer()
    documents = [Document(text, "x", number) for number, text in enumerate(texts)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizing, "BATCH", batch)
        patch.setattr(tokenizing, "BATCH_TEXTS", 3)
        found = [pair for some in Encoder(tokenizer).encode(documents) for pair in some]
    assert [document for document, _ in found] == documents
    assert [ids.tolist() for _, ids in found] == [whole(tokenizer, text) for text in texts]
    for text in texts:
        parts = list(pieces(text, limit))
        assert "".join(part for part, _ in parts) == text
        assert [last for _, last in parts] == [False] * (len(parts) - 1) + [True]
        assert all(0 < len(part) <= limit for part, _ in parts[:-1])


@pytest.mark.parametrize(
    ("text", "start", "stop", "place"),
    [
        ("one two three", 0, 9, 7),
        ("one two three", 0, 7, 7),
        ("one  two", 0, 5, 4),
        ("one\ntwo", 0, 5, 3),
        ("onetwo", 0, 4, 4),
        ("aaaa bbbb cccc", 5, 8, 8),
    ],
)
def test_where_a_text_is_cut(text: str, start: int, stop: int, place: int) -> None:
    """Before a single space between words; else before other whitespace; else anywhere, and never at the start."""
    assert cut(text, start, stop) == place
    assert list(pieces(text, len(text))) == [(text, True)]


def test_special_names_are_ordinary_text(tiny: fm.Model, real: Any, tmp_path: Path) -> None:
    """The name of a special token in a web page would end the model's document there."""
    texts = [*TEXTS, f"one{BOS}two", f"three{BOS}"]
    for number, tokenizer in enumerate((tiny.tokenizer, real)):
        found = pack(texts, tokenizer, tmp_path / str(number))
        assert [tokenizer.decode(found.document(i).tolist()) for i in range(5)] == texts
        assert found.token_counts[tokenizer.bos_token_id] == 0
        assert found.problems == (Problem("special_text", 2, "list:4"),)


def test_the_tokenizer_stays_as_it_is_and_is_known_by_what_it_does(
    tiny: fm.Model, tokenizer: Any, tiny_folder: Path, real: Any
) -> None:
    """Its owner's truncation must not cut documents, nor be switched off for its owner; its hash is equal wherever it
    was read from, and another one for one token more."""
    mine, other = build_tokenizer(), build_tokenizer()
    mine("x", truncation=True, max_length=2)
    before = mine.backend_tokenizer.to_str()
    encoder = Encoder(mine)
    assert len(encoder.ids(["a long text"])[0]) > 2
    assert mine.backend_tokenizer.to_str() == before != tokenizer.backend_tokenizer.to_str()
    assert encoder.size == max(mine.get_vocab().values()) + 1
    for size, dtype in ((65_536, "<u2"), (65_537, "<u4")):
        encoder.size = size
        assert encoder.dtype == np.dtype(dtype)
    read = transformers.AutoTokenizer.from_pretrained(tiny_folder)
    assert len({tokenizer_hash(each) for each in (tiny, tokenizer, mine, read)}) == 1
    other.add_tokens(["Colosseum"])
    assert len({tokenizer_hash(each) for each in (tokenizer, other, real, Counting())}) == 4


# -- a pack ----------------------------------------------------------------------------------------------------------

LENGTHS = [5, 0, 12, 3, 980]
FLAT = [token for length in LENGTHS for token in tokens_of(length)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """1,000 tokens in two bytes each, with a checksum every 64 bytes."""
    monkeypatch.setattr(module, "CHUNK", 64)
    return packed(LENGTHS, tmp_path / "pack").folder


def test_what_it_holds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Little endian on every machine; a part is the same before and after its chunks were checked, which is once."""
    found = open_packed(folder)
    assert (found.n_documents, found.n_tokens, found.vocab) == (5, 1000, 100)
    for start, stop in 2 * [(0, 0), (0, 1), (31, 32), (31, 33), (5, 200), (960, 1000), (1000, 1000)]:
        part = found.read(start, stop)
        assert (part.dtype, part.tolist()) == (np.dtype("<u2"), FLAT[start:stop])
    assert found.tokens.tolist() == found.read(0, 1000).tolist() == FLAT
    assert found.documents.tolist() == found.offsets(0, 6).tolist() == [0, 5, 5, 17, 20, 1000]
    assert found.token_counts.tolist() == np.bincount(FLAT, minlength=100).tolist()
    assert [found.document(i).tolist() for i in range(-1, 4)] == [tokens_of(LENGTHS[i]) for i in range(-1, 4)]
    assert found.problems == (Problem("no_tokens", 1, "list:2"),)
    found.verify()
    packing.link_pack(folder, folder.parent / "linked")
    for name in FILES:
        assert (folder.parent / "linked" / name).samefile(folder / name)
    assert (folder / "tokens.bin").read_bytes()[:4] == bytes([35, 0, 36, 0])
    assert (folder / "documents.bin").read_bytes()[8:16] == bytes([5, 0, 0, 0, 0, 0, 0, 0])
    with monkeypatch.context() as patch:
        patch.setattr("zlib.crc32", lambda data: pytest.fail("checked again"))
        assert found.read(6, 150).tolist() == FLAT[6:150]
    path = folder / "tokens.bin"
    data = bytearray(path.read_bytes())
    data[700] ^= 4  # in chunk 10, bytes 640 to 704: tokens 320 to 351
    path.write_bytes(data)
    found = open_packed(folder)
    assert found.read(0, 320).tolist() == FLAT[:320]  # parts that are whole stay readable
    for read in (lambda: found.read(351, 352), lambda: found.read(0, 1000), found.verify):
        with refuses(FileError, OSError, str(path), "damaged", "640", "704"):
            read()


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
    assert open_packed(folder, found.tokenizer_hash).hash == found.hash
    with refuses(FileError, OSError, str(folder), "another tokenizer", found.tokenizer_hash, "0123"):
        open_packed(folder, "0123")


# -- made once, whole or not at all ----------------------------------------------------------------------------------


@given(st.lists(st.text(alphabet="ab ", min_size=1, max_size=4).filter(str.strip), min_size=2, max_size=5))
def test_the_hash_keeps_documents_apart(texts: list[str]) -> None:
    """Two documents are not their concatenation, and order counts."""
    documents = [Document(text, "x", 1) for text in texts]
    joined = [Document("".join(texts), "y", 9)]
    assert corpus_hash(documents) == corpus_hash(iter(documents)) != corpus_hash(joined)
    assert (corpus_hash(documents) == corpus_hash(documents[::-1])) == (texts == texts[::-1])


def test_a_complete_pack_is_kept(tiny: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same file is not even parsed; the same texts from elsewhere are not tokenised."""
    file, folder = tmp_path / "a.txt", tmp_path / "pack"
    file.write_text("\n\n".join(TEXTS))
    first = pack(file, tiny, folder)
    assert first.document(0).tolist() == tiny.tokenize(TEXTS[0], prepend_bos=False)
    assert first.hash == corpus_hash(open_corpus(TEXTS))
    assert (first.model, first.source, first.problems) == (tiny.name, "a.txt", ())
    assert {path.name for path in folder.iterdir()} == set(FILES)
    lines = open_corpus(file, documents="line")  # the same bytes are other documents
    assert pack(lines, tiny, tmp_path / "lines").hash != first.hash
    assert lines.stamp() != first.stamp == open_corpus(file).stamp() is not None
    assert open_corpus(TEXTS).stamp() is None
    monkeypatch.setattr(tokenizing.Encoder, "ids", lambda self, texts: pytest.fail("tokenised again"))
    with monkeypatch.context() as patch:
        patch.setattr(packing, "corpus_hash", lambda documents: pytest.fail("parsed again"))
        assert pack(str(file), tiny, folder).hash == first.hash
        file.rename(tmp_path / "renamed.txt")
        assert pack(tmp_path / "renamed.txt", tiny, folder).hash == first.hash
    other = tmp_path / "b.jsonl"
    other.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    for source in (TEXTS, other):
        assert pack(source, tiny, folder).hash == first.hash
    for source in (folder, first):
        assert pack(source, tiny, tmp_path / "elsewhere").folder == first.folder
    assert not (tmp_path / "elsewhere").exists()
    with refuses(FileError, OSError, str(folder), "another tokenizer"):
        pack(folder, Counting(), tmp_path / "elsewhere")


def test_another_pack_is_replaced(tiny: fm.Model, tmp_path: Path) -> None:
    """Of other texts, of another tokenizer, and one that is broken; texts that come once are packed each time."""
    folder = tmp_path / "pack"
    first = pack(iter(TEXTS), tiny, folder)
    assert pack(iter(TEXTS), tiny, folder).hash == first.hash
    corpus = open_corpus(iter([*TEXTS, "more"]))
    assert pack(corpus, tiny, folder).hash != first.hash
    assert open_packed(folder).n_documents == 4
    with refuses(InputError, ValueError, "once"):
        pack(corpus, tiny, folder)
    other = pack(["7", "3"], Counting(), folder)
    assert other.tokenizer_hash != first.tokenizer_hash
    assert (other.n_tokens, other.model) == (10, "counting")
    for name in FILES:
        path = folder / name
        path.write_bytes(path.read_bytes()[:-1])
        pack(["7", "3"], Counting(), folder).verify()


def test_a_stopped_pack_leaves_what_was_there(tiny: fm.Model, tmp_path: Path) -> None:
    """Nothing, or the older one; a broken connection behind an iterable is no failure to write."""

    def broken(error: type[BaseException]) -> Iterator[str]:
        for i in range(2500):  # enough for several batches
            yield f"text {i}"
        raise error

    folder = tmp_path / "pack"
    for again in (False, True):
        if again:
            pack(TEXTS, tiny, folder)
        for error in (KeyboardInterrupt, ConnectionError):
            with pytest.raises(error):
                pack(broken(error), tiny, folder)
            assert folder.exists() == again
    open_packed(folder).verify()


def test_a_full_disk(tiny: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is cut, however little is missing, would have a checksum of what is left of it."""
    resource = pytest.importorskip("resource", reason="this system limits no files")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def room_again(*_: Any) -> dict[str, Any]:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        return {}

    monkeypatch.setattr(packing, "file_record", room_again)  # so that the description fits
    with claimed(tmp_path / "pack", FOLDER):
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
            with refuses(FileError, OSError, "cannot write", "pack"):
                packing.write_pack(tmp_path / "pack", open_corpus(TEXTS), Encoder(tiny.tokenizer), {}, None)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_progress_and_flat_memory(tiny: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times more documents take no more memory."""
    monkeypatch.setattr(tokenizing, "BATCH_TEXTS", 100)
    told: list[tuple[str, int, int]] = []

    def peak(n: int) -> int:
        told.clear()
        tracemalloc.start()
        texts = (f"text {i} of the city" for i in range(n))
        found = pack(texts, tiny, tmp_path / f"pack{n}", progress=lambda *now: told.append(now))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert [documents for _, documents, _ in told] == list(range(100, n + 1, 100))
        assert told[-1] == ("pack", found.n_documents, found.n_tokens)
        return most

    peak(100)  # what is imported and kept on first use
    assert peak(4_000) < 1.1 * peak(400)


def test_nothing_to_pack_or_nowhere(tiny: fm.Model, tmp_path: Path) -> None:
    with refuses(FileError, OSError, "holds no text", "2 × no text but", "list:1", "1 × a text"):
        pack(["", " ", 3], tiny, tmp_path / "pack")
    assert not (tmp_path / "pack").exists()
    (tmp_path / "empty").mkdir()
    with refuses(FileError, OSError, "list", "holds no text"):
        pack([], tiny, tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []  # not ours to remove
    file = tmp_path / "file"
    file.write_text("x")
    with refuses(FileError, OSError, str(file), "folder"):
        pack(TEXTS, tiny, file)
    assert pack(TEXTS, tiny, tmp_path / "new" / "pack").folder.is_dir()
