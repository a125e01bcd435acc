"""A scan's state on disk: one safetensors file with a checksum of every array, written whole or not at all.

It is the checkpoint of a running scan and, once complete, what a store reads histograms from and what merges.
"""

from __future__ import annotations

import json
import secrets
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FileError, quoted
from ..files import readable
from .settings import ScanSettings
from .state import GATE_ARRAYS, LAYER_ARRAYS, SHARED_ARRAYS, GateState, LayerState, ScanState

SCHEMA = 2
"""What this version reads: 1, and 2 of gated neurons, which older versions would take for others."""

KIND = "ffnmem scan state"


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
class Progress:
    """How far a scan is: whole units are in ``ScanState.done``; ``batch`` counts batches done of the unit after them.

    ``rescored`` counts winners' sequences that were run again. ``shard`` is (index, count).
    """

    shard: tuple[int, int] = (0, 1)
    batch: int = 0
    rescored: int = 0
    complete: bool = False

    def with_(self, **changes: Any) -> Progress:
        return replace(self, **changes)


def save_state(path: Path, state: ScanState, identity: Identity, progress: Progress) -> None:
    """Write a state under a temporary name, then rename it. Raises FileError."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    arrays = {name: getattr(state, name) for name in SHARED_ARRAYS}
    for index, layer in enumerate(state.layers):
        arrays |= {f"{index}.{name}": getattr(layer, name) for name in LAYER_ARRAYS}
        if layer.gate is not None:
            arrays |= {f"{index}.gate.{name}": getattr(layer.gate, name) for name in GATE_ARRAYS}
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    header = {
        "kind": KIND,
        "schema": 2 if state.gated else 1,
        "settings": state.settings.as_dict(),
        "identity": {f.name: getattr(identity, f.name) for f in fields(Identity)},
        "progress": {f.name: getattr(progress, f.name) for f in fields(Progress)},
        "tokens": state.tokens,
        "n_sequences": state.n_sequences,
        "n_layers": len(state.layers),
        "checksums": {name: checksum(array) for name, array in arrays.items()},
    }
    text = json.dumps(header, sort_keys=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        # One entry of metadata: several would be written in an order that changes from run to run.
        save_file(arrays, temporary, {"ffnmem": f"{zlib.crc32(text.encode()):08x} {text}"})
        readable(temporary)
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise FileError(f"cannot write {path}: {reason or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def checksum(array: np.ndarray) -> int:
    """Of an array's type, shape and bytes: a damaged header may give the same bytes another shape."""
    return zlib.crc32(np.ascontiguousarray(array).data, zlib.crc32(f"{array.dtype} {array.shape}".encode()))


class StateFile:
    """A state on disk, read array by array, each checked when it is read."""

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.path = path
        try:
            opened: Any = safe_open(path, framework="numpy")
            metadata = opened.metadata() or {}
        except FileNotFoundError:
            raise FileError(f"there is no {path}") from None
        except (OSError, SafetensorError) as error:
            raise FileError(f"{path} is truncated or damaged: {error}") from None
        checked, _, text = metadata.get("ffnmem", "").partition(" ")
        if checked != f"{zlib.crc32(text.encode()):08x}":
            raise FileError(f"{path} is no scan state, or its header is damaged")
        header: dict[str, Any] = json.loads(text)
        if header.get("kind") != KIND:
            raise FileError(f"{path} is no scan state but a {quoted(header.get('kind'))}")
        if header["schema"] > SCHEMA:
            raise FileError(
                f"{path} has schema {header.get('schema')}; this version of ffnmem reads up to {SCHEMA}: "
                "install a newer one"
            )
        self.file = opened
        self.header: Mapping[str, Any] = header
        self.settings = ScanSettings.from_dict(header["settings"])
        self.identity = Identity(**header["identity"])
        progress = dict(header["progress"])
        self.progress = Progress(**{**progress, "shard": tuple(progress["shard"])})
        self.n_layers = int(header["n_layers"])

    def array(self, name: str) -> np.ndarray:
        """One array, checked; raises FileError."""
        from safetensors import SafetensorError

        try:
            array: np.ndarray = self.file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise FileError(f"{self.path} is damaged: {name} cannot be read ({error})") from None
        if checksum(array) != self.header["checksums"].get(name):
            raise FileError(f"{self.path} is damaged: {name} does not match its checksum")
        return array

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
            tokens=int(self.header["tokens"]),
            n_sequences=int(self.header["n_sequences"]),
        )
