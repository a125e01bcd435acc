"""The manifest of a store: what it says of itself, and the checksums by which it vouches for its files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from .._version import __version__
from ..core.checked_files import Form, check_regular, file_hash, is_whole, read_json, with_checksum
from ..core.errors import FileError
from ..core.files import write_whole
from ..core.folders import UNFINISHED, Kind
from .state_file import StateFile
from .tables import CORPUS, STATE, STATS, TOKENIZER, VALUES

SCHEMA = 3  # since what FFNs read at random positions is kept
KIND = "ffnmem store"
MANIFEST = "manifest.json"
FOLDER = Kind(MANIFEST, KIND, SCHEMA, "the store", subfolders=(CORPUS,))
NAMES = (STATE, STATS, VALUES, TOKENIZER)

FORM = Form(KIND, SCHEMA, "store: make one with scan (ffnmem scan)", "scan again, into a new folder")


def write_manifest(folder: Path, content: dict[str, Any], names: Sequence[str] = NAMES) -> None:
    """Vouch for the store's files by size and checksum; until then the manifest only says what the folder is for."""
    manifest = {
        "kind": KIND,
        "schema": SCHEMA,
        **content,
        "ffnmem": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "files": {name: file_record(folder / name) for name in names},
    }
    write_whole(folder / MANIFEST, json.dumps(with_checksum(manifest), indent=1, sort_keys=True) + "\n")


def file_record(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": file_hash(path)}


def read_manifest(folder: Path) -> dict[str, Any]:
    """What the manifest of a store says, checked by itself; raises FileError."""
    path = folder / MANIFEST
    if not path.exists():
        if not folder.is_dir():
            raise FileError(f"there is no store at {folder}")
        if (folder / "config.json").is_file():
            raise FileError(f"{folder} is a model, no store: fm.load opens it, scan (ffnmem scan) makes a store of it")
        raise FileError(f"{folder} is no store: make one with scan (ffnmem scan)")
    found = read_json(path)
    if found.get("kind") == KIND and UNFINISHED in found:
        raise FileError(f"{folder} holds an unfinished scan: run the same scan again, it goes on")
    return FORM.fit(path, found, is_whole)


def check_file(path: Path, record: Mapping[str, Any], content: bool) -> None:
    """Raise FileError if a file is missing, of another size or, if asked, of other content."""
    size = check_regular(path, f"{path} is missing: scan again")
    if size != record["bytes"]:
        raise FileError(f"{path} is truncated or changed: {size} bytes instead of {record['bytes']}")
    if content and file_hash(path) != record["sha256"]:
        raise FileError(f"{path} is damaged: its checksum does not match")


def is_vouched_for(folder: Path) -> bool:
    """Whether a manifest vouches for a finished store, and all its files are there, of the sizes that it says."""
    try:
        for name, record in read_manifest(folder)["files"].items():
            check_file(folder / name, record, content=False)
    except FileError:
        return False
    return True


def check_agreement(folder: Path, manifest: Mapping[str, Any], state: StateFile) -> None:
    """Raise FileError unless the state is the one that the manifest was written beside, and finished."""
    if manifest["state_header"] != state.digest:
        raise FileError(f"{state.path} is of another scan than {folder / MANIFEST}: scan again")
    if not state.progress.complete:
        raise FileError(f"{state.path} is the checkpoint of a scan that is not finished: run the same scan again")
