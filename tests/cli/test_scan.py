"""``ffnmem pack``, ``scan``, ``merge``, ``store``, ``moment`` and ``lens``: the library's folders and files."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

import ffnmem as fm
from ffnmem.core.errors import unwarned
from ffnmem.corpus import Problem, pack
from ffnmem.corpus.packed import FOLDER as PACK
from ffnmem.corpus.readers import MEANINGS
from ffnmem.scanning import Store, open_store
from ffnmem.scanning.jobs import expected_bytes
from ffnmem.scanning.manifest import FOLDER
from ffnmem.scanning.tables import CORPUS, STATE

from ..scanning.corpora import digests, texts
from ..scanning.test_workers import in_this_process
from .running import csv, data, mistake, process, run, table


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_bytes("\n\n".join(texts(40)).encode() + b"\n\nThe city \xff of Rome\n\nand \xff of Paris\n")
    return path


# -- packs -------------------------------------------------------------------------------------------------------------


def test_a_pack_is_the_librarys(corpus: Path, tiny: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    """With only the tokenizer loaded, so the hash must be that of the model's; what is wrong with a text is counted."""
    arguments = ("pack", corpus, "--out", tmp_path / "a", "--model", tiny_folder)
    corpus.write_bytes(corpus.read_bytes() + b"\n\nbinary \x00\n")
    found = data(*arguments, warning="NUL characters")
    with unwarned():
        mine = pack(corpus, tiny, tmp_path / "b")
    assert (found["hash"], found["tokenizer_hash"]) == (mine.hash, mine.tokenizer_hash)
    assert (found["n_documents"], found["n_tokens"]) == (42, mine.n_tokens)
    assert found["folder"] == str(tmp_path / "a")
    assert (tmp_path / "a" / "tokens.bin").read_bytes() == (tmp_path / "b" / "tokens.bin").read_bytes()
    problems = csv(*arguments)
    assert problems["kind"].tolist() == ["invalid_utf8", "nul"]
    assert problems["meaning"].tolist() == [MEANINGS["invalid_utf8"], MEANINGS["nul"]]
    assert problems["first"].str.startswith("corpus.txt:").all()
    assert "files have that are" in table(*arguments)
    (tmp_path / "nul.txt").write_bytes(b"a\x00b")
    with unwarned():
        mistake("pack", tmp_path / "nul.txt", "--out", tmp_path / "n", named=("no text: 1 × NUL", "first nul.txt:1"))
    (tmp_path / "a.txt").write_text("one\ntwo\n\nthree")
    (tmp_path / "b.csv").write_text("body,id\none,1\ntwo,2\n")
    for file, option, documents in (("a.txt", ("--documents", "line"), 3), ("b.csv", ("--text", "body"), 2)):
        packed = data("pack", tmp_path / file, *option, "--out", tmp_path / option[1], "--model", tiny_folder)
        assert packed["n_documents"] == documents


# -- scans -------------------------------------------------------------------------------------------------------------


def test_a_store_is_the_librarys(corpus: Path, tiny: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    arguments = ("scan", corpus, "--out", tmp_path / "a", "--model", tiny_folder, "--seed", 4)
    found = data(*arguments, "--k", 3)
    mine = fm.scan(fm.load(str(tiny_folder)), corpus, tmp_path / "b", k=3, seed=4)
    assert found["layers"] == mine.to_dict()["layers"]
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    again = run(*arguments, "--k", 3)
    assert "a holds this scan, finished: nothing is read again" in again.stderr
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    for part in ("of 128 neurons", "has 2 problems", "(ffnmem neuron)", "42"):
        assert part in " ".join(again.stdout.split())
    mistake(*arguments, "--k", 7, named=("another scan", "k 7 and 3"))


def test_shards_and_merge(corpus: Path, tiny_folder: Path, tmp_path: Path) -> None:
    options = ("--model", tiny_folder, "--k", 3)
    whole = data("scan", corpus, "--out", tmp_path / "whole", *options)
    for i in range(2):
        run("scan", corpus, "--out", tmp_path / str(i), "--shard", f"{i}/2", *options)
    said = table("scan", corpus, "--out", tmp_path / "1", "--shard", "1/2", *options)
    assert re.search(
        r"None of 128 neurons of .* in 0 tokens .* merge joins them\. The text has .* below\.$",
        " ".join(said.split("\n\n")[1].split()),
    )
    assert data("merge", tmp_path / "1", tmp_path / "0", "--out", tmp_path / "joined")["layers"] == whole["layers"]
    assert digests(tmp_path / "joined") == digests(tmp_path / "whole")
    mistake("merge", tmp_path / "whole", tmp_path / "0", "--out", tmp_path / "x", named=("count twice",))


def test_that_a_stopped_scan_goes_on(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work would be lost, or workers live on as orphans that end in tracebacks."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(texts(2_000)), "utf-8")
    arguments = ("scan", corpus, "--out", tmp_path / "out", "--model", tiny_folder, "--workers", 2)
    running = process(*arguments)
    deadline = time.monotonic() + 120
    while not PACK.is_finished(tmp_path / "out" / CORPUS) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(1.0)  # until they have been started; they need several seconds to begin
    running.send_signal(signal.SIGTERM)
    out, err = running.communicate(timeout=120)  # which waits for all that hold its pipes, workers too
    assert running.returncode == 128 + signal.SIGTERM
    assert all(line.startswith((b"ffnmem: will write", b"ffnmem: tokenising")) for line in err.splitlines())
    assert not out
    assert not FOLDER.is_finished(tmp_path / "out")
    mistake("merge", tmp_path / "out", "--out", tmp_path / "x", named=("unfinished scan",))
    monkeypatch.setattr("ffnmem.corpus.shards.run_locally", in_this_process)  # starting them again takes seconds
    run(*arguments)
    assert (tmp_path / "out" / STATE).exists()
    assert fm.open_store(tmp_path / "out").complete


# -- stores ------------------------------------------------------------------------------------------------------------


def test_a_store_says_what_it_holds(tiny_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The problems of the corpus too: a user must see that part of the text was lost."""
    problem = Problem("invalid_utf8", 3, "a\x1b[31m.txt:7")
    corpus = open_store(tiny_store.folder).corpus
    object.__setattr__(corpus, "problems", (problem,))
    monkeypatch.setattr(Store, "corpus", corpus)
    out = " ".join(table("store", tiny_store.folder).split())
    dead = tiny_store.to_frame()["never_fired"].sum()
    for words in (f"{tiny_store.n_tokens:,} tokens", f"{dead} of 128 neurons", "a\\x1b[31m.txt:7"):
        assert words in out
    assert data("store", tiny_store.folder)["problems"] == [problem.to_dict()]


def test_check_reads_everything(tiny_store: Store, tmp_path: Path) -> None:
    """A flipped bit in the large file is found by --check, and named."""
    broken = shutil.copytree(tiny_store.folder, tmp_path / "broken")
    content = bytearray((broken / "state.safetensors").read_bytes())
    content[-9] ^= 1
    (broken / "state.safetensors").write_bytes(content)
    run("store", broken)
    mistake("store", broken, "--check", named=("state.safetensors",))
    assert data("store", tiny_store.folder, "--check")["checked"] == "all files"


def test_export(tiny_folder: Path, atlas_store: Store, tmp_path: Path) -> None:
    result = run(
        "export", "neuronpedia", "--store", atlas_store.folder, "-o", tmp_path / "np", "--neurons", "3.17,5.97"
    )
    assert result.stdout == f"{tmp_path / 'np'}\n"
    batch = json.loads((tmp_path / "np" / "blocks.5.mlp.hook_post" / "batch-0.json").read_text("utf-8"))
    assert [one["feature_index"] for one in batch["features"]] == [97]


# -- second moments and lenses -----------------------------------------------------------------------------------------


def test_how_much_will_be_written_is_said_before(tiny: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    """A full disk would be found after hours."""
    corpus, store, moment = tmp_path / "one.txt", tmp_path / "store", tmp_path / "m.safetensors"
    corpus.write_text(" ".join(texts(2000)), "utf-8")
    asked = (corpus, "--model", tiny_folder, "--out")
    said = run("scan", *asked, store).stderr
    assert said == f"ffnmem: will write about 1.1 MB into {store}\n"
    written = (store / STATE).stat().st_size
    expected = expected_bytes(tiny, fm.open_store(store).settings)
    assert expected == pytest.approx(written, rel=0.15)  # fewer than 128 words
    assert "will write" not in run("scan", *asked, store).stderr  # it is there already
    assert run("moment", *asked, moment).stderr.startswith("ffnmem: will write about 0.0 MB into")
