"""The public face: small, complete, in subpackages, and cheap to import."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import ffnmem as fm

HEAVY = ("torch", "transformers", "transformer_lens", "matplotlib", "pandas", "numpy", "jinja2")

IMPORT = """
import json, sys, time
start = time.perf_counter()
import ffnmem
print(json.dumps([time.perf_counter() - start, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def stub(package: ModuleType) -> dict[str, str]:
    """Public name -> the module that it comes from, as type checkers read it."""
    tree = ast.parse(Path(str(package.__file__)).with_suffix(".pyi").read_text("utf-8"))
    found = [
        (alias, node.module or "") for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    assert all(alias.asname == alias.name for alias, _ in found)  # else the name is not public for type checkers
    return {alias.name: module for alias, module in found}


SUBPACKAGES = sorted(name for name, module in stub(fm).items() if not module)


def test_the_top_is_small() -> None:
    """The top would grow into a list that nobody reads."""
    assert len(set(fm.__all__) - set(SUBPACKAGES)) <= 38


@pytest.mark.parametrize("package", ["ffnmem", *(f"ffnmem.{subpackage}" for subpackage in SUBPACKAGES)])
def test_names_are_the_objects_of_their_homes(package: str) -> None:
    """Editors and mypy would offer other names than Python does; a copy make isinstance and `is` fail; a module of the
    same name hide the object once imported."""
    module = importlib.import_module(package)
    homes = stub(module)
    assert sorted(homes) == sorted(module.__all__) == sorted(dir(module))
    for name in (name for name in module.__all__ if homes[name] and name != "__version__"):
        found = getattr(module, name)
        assert found is getattr(importlib.import_module(f".{homes[name]}", package), name)
        assert not isinstance(found, ModuleType)
        assert not (Path(str(module.__file__)).parent / f"{name}.py").exists()


def test_version_is_the_installed_one() -> None:
    """Provenance would record a version that was never installed."""
    assert fm.__version__ == importlib.metadata.version("ffnmem")


def test_import_is_light() -> None:
    """Importing must not load torch and the like; the time is a coarse second gate, best of three."""
    plain = {name: value for name, value in os.environ.items() if name != "EAGER_IMPORT"}
    runs = [
        json.loads(subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, check=True, env=plain).stdout)
        for _ in range(3)
    ]
    assert not set(HEAVY) & set(runs[0][1])
    assert min(seconds for seconds, _ in runs) < 0.5


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("memit", "ffnmem.editing.memit"),
        ("plot_decay", "ffnmem.plots.decay"),
        ("rom", "'ffnmem' has no attribute 'rom'"),
    ],
)
def test_a_missing_name_says_which_subpackage_has_it(name: str, place: str) -> None:
    """Else a user would look for it in twenty subpackages."""
    with pytest.raises(AttributeError, match=place):
        getattr(fm, name)
