"""A store of a small gated model, and a look at every position of its text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ffnmem as fm

from ..helpers import ARCHITECTURES, build_tokenizer
from .corpora import SMALL, texts

GATED = ("llama", "gemma2")
CORPUS = texts(60)


def load_gated(name: str) -> fm.Model:
    return fm.load(ARCHITECTURES[name](), tokenizer=build_tokenizer())


def gated_store(name: str, folder: Path, **changes: Any) -> fm.scanning.Store:
    return fm.scan(load_gated(name), CORPUS, folder, **{**SMALL, **changes})


@dataclass(frozen=True)
class Everywhere:
    """A layer at every content position: ``[positions, d_mlp]``, and the sequence and position of each."""

    gate: np.ndarray
    linear: np.ndarray
    coefficient: np.ndarray
    sequence: np.ndarray
    position: np.ndarray

    def case(self, index: int) -> np.ndarray:
        """Which neurons are in one of the four cases, at each position."""
        wanted = (index < 2, index % 2 == 0)
        return ((self.gate > 0) == wanted[0]) & ((self.linear > 0) == wanted[1])


def look_everywhere(model: fm.Model, layer: int) -> Everywhere:
    rows: list[tuple[np.ndarray, ...]] = []
    for number, text in enumerate(CORPUS):
        capture = fm.capture(model, text)
        at = np.flatnonzero(capture.content[0].numpy())
        assert capture.linear is not None
        three = (capture.pre, capture.linear, capture.coefficients)
        rows.append((*(part[layer][0].numpy()[at] for part in three), np.full(len(at), number), at))
    return Everywhere(*(np.concatenate(column) for column in zip(*rows, strict=True)))
