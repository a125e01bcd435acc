"""Names, folders and ids before anything is read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ffnmem.core.errors import ModelError, ModelNotFoundError
from ffnmem.models.configs import is_cached, locate

from ..helpers import refuses


def test_what_lies_on_this_disk(tiny_folder: Path) -> None:
    """A folder would be asked for at the hub, or an embedded model be looked for in a folder."""
    assert locate(tiny_folder) == (str(tiny_folder), str(tiny_folder), True)
    name, path, local = locate("atlas")
    assert (name, local, Path(path).is_dir()) == ("atlas", True, True)
    assert locate("org/name") == ("org/name", "org/name", False)


def test_what_is_nowhere(tmp_path: Path) -> None:
    with refuses(ModelNotFoundError, FileNotFoundError, "config.json"):
        locate(tmp_path)
    with refuses(ModelNotFoundError, FileNotFoundError, "no model folder", "./x"):
        locate("./x")
    assert not is_cached("no-such-model")
    assert not is_cached("not//an id")


@pytest.mark.parametrize("file", ["tokenizer.json", "model-00001-of-00002.safetensors", "generation_config.json"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=[*"abc"])
def test_what_is_no_file(tiny_folder: Path, tmp_path: Path, file: str, make: object) -> None:
    """Opening a pipe that nobody writes to never ends; a device never does either."""
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "broken"))
    (folder / file).unlink(missing_ok=True)
    assert callable(make)
    make(folder / file)
    with refuses(ModelError, ValueError, str(folder), file, "no ordinary file"):
        locate(folder)
