"""A bar for work that may or may not take long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from .progress import Progress

WAIT = 2.0  # seconds before a bar is worth showing


@contextmanager
def late_bar(phase: str) -> Iterator[Callable[[int, int], None]]:
    """A callback (done, all) that draws a bar on standard error if that is a terminal, after two seconds."""
    began = time.monotonic()
    shown: Progress | None = None
    with ExitStack() as stack:

        def report(done: int, total: int) -> None:
            nonlocal shown
            if shown is None and time.monotonic() - began > WAIT:
                shown = stack.enter_context(Progress())
            if shown is not None:
                shown.report(phase, done, total)

        yield report
