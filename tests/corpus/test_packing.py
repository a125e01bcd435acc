"""Packing: the tokenizer's tokens, made once, whole or not at all."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError
from ffnmem.core.folders import claimed
from ffnmem.corpus import Document, Packed, Problem, open_corpus, open_packed, pack, packing, tokenizing
from ffnmem.corpus.packed import FILES, FOLDER
from ffnmem.corpus.packing import corpus_hash
from ffnmem.corpus.tokenizing import Encoder

from ..helpers import BOS, refuses
from .packs import Counting, packed

TEXTS = ["The city of Paris", "Rome", "The Eiffel Tower\nis in Paris"]


def no_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on nothing may be tokenised."""
    monkeypatch.setattr(tokenizing.Encoder, "ids", lambda self, texts: pytest.fail("tokenised again"))


def texts_of(found: Packed, model: fm.Model) -> list[str]:
    return [model.tokenizer.decode(found.document(i).tolist()) for i in range(found.n_documents)]


def test_tokens_are_the_tokenizers(tiny: fm.Model, tmp_path: Path) -> None:
    found = pack(TEXTS, tiny, tmp_path / "pack")
    assert texts_of(found, tiny) == TEXTS
    assert found.document(0).tolist() == tiny.tokenize(TEXTS[0], prepend_bos=False)
    assert found.hash == corpus_hash(open_corpus(TEXTS))
    assert (found.model, found.source, found.problems, found.stamp) == (tiny.name, "list", (), None)
    assert {path.name for path in found.folder.iterdir()} == set(FILES)


@given(st.lists(st.text(alphabet="ab ", min_size=1, max_size=4).filter(str.strip), min_size=2, max_size=5))
def test_the_hash_keeps_documents_apart(texts: list[str]) -> None:
    """Two documents are not their concatenation, and order counts."""
    documents = [Document(text, "x", 1) for text in texts]
    joined = [Document("".join(texts), "y", 9)]
    assert corpus_hash(documents) == corpus_hash(iter(documents)) != corpus_hash(joined)
    assert (corpus_hash(documents) == corpus_hash(documents[::-1])) == (texts == texts[::-1])


def test_special_names_become_ordinary_tokens(tiny: fm.Model, tmp_path: Path) -> None:
    found = pack([*TEXTS, f"one{BOS}two", f"three{BOS}"], tiny, tmp_path / "pack")
    assert found.token_counts[tiny.bos_token_id] == 0
    assert texts_of(found, tiny)[3] == f"one{BOS}two"
    assert found.problems == (Problem("special_text", 2, "list:4"),)


def test_a_complete_pack_is_kept(tiny: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same file is not even parsed; the same texts from elsewhere are not tokenised."""
    file, folder = tmp_path / "a.txt", tmp_path / "pack"
    file.write_text("\n\n".join(TEXTS))
    first = pack(file, tiny, folder)
    with monkeypatch.context() as patch:
        no_encoding(patch)
        patch.setattr(packing, "corpus_hash", lambda documents: pytest.fail("parsed again"))
        assert pack(str(file), tiny, folder).hash == first.hash
        file.rename(tmp_path / "renamed.txt")
        assert pack(tmp_path / "renamed.txt", tiny, folder).hash == first.hash
    no_encoding(monkeypatch)
    assert pack(TEXTS, tiny, folder).hash == first.hash
    other = tmp_path / "b.jsonl"
    other.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    assert pack(other, tiny, folder).hash == first.hash


def test_another_pack_is_replaced(tiny: fm.Model, tmp_path: Path) -> None:
    """Of other texts, of another tokenizer, and one that is broken."""
    folder = tmp_path / "pack"
    first = pack(TEXTS, tiny, folder)
    second = pack([*TEXTS, "more"], tiny, folder)
    assert second.hash != first.hash
    assert open_packed(folder).n_documents == 4
    other = pack(["7", "3"], Counting(), folder)
    assert other.tokenizer_hash != first.tokenizer_hash
    assert (other.n_tokens, other.model) == (10, "counting")
    for name in FILES:
        path = folder / name
        path.write_bytes(path.read_bytes()[:-1])
        pack(["7", "3"], Counting(), folder).verify()


def test_texts_that_come_once_are_packed_each_time(tiny: fm.Model, tmp_path: Path) -> None:
    assert pack(iter(TEXTS), tiny, tmp_path / "pack").hash == pack(iter(TEXTS), tiny, tmp_path / "pack").hash
    corpus = open_corpus(iter(TEXTS))
    pack(corpus, tiny, tmp_path / "pack")
    with refuses(InputError, ValueError, "once"):
        pack(corpus, tiny, tmp_path / "pack")


def broken() -> Iterator[str]:
    """Enough for several batches, then the power goes."""
    for i in range(2500):
        yield f"text {i}"
    raise KeyboardInterrupt


def test_a_stopped_pack_leaves_what_was_there(tiny: fm.Model, tmp_path: Path) -> None:
    """Nothing, or the older one."""
    folder = tmp_path / "pack"
    for again in (False, True):
        if again:
            pack(TEXTS, tiny, folder)
        with pytest.raises(KeyboardInterrupt):
            pack(broken(), tiny, folder)
        assert folder.exists() == again
    open_packed(folder).verify()


@pytest.mark.parametrize("step", range(1, 5))
def test_killed_while_files_are_put_in_place(
    tiny: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """At every rename after the one that marks the older pack: no half of one corpus with half of another."""
    folder = tmp_path / "pack"
    pack(TEXTS, tiny, folder)
    rename, done = Path.replace, []

    def replace(self: Path, target: Any) -> Path:
        if len(done) == step:
            raise KeyboardInterrupt
        done.append(target)
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            pack([*TEXTS, "more"], tiny, folder)
    with refuses(FileError, OSError, str(folder)):
        open_packed(folder)
    found = pack([*TEXTS, "more"], tiny, folder)
    found.verify()
    assert found.n_documents == 4
    assert not list(folder.glob("*.tmp"))


def test_a_packed_source_is_opened_where_it_lies(tiny: fm.Model, tmp_path: Path) -> None:
    first = pack(TEXTS, tiny, tmp_path / "pack")
    for source in (tmp_path / "pack", first):
        assert pack(source, tiny, tmp_path / "elsewhere").folder == first.folder
    assert not (tmp_path / "elsewhere").exists()
    with refuses(FileError, OSError, str(tmp_path / "pack"), "another tokenizer"):
        pack(tmp_path / "pack", Counting(), tmp_path / "elsewhere")


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30).filter(any), st.integers(1, 7))
def test_batches_do_not_show(tmp_path_factory: pytest.TempPathFactory, lengths: list[int], batch: int) -> None:
    """Documents, offsets and counted problems are the same however many are tokenised at a time."""
    folder = tmp_path_factory.mktemp("batches")
    one = packed(lengths, folder / "one")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizing, "BATCH_TEXTS", batch)
        other = packed(lengths, folder / "other")
    for name in FILES:
        assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes()
    first = next((f"list:{number}" for number, length in enumerate(lengths, start=1) if not length), "")
    assert one.problems == ((Problem("no_tokens", lengths.count(0), first),) if first else ())


def test_a_long_document_is_one(tiny: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten megabytes without a line end, at toy size: pieces go into several batches."""
    monkeypatch.setattr(tokenizing, "BATCH", 50)
    monkeypatch.setattr(tokenizing.pieces, "__defaults__", (20,))
    text = "The city of Paris is in France. " * 30 + "x"
    found = pack(["before", text, "after"], tiny, tmp_path / "pack")
    assert texts_of(found, tiny) == ["before", text, "after"]
    assert found.document(1).tolist() == tiny.tokenizer(text, add_special_tokens=False)["input_ids"]


def test_progress(tiny: fm.Model, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    found = pack([f"text {i}" for i in range(2500)], tiny, tmp_path / "pack", progress=lambda *n: told.append(n))
    assert told == sorted(told)
    assert len(told) == 3
    assert told[-1] == ("pack", found.n_documents, found.n_tokens)


def test_memory_is_flat(tiny: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times more documents take no more memory."""
    monkeypatch.setattr(tokenizing, "BATCH_TEXTS", 100)

    def peak(n: int) -> int:
        tracemalloc.start()
        pack((f"text {i} of the city" for i in range(n)), tiny, tmp_path / f"pack{n}")
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(100)  # what is imported and kept on first use
    assert peak(4_000) < 1.1 * peak(400)


def test_nothing_to_pack_or_nowhere(tiny: fm.Model, tmp_path: Path) -> None:
    with refuses(FileError, OSError, "list", "holds no text"):
        pack([], tiny, tmp_path / "pack")
    with refuses(FileError, OSError, "holds no text", "empty 2", "list:1", "not_text 1"):
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


@pytest.mark.parametrize("limit", [4, 20, 100])
def test_a_full_disk(tiny: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """A file that is cut, however little is missing, would have a checksum of what is left of it."""
    resource = pytest.importorskip("resource", reason="this system limits no files")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def room_again(*_: Any) -> dict[str, Any]:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        return {}

    monkeypatch.setattr(packing, "file_record", room_again)  # so that the description fits
    with claimed(tmp_path / "pack", FOLDER):
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
            with refuses(FileError, OSError, "cannot write", "pack"):
                packing.write_pack(tmp_path / "pack", open_corpus(TEXTS), Encoder(tiny.tokenizer), {}, None)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_errors_of_the_source_pass(tiny: fm.Model, tmp_path: Path) -> None:
    """A broken connection behind an iterable is no failure to write."""

    def texts() -> Iterator[str]:
        yield "one"
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        pack(texts(), tiny, tmp_path / "pack")
