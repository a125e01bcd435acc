"""Folders of traces."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import ffnmem as fm
from ffnmem.errors import FileError
from ffnmem.tracing import Trace, trace_fact
from ffnmem.tracing.saving import MANIFEST, TraceFolder
from ffnmem.tracing.settings import Settings
from tests.helpers import PROMPT, refuses

SETTINGS = Settings(("state",), 1, 0.5, 2, 0, True)
FACT = fm.Fact("Eiffel Tower", "city", "The {} is in the city of", "Paris", id="eiffel")


@pytest.fixture(scope="module")
def trace(tiny: fm.Model) -> Trace:
    return trace_fact(tiny, PROMPT, "Eiffel Tower", kinds=("state",), samples=2, noise=0.5)


def test_what_is_written_is_read(tiny: fm.Model, trace: Trace, tmp_path: Path) -> None:
    folder = TraceFolder(tmp_path / "run", tiny, SETTINGS)
    assert folder.read(FACT) is None
    folder.write(FACT, trace)
    other = replace(FACT, target_true="Rome")
    folder.write(other, "not known")
    again = TraceFolder(tmp_path / "run", tiny, SETTINGS)
    found = again.read(FACT)
    assert isinstance(found, Trace)
    assert found.to_dict() == trace.to_dict()
    assert again.read(other) == "not known", "two facts of one id share a file"


def test_another_model_or_other_settings_are_refused(
    tiny: fm.Model, make_tiny: Callable[..., fm.Model], tmp_path: Path
) -> None:
    """Traces of two models or two noises must not be averaged."""
    TraceFolder(tmp_path, tiny, SETTINGS)
    edited = make_tiny(dtype="float64")
    with refuses(FileError, OSError, "fingerprint", tiny.fingerprint, edited.fingerprint):
        TraceFolder(tmp_path, edited, SETTINGS)
    for changed, name in (
        (replace(SETTINGS, noise=0.6), "noise"),
        (replace(SETTINGS, window=2), "window"),
        (replace(SETTINGS, kinds=("ffn",)), "kinds"),
        (replace(SETTINGS, samples=3), "samples"),
        (replace(SETTINGS, prepend_bos=False), "prepend_bos"),
    ):
        with refuses(FileError, OSError, name, str(tmp_path)):
            TraceFolder(tmp_path, tiny, changed)


def test_folders_that_are_not_ours(tiny: fm.Model, tmp_path: Path) -> None:
    """Nothing of the user's is replaced or mixed with."""
    file = tmp_path / "file"
    file.write_text("mine")
    with refuses(FileError, OSError, "file"):
        TraceFolder(file, tiny, SETTINGS)
    with refuses(FileError, OSError, "other things"):
        TraceFolder(tmp_path, tiny, SETTINGS)
    (tmp_path / MANIFEST).write_text('{"kind": "a store"}')
    with refuses(FileError, OSError, "other things"):
        TraceFolder(tmp_path, tiny, SETTINGS)
    (tmp_path / MANIFEST).write_text('{"kind": "ffnmem traces", "schema": 99}')
    with refuses(FileError, OSError, "99"):
        TraceFolder(tmp_path, tiny, SETTINGS)
    with refuses(FileError, OSError, "below"):
        TraceFolder(file / "below", tiny, SETTINGS)
    assert file.read_text() == "mine"


def test_a_half_made_folder_goes_on(tiny: fm.Model, tmp_path: Path) -> None:
    """Killed while its manifest was written, a run leaves a file with a dot in front."""
    (tmp_path / ".manifest.json.1234.tmp").write_text("{")
    assert TraceFolder(tmp_path, tiny, SETTINGS).read(FACT) is None


def test_damaged_files_are_named(tiny: fm.Model, trace: Trace, tmp_path: Path) -> None:
    folder = TraceFolder(tmp_path, tiny, SETTINGS)
    path = folder.path(FACT)
    record = trace.to_dict()
    for content in ("{", "[]", json.dumps({**record, "tokens": None}), json.dumps({"fact": "eiffel"})):
        path.write_text(content)
        with refuses(FileError, OSError, path.name):
            folder.read(FACT)
