"""A scan's state on disk: one safetensors file with a checksum of every array, written whole or not at all.

It is the checkpoint of a running scan and, once complete, what a store reads histograms from and what merges.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..core.checked_files import Form, HeadedTensors, write_tensors
from .settings import ScanSettings
from .state import GATE_ARRAYS, LAYER_ARRAYS, SHARED_ARRAYS, GateState, LayerState, ScanState

SCHEMA = 2
"""What this version reads: 1, and 2 of gated neurons, which older versions would take for others."""

KIND = "ffnmem scan state"
FORM = Form(KIND, SCHEMA, "scan state: scan writes one")


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

    def with_(self, **changes: Any) -> ScanProgress:
        return replace(self, **changes)


def save_state(path: Path, state: ScanState, identity: Identity, progress: ScanProgress) -> None:
    """Write a state, whole or not at all. Raises FileError."""
    arrays = {name: getattr(state, name) for name in SHARED_ARRAYS}
    for index, layer in enumerate(state.layers):
        arrays |= {f"{index}.{name}": getattr(layer, name) for name in LAYER_ARRAYS}
        if layer.gate is not None:
            arrays |= {f"{index}.gate.{name}": getattr(layer.gate, name) for name in GATE_ARRAYS}
    header = {
        "kind": KIND,
        "schema": 2 if state.gated else 1,
        "settings": state.settings.to_dict(),
        "identity": {f.name: getattr(identity, f.name) for f in fields(Identity)},
        "progress": {f.name: getattr(progress, f.name) for f in fields(ScanProgress)},
        "tokens": state.tokens,
        "n_sequences": state.n_sequences,
        "n_layers": len(state.layers),
    }
    write_tensors(path, header, arrays, sort_keys=True)


class StateFile(HeadedTensors):
    """A state on disk, read array by array, each checked when it is read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, FORM)
        header = self.header
        self.settings = ScanSettings.from_dict(header["settings"])
        self.identity = Identity(**{f.name: header["identity"][f.name] for f in fields(Identity)})
        progress = header["progress"]
        self.progress = ScanProgress(
            tuple(progress["shard"]), progress["batch"], progress["rescored"], progress["complete"]
        )
        self.n_layers = int(header["n_layers"])
        self.tokens, self.n_sequences = int(header["tokens"]), int(header["n_sequences"])

    def size(self, name: str, axis: int) -> int:
        shape = self.shapes.get(name, ("", ()))[1]
        return shape[axis] if axis < len(shape) else 0

    @property
    def widths(self) -> list[int]:
        """d_mlp of every layer."""
        return [self.size(f"{index}.high", 0) for index in range(self.n_layers)]

    @property
    def gated(self) -> bool:
        """Whether its neurons have gates."""
        return "0.gate.case" in self.header["checksums"]

    def layer(self, index: int) -> LayerState:
        found: dict[str, Any] = {name: self.array(f"{index}.{name}") for name in LAYER_ARRAYS}
        if self.gated:
            found["gate"] = GateState(**{name: self.array(f"{index}.gate.{name}") for name in GATE_ARRAYS})
        return LayerState(**found)

    def state(self) -> ScanState:
        """All of it, in memory and writable."""
        layers = [self.layer(index) for index in range(self.n_layers)]
        return ScanState(
            settings=self.settings,
            layers=layers,
            **{name: self.array(name) for name in SHARED_ARRAYS},
            tokens=self.tokens,
            n_sequences=self.n_sequences,
        )
