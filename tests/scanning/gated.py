"""Small gated models and scans of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ffnmem as fm

from ..helpers import ARCHITECTURES, build_tokenizer
from .corpora import SMALL, texts

CORPUS = texts(60)


def load_gated(name: str) -> fm.Model:
    return fm.load(ARCHITECTURES[name](), tokenizer=build_tokenizer())


def gated_store(name: str, folder: Path, **changes: Any) -> fm.scanning.Store:
    return fm.scan(load_gated(name), CORPUS, folder, **{**SMALL, **changes})
