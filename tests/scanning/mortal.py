"""Run as a program: scans a corpus on a local Ray cluster of two workers, one of which dies once, in mid-shard.

Usage: ``python -m tests.scanning.mortal MODEL TEXTS OUT MARK``; MARK is a file that the dying worker leaves.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import ffnmem as fm
from ffnmem.core.errors import FfnmemError
from ffnmem.corpus import shards
from ffnmem.scanning.jobs import ShardTask

from .corpora import SMALL

MARK = "FFNMEM_TEST_MARK"


class Mortal(shards.ShardActor):
    """Dies when it first hears of progress in shard 1."""

    def run(self, work: shards.Work, task: ShardTask) -> str | FfnmemError:
        self.index = task.shard[0]
        return super().run(work, task)

    def note(self, phase: str, done: int, total: int) -> None:
        super().note(phase, done, total)
        mark = Path(os.environ[MARK])
        if self.index == 1 and not mark.exists():
            mark.touch()
            os._exit(1)


if __name__ == "__main__":
    name, source, out, os.environ[MARK] = sys.argv[1:]
    shards.ShardActor = Mortal  # type: ignore[misc]
    texts = json.loads(Path(source).read_text("utf-8"))
    fm.scan(fm.load(name), texts, out, engine="ray", workers=2, **SMALL)
