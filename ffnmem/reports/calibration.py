"""What notebooks show of a calibration."""

from __future__ import annotations

from ..calibration import Calibration
from ..calibration.calibration import TABLES
from ..calibration.meaning_scores import K
from ..semantics.verdicts import VERDICTS
from ..show.rendering import provenance_line
from .templating import display


def calibration_html(calibration: Calibration) -> str:
    """A calibration: measures, verdicts, nulls, roles and facts, as far as they were asked for."""
    there = calibration.tables
    rows = {name: there[name].to_dict("records") if name in there else [] for name in TABLES if name != "curves"}
    settings = {
        name: ", ".join(f"{v:g}" for v in value) if isinstance(value, list) else value
        for name, value in calibration.settings.items()
        if name not in ("kinds", "standard")
    }
    return display(
        "calibration.html",
        tables=rows,
        verdicts=VERDICTS,
        k=K,
        superposition=calibration.settings.get("standard"),
        false_polysemantic=calibration.false_polysemantic,
        random_polysemantic=calibration.random_polysemantic,
        provenance=provenance_line(settings),
    )
