"""``plant``: a model whose memories are written by hand, so that the truth about them is known."""

from __future__ import annotations

from typing import Any

from facts import plant_facts
from meanings import plant_meanings
from roles import plant_roles
from skeleton import Planted

PLANT = {"meanings": plant_meanings, "roles": plant_roles, "facts": plant_facts}


def plant(kind: str, *, seed: int = 0, **parameters: Any) -> Planted:
    """A model whose truth is known.

    Args:
        kind: "meanings" (neurons of one concept, of several, dead; with ``experts``, those of a Mixtral), "roles"
            (prediction, suppression, partition, entropy, position, token frequency, token detectors, dead) or "facts"
            (recalled early, at the subject's last token, or late, at the last token).
        seed: of everything random; the same seed and parameters give the same weights.
        parameters: of the kind, see ``plant_meanings``, ``plant_roles`` and ``plant_facts``.
    """
    return PLANT[kind](seed=seed, **parameters)
