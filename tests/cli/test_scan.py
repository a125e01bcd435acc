"""``ffnmem scan`` and ``ffnmem merge``: the same store as the library's, resumable, and one line for a mistake."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

import ffnmem as fm
from ffnmem.corpus.packed import FOLDER as PACK
from ffnmem.scanning.manifest import FOLDER
from ffnmem.scanning.tables import CORPUS, STATE

from ..scanning.corpora import digests, texts
from ..scanning.test_workers import in_this_process
from .running import data, mistake, process, run, table


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_bytes("\n\n".join(texts(40)).encode() + b"\n\nThe city \xff of Rome")
    return path


def test_that_the_store_is_the_librarys(corpus: Path, tiny: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    manifest = data("scan", corpus, "--out", tmp_path / "a", "--model", tiny_folder, "--k", 3, "--seed", 4)
    mine = fm.scan(fm.load(str(tiny_folder)), corpus, tmp_path / "b", k=3, seed=4)
    assert manifest == dict(mine.manifest)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert manifest["fingerprint"] == tiny.fingerprint


def test_what_the_table_says(corpus: Path, tiny_folder: Path, tmp_path: Path) -> None:
    arguments = ("scan", corpus, "--out", tmp_path / "out", "--model", tiny_folder)
    text = table(*arguments)
    for part in ("128 in 2 layers", "1 places of the text", "ffnmem neuron ", "41 sequences"):
        assert part in " ".join(text.split()), part
    before = digests(tmp_path / "out")
    assert table(*arguments) == text  # finished: opened, not scanned again
    assert digests(tmp_path / "out") == before
    mistake(*arguments, "--k", 7, named=("another scan", "k 7 and 20"))


def test_shards_and_merge(corpus: Path, tiny_folder: Path, tmp_path: Path) -> None:
    options = ("--model", tiny_folder, "--k", 3)
    whole = data("scan", corpus, "--out", tmp_path / "whole", *options)
    for i in range(2):
        run("scan", corpus, "--out", tmp_path / str(i), "--shard", f"{i}/2", *options)
    assert "ffnmem merge joins" in table("scan", corpus, "--out", tmp_path / "1", "--shard", "1/2", *options)
    assert data("merge", tmp_path / "1", tmp_path / "0", "--out", tmp_path / "joined") == whole
    assert digests(tmp_path / "joined") == digests(tmp_path / "whole")
    mistake("merge", tmp_path / "whole", tmp_path / "0", "--out", tmp_path / "x", named=("count twice",))


@pytest.mark.parametrize(
    ("number", "workers"), [(signal.SIGINT, 1), (signal.SIGTERM, 2)], ids=["Ctrl-C", "SIGTERM of workers"]
)
def test_that_a_stopped_scan_goes_on(
    number: signal.Signals, workers: int, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work would be lost, or workers live on as orphans that end in tracebacks."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(texts(6000)), "utf-8")
    arguments = ("scan", corpus, "--out", tmp_path / "out", "--model", tiny_folder, "--workers", workers)
    running = process(*arguments)
    deadline = time.monotonic() + 120
    while not PACK.is_finished(tmp_path / "out" / CORPUS) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(1.0 * (workers > 1))  # until they have been started; they need several seconds to begin
    running.send_signal(number)
    out, err = running.communicate(timeout=120)  # which waits for all that hold its pipes, workers too
    assert running.returncode == 128 + number
    assert not err.strip()
    assert not out
    assert not FOLDER.is_finished(tmp_path / "out")
    mistake("merge", tmp_path / "out", "--out", tmp_path / "x", named=("unfinished scan",))
    monkeypatch.setattr("ffnmem.corpus.shards.run_locally", in_this_process)  # starting them again takes seconds
    run(*arguments)
    assert (tmp_path / "out" / STATE).exists()
    assert fm.open_store(tmp_path / "out").complete
