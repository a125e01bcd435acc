"""Folders of traces."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import ffnmem as fm
from ffnmem.core.errors import FileError
from ffnmem.tracing import Trace, trace_fact
from ffnmem.tracing.settings import TraceSettings
from ffnmem.tracing.trace_folder import MANIFEST, TraceFolder, run_of

from ..helpers import PROMPT, refuses

SETTINGS = TraceSettings(("state",), 1, 0.5, "given", 2, 0, True)
FACT = fm.Fact("Eiffel Tower", "city", "The {} is in the city of", "Paris", id="eiffel")


def opened(out: Path, model: fm.Model, settings: TraceSettings) -> TraceFolder:
    with TraceFolder.kept(out, run_of(model, settings)) as folder:
        assert folder is not None
        return folder


@pytest.fixture(scope="module")
def trace(tiny: fm.Model) -> Trace:
    return trace_fact(tiny, PROMPT, "Eiffel Tower", kinds=("state",), samples=2, noise=0.5)


def test_what_is_written_is_read(tiny: fm.Model, trace: Trace, tmp_path: Path) -> None:
    folder = opened(tmp_path / "run", tiny, SETTINGS)
    assert folder.read(FACT) is None
    folder.write(FACT, trace)
    other = replace(FACT, target_true="Rome")
    folder.write(other, "not known")
    again = opened(tmp_path / "run", tiny, SETTINGS)
    found = again.read(FACT)
    assert isinstance(found, Trace)
    assert found.to_dict() == trace.to_dict()
    assert again.read(other) == "not known", "two facts of one id share a file"


def test_another_model_or_other_settings_are_refused(
    tiny: fm.Model, make_tiny: Callable[..., fm.Model], tmp_path: Path
) -> None:
    """Traces of two models or two noises must not be averaged."""
    opened(tmp_path, tiny, SETTINGS)
    edited = make_tiny(dtype="float64")
    with refuses(FileError, OSError, "fingerprint", tiny.fingerprint, edited.fingerprint):
        opened(tmp_path, edited, SETTINGS)
    for changed, name in (
        (replace(SETTINGS, noise=0.6), "noise"),
        (replace(SETTINGS, window=2), "window"),
        (replace(SETTINGS, kinds=("ffn",)), "kinds"),
        (replace(SETTINGS, samples=3), "samples"),
        (replace(SETTINGS, prepend_bos=False), "prepend_bos"),
    ):
        with refuses(FileError, OSError, name, str(tmp_path)):
            opened(tmp_path, tiny, changed)


def test_folders_that_are_not_ours(tiny: fm.Model, tmp_path: Path) -> None:
    """Nothing of the user's is replaced or mixed with."""
    file = tmp_path / "file"
    file.write_text("mine")
    with refuses(FileError, OSError, "file"):
        opened(file, tiny, SETTINGS)
    with refuses(FileError, OSError, "other things"):
        opened(tmp_path, tiny, SETTINGS)
    (tmp_path / MANIFEST).write_text('{"kind": "a store"}')
    with refuses(FileError, OSError, "other things"):
        opened(tmp_path, tiny, SETTINGS)
    (tmp_path / MANIFEST).write_text('{"kind": "ffnmem traces", "schema": 99}')
    with refuses(FileError, OSError, "99"):
        opened(tmp_path, tiny, SETTINGS)
    with refuses(FileError, OSError, "below"):
        opened(file / "below", tiny, SETTINGS)
    assert file.read_text() == "mine"


def test_a_half_made_folder_goes_on(tiny: fm.Model, tmp_path: Path) -> None:
    """Killed while its manifest was written, a run leaves a folder of ours, which a later run clears."""
    left = tmp_path / ".ffnmem-manifest.json-0123abcd.tmp"
    left.mkdir()
    (left / MANIFEST).write_text("{")
    assert opened(tmp_path, tiny, SETTINGS).read(FACT) is None
    assert not left.exists()


def test_damaged_files_are_named(tiny: fm.Model, trace: Trace, tmp_path: Path) -> None:
    folder = opened(tmp_path, tiny, SETTINGS)
    path = folder.path(FACT)
    path.parent.mkdir()
    record = trace.to_dict()
    for content in ("{", "[]", json.dumps({**record, "tokens": None}), json.dumps({"fact": "eiffel"})):
        path.write_text(content)
        with refuses(FileError, OSError, path.name):
            folder.read(FACT)
