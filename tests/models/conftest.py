"""What tests of models share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """A copy of ``tiny_folder`` to break."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "broken"))
