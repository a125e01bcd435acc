"""Progress of long work on standard error: bars on a terminal, elsewhere one line for each phase that takes long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from ..core.errors import counted
from ..core.progress import PHASES, Phase
from ..core.progress import Progress as Told
from .guard import note

WAIT = 2.0  # seconds before a bar is worth showing, of work that may or may not take long
SILENCE = 5.0  # seconds of a phase after which a line tells of it, where there is no terminal


class Progress:
    """Bars for the phases of long work, each with its speed and, where the end is known, the time left.

    Where standard error is no terminal, a phase that takes longer than ``SILENCE`` is told of once, in a plain line.

    Args:
        wait: seconds before a bar is shown.
    """

    def __init__(self, wait: float = 0.0) -> None:
        console = Console(stderr=True)
        self.terminal = console.is_terminal
        self.bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[speed]}", style="dim"),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            disable=not self.terminal,
        )
        self.tasks: dict[str, int] = {}
        self.latest = time.monotonic()  # when something was reported
        self.shown_at = self.latest + wait
        self.phase, self.since, self.first = "", self.latest, (self.latest, 0)

    def __enter__(self) -> Progress:
        self.show()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bars.live.is_started:
            self.bars.stop()

    def show(self) -> None:
        """Show the bars, once it is time."""
        if not self.bars.live.is_started and time.monotonic() >= self.shown_at:
            self.bars.start()

    def wait(self, what: str) -> None:
        """A bar without an end."""
        self.bars.add_task(Text(what).plain, total=None, speed="")

    def report(self, phase: Phase, done: int, total: int) -> None:
        """``done`` of ``total`` of a phase; tokenising knows no total, and says documents and tokens instead."""
        known, (words, unit) = phase != "pack", PHASES[phase]
        if not self.terminal:
            self.tell(phase, done, total if known else None)
            return
        self.show()
        if phase not in self.tasks:
            for task in self.tasks.values():
                self.bars.update(task, visible=False)  # type: ignore[arg-type]
            self.tasks[phase] = self.bars.add_task(words, total=total if known else None, speed="")
        task = self.tasks[phase]
        self.bars.update(task, completed=done, total=total if known else None)  # type: ignore[arg-type]
        speed = self.bars.tasks[self.bars.task_ids.index(task)].speed  # type: ignore[arg-type]
        rate = f"{speed:,.0f} {unit}/s" if speed else ""
        count = "" if known else f"{counted(done, 'document')}, {total:,} tokens  "
        self.bars.update(task, speed=count + rate)  # type: ignore[arg-type]

    def tell(self, phase: Phase, done: int, total: int | None) -> None:
        """Say in one line how far a phase is that has taken long, and about how long the rest of it will take."""
        now = time.monotonic()
        if phase != self.phase:
            self.phase, self.since, self.first = phase, self.latest, (now, done)
        self.latest = now
        if phase in self.tasks or done == total or now - self.since < SILENCE:
            return
        self.tasks[phase] = 0
        words, unit = PHASES[phase]
        (began, before), of = self.first, "" if total is None else f"of {total:,} "
        left = (
            f", about {(now - began) * (total - done) / (done - before):,.0f} s left" if total and done > before else ""
        )
        note(f"{words}: {done:,} {of}{unit}{left}")


@contextmanager
def late_bar() -> Iterator[Told]:
    """A callback (phase, done, all) that shows a bar after two seconds, for work that may or may not take long."""
    with Progress(WAIT) as bars:
        yield bars.report
