"""A disk that is full: one line, and nothing of the file is left."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.errors import FileError
from ffnmem.scanning import Store, export_store
from ffnmem.vocabulary.lenses import JacobianLens, load_lens

from .editing.edits import made as random_edit
from .helpers import PROMPT, refuses


def lens_of(model: fm.Model) -> JacobianLens:
    found = load_lens(model)
    assert found is not None
    return found


WRITERS: dict[str, Callable[[fm.Model, Store, Path], Any]] = {
    "a result": lambda model, store, path: fm.attribute(fm.capture(model, PROMPT)).save(path),
    "an edit": lambda model, store, path: random_edit(model, (0,)).save(path),
    "an edited checkpoint": lambda model, store, path: random_edit(model, (0,)).export(model, path),
    "a LoRA adapter": lambda model, store, path: random_edit(model, (0,)).export_lora(model, path),
    "a lens": lambda model, store, path: lens_of(model).save(path),
    "a published lens": lambda model, store, path: lens_of(model).publish(path),
    "a report": lambda model, store, path: fm.pages.page(fm.report(fm.capture(model, PROMPT)), path),
    "delphi's files": lambda model, store, path: export_store(store, "delphi", path),
}


@contextmanager
def full_disk() -> Iterator[None]:
    """No file may grow beyond 1,000 bytes, as if the disk were full then."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("what", WRITERS)
def test_a_full_disk_is_one_line(what: str, atlas: fm.Model, atlas_store: Store, tmp_path: Path) -> None:
    """safetensors and torch raise errors of their own kinds, with a traceback where a path would be."""
    with full_disk(), refuses(FileError, OSError, "cannot write", "out"):
        WRITERS[what](atlas, atlas_store, tmp_path / "out")
    assert not list(tmp_path.iterdir())
