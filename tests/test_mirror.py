"""The tests mirror the package one to one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.helpers import REPOSITORY

PACKAGE = REPOSITORY / "ffnmem"


def holds_code(module: Path) -> bool:
    """Whether a module defines a function or a class, rather than only re-exporting names or naming a version."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(isinstance(node, kinds) for node in ast.parse(module.read_text("utf-8")).body)


def test_of(module: Path) -> Path:
    """Where a module's tests are: ``ffnmem/a/b.py`` has ``tests/a/test_b.py``, ``a/__init__.py`` ``a/test_init.py``."""
    place = module.relative_to(PACKAGE)
    return REPOSITORY / "tests" / place.parent / f"test_{place.stem.strip('_')}.py"


test_of.__test__ = False  # type: ignore[attr-defined]

MODULES = sorted(module for module in PACKAGE.rglob("*.py") if holds_code(module))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_every_module_has_its_tests(module: Path) -> None:
    """A module without a test module is one that nobody tests, or whose tests nobody finds."""
    assert test_of(module).is_file(), f"{test_of(module).relative_to(REPOSITORY)} is missing"
    assert (test_of(module).parent / "__init__.py").is_file()
