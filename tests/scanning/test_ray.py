"""The Ray engine on a real local cluster: the same bytes, a worker that dies included."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ffnmem as fm
from ffnmem.core.errors import MissingExtraError

from ..helpers import REPOSITORY, refuses
from .corpora import SMALL, digests, texts

CORPUS = texts(3000, longest=3)


def test_that_ray_is_asked_for_by_its_extra(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with refuses(MissingExtraError, ImportError, "pip install 'ffnmem[ray]'"):
        fm.scan(fm.load(str(tiny_folder)), CORPUS[:50], tmp_path / "out", engine="ray", workers=2, **SMALL)


@pytest.mark.exhaustive  # workers of this machine, one of them killed, stand for it in make test
def test_that_two_actors_of_which_one_dies_give_the_bytes_of_one_process(tiny_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra ffnmem[ray] is not installed")
    whole = fm.scan(fm.load(str(tiny_folder)), CORPUS, tmp_path / "whole", **SMALL)
    (tmp_path / "texts.json").write_text(json.dumps(CORPUS), "utf-8")
    program = [sys.executable, "-W", "ignore", "-m", "tests.scanning.mortal", str(tiny_folder)]
    arguments = [str(tmp_path / name) for name in ("texts.json", "out", "died")]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    ran = subprocess.run(
        [*program, *arguments], capture_output=True, text=True, cwd=REPOSITORY, env=environment, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert (tmp_path / "died").exists()
    assert digests(tmp_path / "out") == digests(whole.folder)
