"""What counts as an answer to hostile input, and the decorator that makes a part of the suite."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

from ffnmem.core.errors import FfnmemError

LONGEST = 1500  # characters that a message may have, whatever the input was
TARGETS: list[Target] = []
"""Every part of the suite that was imported."""
OUTCOMES: Counter[str] = Counter()
"""How the attempts of this process ended, by part: ``"loading: ModelError"``."""


@dataclass(frozen=True)
class Target:
    """One part of the suite: what it draws and what it does with it."""

    name: str
    strategies: dict[str, SearchStrategy[Any]]
    attempt: Callable[..., None]


def answered(what: str, call: Callable[[], Any]) -> Any:
    """Run a call; an error of ours in one line is as good an answer as a result. Anything else is a failure.

    Returns what the call returned, or the error.
    """
    found: Any
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning is no failure; those of libraries come as they please
            found = call()
    except FfnmemError as error:
        found = error
    if isinstance(found, FfnmemError):
        message = str(found)
        assert message.strip(), f"{type(found).__name__} without a message"
        assert "\n" not in message, f"a message of several lines: {message!r}"
        assert len(message) <= LONGEST, f"a message of {len(message)} characters: {message[:200]!r}…"
    OUTCOMES[f"{what}: {type(found).__name__ if isinstance(found, FfnmemError) else 'success'}"] += 1
    return found


def hostile(examples: int, **strategies: SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A test that draws ``examples`` inputs in ``make test``, the same ones every time, and as many as told in a fuzz.

    The function calls :func:`answered` with whatever it does with them, and may assert more, such as that a user's
    file is still there. It takes no fixtures, since a fuzz has none: see :mod:`tests.hostile.material`.
    """

    def register(attempt: Callable[..., None]) -> Callable[..., None]:
        TARGETS.append(Target(f"{attempt.__module__.rpartition('.')[2]}.{attempt.__name__}", strategies, attempt))
        frame = settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        return frame(given(**strategies)(attempt))

    return register
