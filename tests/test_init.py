"""The public face: small, complete, and cheap to import."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

import ffnmem as fm

HEAVY = ("torch", "transformers", "transformer_lens", "matplotlib", "pandas", "numpy", "jinja2")

IMPORT = """
import json, sys, time
start = time.perf_counter()
import ffnmem
print(json.dumps([time.perf_counter() - start, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def test_all_is_what_can_be_reached() -> None:
    """A name in __all__ that does not resolve, or one that resolves and is not in __all__, breaks the contract."""
    assert sorted(fm.__all__) == dir(fm) == sorted({*fm._HOMES, "__version__"})
    assert len(set(fm.__all__)) == len(fm.__all__)
    for name in fm.__all__:
        assert getattr(fm, name) is not None


@pytest.mark.parametrize("name", fm._HOMES)
def test_a_name_is_the_object_of_its_home(name: str) -> None:
    """A lazily made copy would make isinstance and `is` fail between the two ways to import."""
    home = __import__(f"ffnmem.{fm._HOMES[name]}", fromlist=[name])
    assert getattr(fm, name) is getattr(home, name)


def test_type_checkers_see_the_same_names() -> None:
    """Editors and mypy would offer other names than Python does."""
    tree = ast.parse(Path(fm.__file__).read_text("utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert imported == fm._HOMES


def test_unknown_attribute() -> None:
    """hasattr and friends rely on AttributeError."""
    with pytest.raises(AttributeError, match="'ffnmem' has no attribute 'rom'"):
        _ = fm.rom


def test_version_is_the_installed_one() -> None:
    """Provenance would record a version that was never installed."""
    assert fm.__version__ == importlib.metadata.version("ffnmem")


def test_import_is_light() -> None:
    """Importing must not load torch and the like; the time is a coarse second gate, best of three."""
    runs = []
    for _ in range(3):
        out = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True, timeout=60)
        assert not out.stderr
        runs.append(json.loads(out.stdout))
    assert not set(HEAVY) & set(runs[0][1])
    assert min(seconds for seconds, _ in runs) < 0.5
