"""Editors' names and settings on the command line."""

from __future__ import annotations

from typing import Any

import pytest

import ffnmem as fm
from ffnmem.cli.edit import EditorSettings
from ffnmem.core.errors import InputError
from ffnmem.core.types import EDITORS as NAMES
from ffnmem.core.types import WITHOUT_LAYER, WITHOUT_MOMENT
from ffnmem.evaluation import EDITORS

from ..helpers import refuses


def test_names_are_the_librarys() -> None:
    """They stand apart, because the editors need torch."""
    assert tuple(EDITORS) == (*NAMES, "none")
    assert set(WITHOUT_MOMENT) == {name for name, e in EDITORS.items() if e.one is not None and e.procedure is None}
    assert set(WITHOUT_LAYER) <= set(WITHOUT_MOMENT)
    assert all(hasattr(fm.editing, name.removesuffix("_original")) for name in NAMES)
    assert all("force" in e.options for e in EDITORS.values() if e.one is not None)


@pytest.mark.parametrize(
    ("editors", "chosen", "expected"),
    [
        (["rome"], [("steps", 3), ("ridge", 0.1)], {"ridge": 0.1, "settings": {"steps": 3}}),
        (["ft_l"], [("steps", 3)], {"steps": 3}),
        (["memit", "ft_l"], [("layers", 2), ("clamp", 2)], {"layers": 2, "settings": {"clamp": 2}}),
    ],
)
def test_own_options_and_settings(editors: list[str], chosen: list[tuple[str, Any]], expected: dict[str, Any]) -> None:
    """ft_l has steps of its own; those of others are of v*."""
    assert EditorSettings(settings=chosen).arguments(editors) == expected
    assert EditorSettings(moment="m", force=True).arguments(["rome"], 0) == {"layer": 0, "moment": "m", "force": True}


def test_what_does_nothing_is_refused() -> None:
    for editors, settings, layer, named in (
        (["embedding_swap"], EditorSettings(), 3, "--layer"),
        (["ft_l", "none"], EditorSettings(moment="m"), None, "--moment"),
        (["none"], EditorSettings(force=True), None, "--force"),
        (["embedding_swap"], EditorSettings(settings=[("clamp", 1)]), None, "--set clamp does nothing"),
        (["rome"], EditorSettings(settings=[("layer", 1)]), None, "layer"),
    ):
        with refuses(InputError, ValueError, named):
            settings.arguments(editors, layer)
