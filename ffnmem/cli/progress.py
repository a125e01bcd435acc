"""Progress of long work on standard error: bars on a terminal, elsewhere one line for each phase that takes long."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ..core.errors import counted
from ..core.progress import PHASES, Phase, Progress
from .guard import note

WAIT = 2.0  # seconds before a bar is worth showing
SILENCE = 5.0  # seconds of a phase after which a line tells of it, where there is no terminal


@contextmanager
def show_progress() -> Iterator[Progress]:
    """A callback (phase, done, total) that shows how far work is that takes long."""
    if not sys.stderr.isatty():
        yield PhaseLines().report
        return
    bars = LateBars()
    try:
        yield bars.report
    finally:
        bars.stop()


@contextmanager
def show_spinner(words: str) -> Iterator[None]:
    """A line with a spinner, on a terminal, while a block runs that cannot say how far it is."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    from ..show.terminal import user_text

    with Console(stderr=True).status(user_text(words, "dim")):
        yield


class PhaseLines:
    """One plain line for each phase that takes longer than ``SILENCE``."""

    def __init__(self) -> None:
        self.latest = time.monotonic()  # when something was reported
        self.phase, self.since, self.first, self.noted = "", self.latest, (self.latest, 0), False

    def report(self, phase: Phase, done: int, total: int) -> None:
        """Say how far a phase is that has taken long, and about how long the rest of it will take."""
        now = time.monotonic()
        if phase != self.phase:
            self.phase, self.since, self.first, self.noted = phase, self.latest, (now, done), False
        self.latest = now
        known = phase != "pack"  # of tokenising nobody knows the end
        if self.noted or (known and done == total) or now - self.since < SILENCE:
            return
        self.noted = True
        words, unit = PHASES[phase]
        began, before = self.first
        of = f"of {total:,} " if known else ""
        left = (now - began) * (total - done) / (done - before) if known and done > before else None
        note(f"{words}: {done:,} {of}{unit}" + ("" if left is None else f", about {left:,.0f} s left"))


class LateBars:
    """A bar for the latest phase, with its speed and, where the end is known, the time left; the first one after
    ``WAIT`` seconds, whether or not more was reported until then."""

    def __init__(self) -> None:
        self.shown_at = time.monotonic() + WAIT
        self.bars: Any = None
        self.phase, self.task = "", 0

    def start(self) -> Any:
        """Bars that are drawn once it is time."""
        from rich.console import Console, RenderableType
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        shown_at = self.shown_at

        class LateProgress(RichProgress):
            def get_renderables(self) -> Iterable[RenderableType]:
                return super().get_renderables() if time.monotonic() >= shown_at else ()

        bars = LateProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[speed]}", style="dim"),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
            transient=True,
        )
        bars.start()
        return bars

    def report(self, phase: Phase, done: int, total: int) -> None:
        """``done`` of ``total`` of a phase; tokenising knows no total, and says documents and tokens instead."""
        if self.bars is None:
            self.bars = self.start()
        known, (words, unit) = phase != "pack", PHASES[phase]
        if phase != self.phase:
            if self.phase:
                self.bars.update(self.task, visible=False)
            self.phase, self.task = phase, self.bars.add_task(words, total=None, speed="")
        self.bars.update(self.task, completed=done, total=total if known else None)
        speed = self.bars.tasks[self.bars.task_ids.index(self.task)].speed
        count = "" if known else f"{counted(done, 'document')}, {total:,} tokens  "
        self.bars.update(self.task, speed=count + (f"{speed:,.0f} {unit}/s" if speed else ""))

    def stop(self) -> None:
        """Take the bar away."""
        if self.bars is not None:
            self.bars.stop()
