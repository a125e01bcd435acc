"""Progress of long work on standard error, where that is a terminal; silent otherwise."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from ..core.errors import counted
from ..core.progress import Progress as Told

PHASES = {  # what is said of each, and what it counts
    "download": ("downloading", "files"),
    "convert": ("dequantising", "models"),
    "compare": ("comparing with what was downloaded", "models"),
    "pack": ("tokenising", "documents"),
    "scan": ("scanning", "tokens"),
    "rescore": ("running candidates again in float32", "tokens"),
    "project": ("projecting values", "neurons"),
    "read": ("reading neurons", "neurons"),
    "pages": ("writing pages", "neurons"),
    "reports": ("writing reports", "reports"),
    "shade": ("reading examples again", "tokens"),
    "ablate": ("removing neurons", "neurons"),
    "circuit": ("expanding firings", "firings"),
    "calibrate": ("measuring planted models", "models"),
    "weights": ("comparing values with the vocabulary", "neurons"),
    "text": ("reading text", "tokens"),
    "prefixes": ("removing tokens from keys' prefixes", "keys"),
    "positions": ("reading positions", "positions"),
    "inputs": ("reading inputs again", "tokens"),
    "meanings": ("comparing examples", "neurons"),
    "explain": ("asking for descriptions", "questions"),
    "judge": ("asking for judgements", "questions"),
    "directions": ("reading text along directions", "tokens"),
    "verdicts": ("judging", "directions"),
    "geometry": ("comparing keys and values", "layers"),
    "duplicates": ("seeking near-duplicates", "pairs of layers"),
    "edit": ("finding what to write", "facts"),
    "trace": ("restoring states", "columns"),
    "traces": ("tracing facts", "facts"),
    "silence": ("silencing", "columns"),
    "silences": ("silencing facts", "facts"),
    "virtual": ("comparing weights", "layers"),
    "knockout": ("blocking attention", "batches"),
    "knockouts": ("blocking attention", "facts"),
    "evaluate": ("editing and asking", "edits"),
    "moment": ("reading text", "tokens"),
    "lens": ("going back through text", "dimensions"),
    "known": ("asking for facts", "facts"),
    "health": ("reading text, forward and back", "tokens"),
    "dying": ("training", "steps"),
}


class Progress:
    """Bars for the phases of a scan, each with its speed and, where the end is known, the time left."""

    def __init__(self) -> None:
        self.bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[speed]}", style="dim"),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
            transient=True,
            disable=not Console(stderr=True).is_terminal,
        )
        self.tasks: dict[str, int] = {}

    def __enter__(self) -> Progress:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def wait(self, what: str) -> None:
        """A bar without an end."""
        self.bars.add_task(Text(what).plain, total=None, speed="")

    def report(self, phase: str, done: int, total: int) -> None:
        """``done`` of ``total`` of a phase; tokenising knows no total, and says documents and tokens instead."""
        known, (words, unit) = phase != "pack", PHASES[phase]
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


# A bar for work that may or may not take long.

WAIT = 2.0  # seconds before a bar is worth showing


@contextmanager
def late_bar() -> Iterator[Told]:
    """A callback (phase, done, all) that draws a bar on standard error if that is a terminal, after two seconds."""
    began = time.monotonic()
    shown: Progress | None = None
    with ExitStack() as stack:

        def report(phase: str, done: int, total: int) -> None:
            nonlocal shown
            if shown is None and time.monotonic() - began > WAIT:
                shown = stack.enter_context(Progress())
            if shown is not None:
                shown.report(phase, done, total)

        yield report
