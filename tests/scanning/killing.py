"""Run as a program: scans a corpus in child processes that are killed at random moments, until one is left to finish.

Usage: ``python -m tests.scanning.killing MODEL TEXTS OUT KILLS DTYPE``. Prints how many children died, and in which
states of the folder. The import of torch is paid once: children are forks of this process.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

import ffnmem as fm
from ffnmem.scanning.manifest import MANIFEST
from ffnmem.scanning.writing import CORPUS, STATE
from tests.scanning.corpora import SMALL


def scan(model: fm.Model, texts: list[str], out: Path, dtype: str) -> None:
    fm.scan(model, texts, out, dtype=dtype, checkpoint_seconds=0.0, batch_tokens=256, **SMALL)


def attempt(model: fm.Model, texts: list[str], out: Path, dtype: str, draw: random.Random, whole: float) -> bool:
    """One child that scans, killed at a random moment; whether it was killed before its end.

    Two in three are killed some time after their first new checkpoint, the others some time after their start: how
    long packing takes beside scanning depends on the machine.
    """
    before = written(out)
    child = os.fork()
    if child == 0:
        status = 3
        try:
            scan(model, texts, out, dtype)
            status = 0
        finally:
            os._exit(status)
    if draw.random() < 2 / 3:
        while written(out) in (None, before) and not ended(child):
            time.sleep(0.001)
        time.sleep(draw.uniform(0.0, 0.2) * whole)
    else:
        time.sleep(draw.uniform(0.02, 0.6) * whole)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    if os.WEXITSTATUS(status) != 0:
        raise SystemExit("a child failed instead of being killed")
    return False


def ended(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def written(out: Path) -> int | None:
    """When the newest checkpoint was written, None where there is none."""
    try:
        return (out / STATE).stat().st_mtime_ns
    except FileNotFoundError:
        return None


def where(out: Path) -> str:
    """How far a killed scan had come, by what lies in its folder."""
    if (out / MANIFEST).exists():
        return "finished"
    if (out / STATE).exists():
        return "scanning"
    return "packed" if (out / CORPUS / "corpus.json").exists() else "packing"


def main(name: str, source: str, out: str, kills: str, dtype: str) -> None:
    torch.set_num_threads(1)
    model = fm.load(name)
    texts = json.loads(Path(source).read_text("utf-8"))
    folder, draw = Path(out), random.Random(0)
    began = time.monotonic()
    scan(model, texts, folder, dtype)  # also compiles the kernels once, before any fork
    whole = time.monotonic() - began
    shutil.rmtree(folder)
    began = time.monotonic()
    scan(model, texts, folder, dtype)
    whole = min(whole, time.monotonic() - began)
    shutil.rmtree(folder)
    found: dict[str, int] = {}
    while sum(found.values()) < int(kills):
        if attempt(model, texts, folder, dtype, draw, whole):
            found[where(folder)] = found.get(where(folder), 0) + 1
        elif where(folder) == "finished":
            shutil.rmtree(folder)  # too late: begin again
    if folder.exists() and where(folder) == "finished":
        (folder / MANIFEST).unlink()
    scan(model, texts, folder, dtype)
    print(json.dumps(found))  # noqa: T201 (what the test reads)


if __name__ == "__main__":
    main(*sys.argv[1:])
