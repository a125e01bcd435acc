"""``ffnmem store``: what a scan left, and whether it is whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ffnmem.corpus import Problem
from ffnmem.scanning import Store, open_store

from ..scanning.gated import gated_store
from .running import data, mistake, run, table


def test_summary_names_what_was_scanned(tiny_store: Store) -> None:
    out = table("store", tiny_store.folder)
    rows = tiny_store.to_frame()
    for value in (
        tiny_store.model,
        tiny_store.fingerprint,
        f"{tiny_store.n_tokens:,} tokens",
        f"{rows['dead'].sum()} of 128 neurons never fired",
        "none in the corpus",
        "--check reads everything",
    ):
        assert value in out
    for row in rows.to_dict("records"):
        assert f"{row['firing_rate_50']:.1%}" in out


def test_json_has_all(tiny_store: Store) -> None:
    found = data("store", tiny_store.folder, "--check")
    assert found["layers"] == tiny_store.to_frame().to_dict("records")
    assert found["settings"] == tiny_store.settings.to_dict()
    assert found["provenance"] == tiny_store.provenance
    assert (found["tokens"], found["complete"], found["checked"]) == (tiny_store.n_tokens, True, True)
    assert found["problems"] == []


def test_problems_of_the_corpus_are_listed(tiny_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user must see that part of the text was lost."""
    problem = Problem("invalid_utf8", 3, "a\x1b[31m.txt:7")
    corpus = open_store(tiny_store.folder).corpus
    object.__setattr__(corpus, "problems", (problem,))
    monkeypatch.setattr(Store, "corpus", corpus)
    out = table("store", tiny_store.folder)
    assert "invalid_utf8" in out
    assert "a\\x1b[31m.txt:7" in out
    assert data("store", tiny_store.folder)["problems"] == [problem.to_dict()]


def test_check_reads_everything(tiny_store: Store, tmp_path: Path) -> None:
    """A flipped bit in the large file is found by --check, and named."""
    broken = tmp_path / "broken"
    shutil.copytree(tiny_store.folder, broken)
    state = broken / "state.safetensors"
    content = bytearray(state.read_bytes())
    content[-9] ^= 1
    state.write_bytes(content)
    run("store", broken)
    mistake("store", broken, "--check", named=("state.safetensors",))
    assert "all read and checked" in table("store", tiny_store.folder, "--check")


def test_figure(tiny_store: Store, tmp_path: Path) -> None:
    plot = tmp_path / "layers.svg"
    run("store", tiny_store.folder, "--plot", plot)
    drawn = plot.read_text("utf-8")
    assert "firing rate (share of tokens)" in drawn
    assert "dead neurons" in drawn


def test_a_gated_store_tells_how_often_each_case_occurs(tmp_path: Path) -> None:
    """Of all its neurons; the four shares sum to 1."""
    made = gated_store("llama", tmp_path / "store")
    shares = data("store", made.folder)["cases"]
    assert sum(shares.values()) == pytest.approx(1)
    out = table("store", made.folder, width=120)
    assert all(f"{case} {share:.1%}" in out for case, share in shares.items())
