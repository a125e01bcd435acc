"""Small corpora and stores that the tests of scans share."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

from ..helpers import WHOLE_WORDS

SMALL: dict[str, Any] = {"k": 4, "sample": 12, "draws": 6, "frequent": 8}
"""Settings under which a store of the tiny model is small."""


def texts(count: int, seed: int = 0, longest: int = 12) -> list[str]:
    """Different short texts of the tiny tokenizer's words."""
    draw = random.Random(seed)
    return ["".join(draw.choice(WHOLE_WORDS) for _ in range(draw.randint(1, longest))) for _ in range(count)]


def digests(folder: Path) -> dict[str, str]:
    """A hash of every file below a folder, by its path there."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }
