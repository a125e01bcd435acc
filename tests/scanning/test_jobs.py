"""Setting up a scan: the folder, the lock, the packed corpus, the most frequent tokens, where it stands."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import ffnmem as fm
from ffnmem.core.errors import FileError
from ffnmem.corpus import pack
from ffnmem.scanning.jobs import most_frequent, packed_corpus, prepared
from ffnmem.scanning.manifest import FOLDER
from ffnmem.scanning.state_file import ScanProgress, StateFile, save_state
from ffnmem.scanning.tables import STATE

from ..helpers import refuses
from .corpora import SMALL, digests, texts


def test_that_two_scans_do_not_write_to_one_folder(tiny: fm.Model, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "out"
    with prepared(folder), refuses(FileError, OSError, str(folder), "another process is writing"):
        fm.scan(tiny, ["The city of Paris"], folder, **SMALL)
    left = folder / ".ffnmem-state.safetensors-0123abcd.tmp"
    left.mkdir()
    (left / "state.safetensors").write_text("what a killed scan was writing")
    (left / ".tmpK9nrHs").write_text("what safetensors was writing for it")
    (folder / ".backup.tmp").write_text("mine")
    assert fm.scan(tiny, ["The city of Paris"], folder, **SMALL).complete
    assert not left.exists()
    assert (folder / ".backup.tmp").read_text() == "mine"


def test_that_a_failed_scan_leaves_no_folder(tiny: fm.Model, tmp_path: Path) -> None:
    with refuses(FileError, OSError, "holds no text"):
        fm.scan(tiny, [" "], tmp_path / "new" / "out", **SMALL)
    assert not (tmp_path / "new").exists()
    (tmp_path / "out").mkdir()
    with refuses(FileError, OSError, "holds no text"):
        fm.scan(tiny, [" "], tmp_path / "out", **SMALL)
    assert list((tmp_path / "out").iterdir()) == []


def test_that_a_packed_corpus_is_linked_and_not_tokenised_again(tiny: fm.Model, tmp_path: Path) -> None:
    packed = pack(texts(20), tiny, tmp_path / "packed")
    for number, source in enumerate([packed, packed.folder, str(packed.folder)]):
        target = tmp_path / f"store{number}"
        target.mkdir()
        found = packed_corpus(tiny, source, target / "corpus", text="text", documents=None, progress=None)
        assert found.hash == packed.hash
        assert digests(target / "corpus") == digests(packed.folder)
    assert (target / "corpus" / "tokens.bin").stat().st_ino == (packed.folder / "tokens.bin").stat().st_ino


def test_that_a_corpus_of_another_tokenizer_is_refused(tiny: fm.Model, atlas: fm.Model, tmp_path: Path) -> None:
    packed = pack(texts(20), tiny, tmp_path / "packed")
    with refuses(FileError, OSError, "another tokenizer"):
        fm.scan(atlas, packed.folder, tmp_path / "out", **SMALL)


def test_that_the_most_frequent_tokens_are_counted_without_special_ones(tiny: fm.Model, tmp_path: Path) -> None:
    packed = pack(["The the the city city"], tiny, tmp_path / "packed")
    names = tiny.token_strings(list(most_frequent(packed, tiny, 2)))
    assert names == [" the", " city"]
    assert most_frequent(packed, tiny, 0) == ()
    everything = most_frequent(packed, tiny, 10_000)
    assert not set(everything) & tiny.special_token_ids
    assert sum(np.array(packed.token_counts)[list(everything)]) == packed.n_tokens


def test_that_a_shard_in_the_middle_is_finished_as_that_shard(tiny: fm.Model, tmp_path: Path) -> None:
    store = fm.scan(tiny, texts(30), tmp_path / "out", **SMALL)
    file = StateFile(store.folder / STATE)
    state = file.state()
    state.arrays["done"] = np.empty(0, np.int64)
    FOLDER.mark(store.folder)
    save_state(store.folder / STATE, state, file.identity, ScanProgress(shard=(0, 2), batch=1))
    with refuses(FileError, OSError, "shard 0/2 in the middle", "same command"):
        fm.scan(tiny, texts(30), store.folder, **SMALL)
