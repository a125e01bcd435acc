"""``plant``: a planted model by the name of what is planted."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from math import isfinite
from numbers import Real
from typing import Any

from ..arguments import public
from ..errors import InputError, check_choice, check_seed, quoted
from .planted import Planted

KINDS = {"meanings": "meanings:plant_meanings", "roles": "roles:plant_roles", "facts": "recall:plant_facts"}
"""What can be planted, and where it is made."""


def builder(kind: str) -> Callable[..., Planted]:
    """The function behind a kind; raises InputError."""
    module, _, name = KINDS[check_choice("kind", kind, KINDS)].partition(":")
    found: Callable[..., Planted] = getattr(import_module(f".{module}", __package__), name)
    return found


def defaults(kind: str) -> dict[str, Any]:
    """The parameters of a kind, the seed among them, with their defaults; raises InputError."""
    return {name: parameter.default for name, parameter in signature(builder(kind)).parameters.items()}


@public
def plant(kind: str = "meanings", *, seed: int = 0, **parameters: Any) -> Planted:
    """A GPT-2 whose memories are written by hand, so that the truth about them is known.

    Args:
        kind: ``"meanings"`` (neurons of one concept, of several, dead), ``"roles"`` (prediction, suppression,
            partition, entropy, position, token frequency, token detectors, dead), ``"facts"`` (recalled early, at the
            subject's last token, or late, at the last token).
        seed: of everything random; the same seed and parameters give the same weights.
        parameters: of the kind, see ``plant_meanings``, ``plant_roles`` and ``plant_facts`` in ``ffnmem.planted``.

    Returns:
        A :class:`Planted`: ``.model``, ``.truth`` (one row a neuron), ``.texts`` (a corpus that exercises it),
        ``.facts``, ``.settings`` and ``.save(folder)``.

    Raises: InputError: no such kind, no such parameter of it, or a value that it cannot have.
    """
    known = defaults(kind)
    for name, value in parameters.items():
        if name not in known:
            raise InputError(f"{kind} has no parameter {quoted(name)}: it takes {', '.join(known)}")
        if not isinstance(value, str if isinstance(known[name], str) else Real):
            wanted = "a text" if isinstance(known[name], str) else "a number"
            raise InputError(f"{name} must be {wanted}, not {quoted(value)}")
        if isinstance(value, Real) and not isfinite(value):
            raise InputError(f"{name} must be a finite number, not {value}")
    return builder(kind)(seed=check_seed(seed), **parameters)
