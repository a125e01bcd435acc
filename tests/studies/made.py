"""Small studies of random models, with settings under which each finds something."""

from __future__ import annotations

from typing import Any

import ffnmem as fm
from ffnmem.scanning import Store
from ffnmem.studies import Study
from ffnmem.studies.study import study_module

SMALL: dict[str, dict[str, Any]] = {
    "geva2021": {"keys": 5, "prefixes": 3, "n_sequences": 12, "updates": 4},
    "voita2023": {"types": 20, "coverage": 0.5, "position": 0.01, "min_count": 3, "n_sequences": None},
    "gurnee2024": {"kurtosis": 2.7, "io": 0.3, "n_sequences": None},
}


def small(name: str, model: fm.Model, store: Store, **changes: Any) -> Study:
    """A study's result, without its files."""
    found: Study = study_module(name).study(model, store, **{**SMALL[name], **changes})
    return found
