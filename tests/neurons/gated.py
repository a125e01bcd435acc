"""Small gated models, scans of them, and the same models with keys and values turned round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import ffnmem as fm
from ffnmem.scanning import Store, scan

from ..helpers import ARCHITECTURES, build_tokenizer
from ..scanning.texts import tiny_texts

GATED = ("llama", "gemma2")


def made(kind: str, tokenizer: Any = None) -> fm.Model:
    """A fresh model, which a test may change."""
    return fm.load(ARCHITECTURES[kind](), tokenizer=tokenizer or build_tokenizer())


def turn(model: fm.Model) -> fm.Model:
    """Turn key and value of every second neuron round, which changes nothing that they do."""
    with torch.no_grad():
        for ffn in model.ffn:
            ffn.keys[::2] *= -1
            ffn.values[::2] *= -1
    return model


def scanned(model: fm.Model, folder: Path) -> Store:
    return scan(model, tiny_texts(), folder, k=3, sample=8, draws=4, frequent=8)
