"""The manifest of a store: what it says of itself, and the checksums by which it vouches for its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from .._version import __version__
from ..errors import FileError
from ..files import write_whole
from ..folders import UNFINISHED, Kind
from .writing import CORPUS, EXAMPLES, STATE, STATS, TOKENIZER, VALUES

SCHEMA = 2
"""What this version reads: 1, and 2 of gated neurons, whose examples have kinds and columns of their own."""

KIND = "ffnmem store"
MANIFEST = "manifest.json"
FOLDER = Kind(MANIFEST, KIND, SCHEMA, "the store", rooms=(CORPUS,))


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    """Vouch for the store's files by size and checksum; until then the manifest only says what the folder is for."""
    names = [STATE, EXAMPLES, STATS, VALUES, TOKENIZER]
    manifest = {
        "kind": KIND,
        "schema": 2 if content.get("gated") else 1,
        **content,
        "ffnmem": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "files": {name: file_record(folder / name) for name in names},
    }
    manifest["checksum"] = manifest_checksum(manifest)
    write_whole(folder / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True) + "\n")


def manifest_checksum(manifest: dict[str, Any]) -> str:
    """Over everything but the checksum itself."""
    rest = {name: value for name, value in manifest.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:32]


def file_record(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": file_hash(path)}


def file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        if not folder.is_dir():
            raise FileError(f"there is no store at {folder}") from None
        raise FileError(f"{folder} is no store: make one with scan (ffnmem scan)") from None
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"{path} cannot be read: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("kind") != KIND:
        raise FileError(f"{path} describes no store: make one with scan (ffnmem scan)")
    if UNFINISHED in manifest:
        raise FileError(f"{folder} holds an unfinished scan: run the same scan again, it goes on")
    schema = manifest.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA:
        raise FileError(f"{path} has schema {schema}; this version of ffnmem reads up to {SCHEMA}: install a newer one")
    if manifest.get("checksum") != manifest_checksum(manifest):
        raise FileError(f"{path} is damaged: its checksum does not match")
    return manifest


def check_file(path: Path, record: Mapping[str, Any], content: bool) -> None:
    """Raise FileError if a file is missing, of another size or, if asked, of other content."""
    try:
        size = path.stat().st_size
    except OSError:
        raise FileError(f"{path} is missing: scan again") from None
    if size != record["bytes"]:
        raise FileError(f"{path} is truncated or changed: {size} bytes instead of {record['bytes']}")
    if content and file_hash(path) != record["sha256"]:
        raise FileError(f"{path} is damaged: its checksum does not match")
