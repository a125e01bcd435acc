"""Shares of a loop among threads, what ships with the package, and what results say of how they were made."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path

import numpy as np
import pytest

import ffnmem as fm
from ffnmem.core import resources, threads
from ffnmem.core.errors import FileError
from ffnmem.core.provenance import Provenance
from ffnmem.core.threads import Threads

from ..helpers import refuses


@pytest.mark.parametrize("region", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_every_share_once_and_errors_passed_on(count: int, region: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch's own threads where they can be had, else by a pool's."""
    if not region:
        monkeypatch.setattr(threads, "openmp_parallel", lambda: None)
    run, seen, shares, lock = Threads(count, whole=2), np.zeros(11, int), set(), threading.Lock()

    def mark(start: int, stop: int) -> None:
        with lock:
            seen[start:stop] += 1
            shares.add((start, stop))

    def fail(start: int, stop: int) -> None:
        raise ZeroDivisionError

    run(mark, 11)
    with pytest.raises(ZeroDivisionError):
        run(fail, 11)
    run(mark, 11)  # what failed leaves nothing behind
    run.close()
    assert seen.tolist() == [2] * 11
    assert shares == ({(0, 11)} if count == 1 else {(0, 4), (4, 8), (8, 11)})  # multiples of 2 but for the last


@pytest.mark.parametrize("inside", [True, False], ids=["installed", "checkout"])
def test_models_and_corpora_are_looked_for_in_both_places(
    inside: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(resources, "__file__", str(tmp_path / "ffnmem" / "core" / "resources.py"))
    data = (tmp_path / "ffnmem" if inside else tmp_path) / "data"
    for find, place, file in (
        (resources.embedded_folder, data / "atlas", data / "atlas" / "config.json"),
        (resources.embedded_corpus, *2 * (data / "corpus" / "atlas.jsonl.gz",)),
    ):
        with refuses(FileError, OSError, "'atlas'", "installation", str(tmp_path)):
            find("atlas")
        file.parent.mkdir(parents=True)
        file.write_bytes(b"")
        assert find("atlas") == place


def test_atlas_recalls_its_facts(atlas: fm.Model) -> None:
    """Tracing and editing would be measured on facts that the model never knew. 100 canonical prompts, seeded."""
    names = {path.name for path in resources.embedded_folder("atlas").iterdir()}
    assert not {name for name in names if name.endswith((".bin", ".pt", ".pkl"))}
    facts, right = random.Random(0).sample(fm.load_facts("atlas"), 100), 0
    for at in range(0, len(facts), 50):
        some = facts[at : at + 50]
        capture = fm.capture(atlas, [fact.text for fact in some], layers=0, logits=True)
        for row, fact in enumerate(some):
            logits = capture.logits_at(row, capture.position(-1, row))
            right += int(logits.argmax()) == atlas.token_id(" " + fact.target_true, first=True)
    assert right / len(facts) >= 0.95


def test_provenance_as_data() -> None:
    """A result's file would lack what reproduces it, or settings change under their owner."""
    plain = Provenance("tiny", "0123456789ab", "float32", "cpu", prepend_bos=True)
    first = plain.with_settings(basis="raw", seed=3)
    record = {"model": "tiny", "fingerprint": "0123456789ab", "dtype": "float32", "device": "cpu", "prepend_bos": True}
    assert first.to_dict() == {**record, "basis": "raw", "seed": 3, "ffnmem": fm.__version__}
    assert first.with_settings(basis="folded").to_dict()["basis"] == "folded"
    assert dict(first.settings)["basis"] == "raw"
    assert Provenance.of(json.loads(json.dumps(first.record()))) == first
    # Given token ids, nobody put a token in front: saying False would be an invention.
    assert "prepend_bos" not in Provenance("tiny", "", "float32", "cpu").to_dict()
    assert (plain.before_cap, plain.with_settings(soft_cap=30.0).before_cap) == ("", ", before the soft cap of 30")
