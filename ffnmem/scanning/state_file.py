"""A scan's state on disk: one safetensors file with a checksum of every array, written whole or not at all.

It is the checkpoint of a running scan and, once complete, what a store reads histograms from and what merges.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ..core.checked_files import Form, HeadedTensors, write_tensors
from .settings import ScanSettings
from .state import SHARED, LayerState, ScanState

FORM = Form("ffnmem scan state", 3, "scan state: scan writes one", "scan again, into a new folder")


@dataclass(frozen=True)
class Identity:
    """Whose neurons and which text a scan is about; two scans can be merged when these agree."""

    model: str
    fingerprint: str
    tokenizer_hash: str
    corpus_hash: str
    n_units: int
    version: str

    def differences(self, other: Identity) -> list[str]:
        """What differs, with both values. The model's name and the version do not count."""
        named = {"fingerprint": "model", "tokenizer_hash": "tokenizer", "corpus_hash": "corpus", "n_units": "units"}
        return [
            f"{words} {getattr(self, name)} and {getattr(other, name)}"
            for name, words in named.items()
            if getattr(self, name) != getattr(other, name)
        ]


@dataclass(frozen=True)
class ScanProgress:
    """How far a scan is: whole units are in ``ScanState.done``; ``batch`` counts batches done of the unit after them.

    ``rescored`` counts winners' sequences that were run again. ``shard`` is (index, count).
    """

    shard: tuple[int, int] = (0, 1)
    batch: int = 0
    rescored: int = 0
    complete: bool = False


def save_state(path: Path, state: ScanState, identity: Identity, progress: ScanProgress) -> None:
    """Write a state, whole or not at all. Raises FileError."""
    header = {
        "kind": FORM.kind,
        "schema": FORM.schema,
        "settings": state.settings.to_dict(),
        "identity": asdict(identity),
        "progress": asdict(progress),
    }
    write_tensors(path, header, state.arrays, sort_keys=True)


class StateFile(HeadedTensors):
    """A state on disk, read array by array, each checked when it is read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, FORM)
        self.settings = ScanSettings.from_dict(self.header["settings"])
        self.identity = Identity(**self.header["identity"])
        progress = self.header["progress"]
        self.progress = ScanProgress(**{**progress, "shard": tuple(progress["shard"])})

    @cached_property
    def shared(self) -> dict[str, np.ndarray]:
        """The arrays that are of no single layer."""
        return {name: self.array(name) for name in SHARED}

    def layer(self, index: int) -> LayerState:
        """One layer, whose arrays are read when they are asked for."""
        return LayerState(self.array, index)

    def state(self) -> ScanState:
        """All of it, in memory and writable."""
        return ScanState(self.settings, {name: self.array(name) for name in self.shapes})
