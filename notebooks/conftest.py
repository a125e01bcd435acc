"""Notebooks that need the real model are skipped, and say why, where the package index cannot be reached."""

from __future__ import annotations

from functools import cache

import pytest

from ffnmem.core.errors import MissingExtraError, ModelError
from ffnmem.models import get


@cache
def lacking() -> str:
    """Why the real model cannot be had here, or nothing."""
    try:
        get("smollm2")
    except (MissingExtraError, ModelError) as error:
        return str(error)
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.suffix == ".ipynb" and 'models.get(\\"smollm2\\")' in item.path.read_text("utf-8") and lacking():
            item.add_marker(pytest.mark.skip(reason=lacking()))
