"""The manifest: written last, checked by itself, and strict about the files that it names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import ffnmem as fm
from ffnmem.core.checked_files import digest_of
from ffnmem.core.errors import FileError
from ffnmem.scanning.manifest import FOLDER, MANIFEST, check_file, file_record, read_manifest

from ..helpers import refuses


@pytest.fixture
def folder(tiny_store: fm.scanning.Store, tmp_path: Path) -> Path:
    """A store that a test may break."""
    shutil.copytree(tiny_store.folder, tmp_path / "store")
    return tmp_path / "store"


def change(folder: Path, **values: object) -> None:
    manifest = {**json.loads((folder / MANIFEST).read_text()), **values}
    manifest["checksum"] = digest_of(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_that_it_vouches_for_its_files(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert len(manifest["files"]) == 5
    for name, record in manifest["files"].items():
        assert record == file_record(folder / name)
        check_file(folder / name, record, content=True)


def test_that_a_changed_number_is_noticed(folder: Path) -> None:
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text.replace('"k": 3', '"k": 4'))
    with refuses(FileError, OSError, MANIFEST, "damaged"):
        read_manifest(folder)


def test_that_newer_and_other_manifests_are_named(folder: Path) -> None:
    change(folder, schema=99)
    with refuses(FileError, OSError, "schema 99", "newer"):
        read_manifest(folder)
    change(folder, schema=1, kind="something else")
    with refuses(FileError, OSError, "no store"):
        read_manifest(folder)
    (folder / MANIFEST).write_text("[")
    with refuses(FileError, OSError, MANIFEST, "cannot be read"):
        read_manifest(folder)


def test_that_an_unfinished_scan_is_told_from_no_store(folder: Path, tmp_path: Path) -> None:
    FOLDER.mark(folder)
    with refuses(FileError, OSError, "unfinished scan"):
        read_manifest(folder)
    with refuses(FileError, OSError, "no store"):
        read_manifest(tmp_path)
    with refuses(FileError, OSError, "no store at"):
        read_manifest(tmp_path / "nothing")


def test_that_files_are_compared_by_size_and_content(folder: Path) -> None:
    path = folder / "stats.parquet"
    record = file_record(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    check_file(path, record, content=False)
    with refuses(FileError, OSError, "stats.parquet", "damaged"):
        check_file(path, record, content=True)
    path.write_bytes(bytes(data[:-1]))
    with refuses(FileError, OSError, "truncated", str(record["bytes"])):
        check_file(path, record, content=False)
    path.unlink()
    with refuses(FileError, OSError, "missing"):
        check_file(path, record, content=False)
