"""Progress: bars on a terminal's standard error, elsewhere one line for what takes long; words for every phase."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import get_args

import pytest

from ffnmem.cli import progress as module
from ffnmem.cli.progress import show_progress, show_spinner
from ffnmem.core.progress import PHASES, Phase

Clock = Callable[[float], None]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Lets seconds pass."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


def test_a_pipe_gets_one_line_for_each_long_phase(clock: Clock, capfd: pytest.CaptureFixture[str]) -> None:
    """A pipe that was told nothing left its reader to wait in silence; a bar would fill it with control characters."""
    with show_progress() as report:
        for done in range(1, 11):
            clock(1)
            report("project", 1000 * done, 10_000)
        clock(1)
        report("read", 1, 2)
        report("read", 2, 2)
        for done in (10, 20):
            clock(6)
            report("pack", done, 1000 * done)
    assert capfd.readouterr() == (
        "",
        "ffnmem: projecting values: 5,000 of 10,000 neurons, about 5 s left\nffnmem: tokenising: 10 documents\n",
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_of_the_latest_phase(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some seconds; of tokenising, whose end nobody knows, with what is done."""
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    bars = module.LateBars()
    bars.report("project", 100, 10_000)
    bars.bars.refresh()
    assert "projecting" not in terminal.getvalue()
    clock(module.WAIT + 1)
    bars.bars.refresh()
    assert "projecting" in terminal.getvalue()  # also of work that reports its beginning and its end alone
    bars.report("project", 5_000, 10_000)
    bars.report("pack", 3, 500)
    bars.report("pack", 4, 600)
    first, second = bars.bars.tasks
    assert (first.visible, first.completed, first.total) == (False, 5_000, 10_000)
    assert (second.visible, second.completed, second.total) == (True, 4, None)
    assert second.fields["speed"].startswith("4 documents, 600 tokens")
    bars.stop()
    with show_spinner("loading it"):
        pass
    assert "tokenising" in terminal.getvalue()
    assert "loading it" in terminal.getvalue()


def test_every_phase_has_words() -> None:
    """A function that reports a phase without words ended a command in a traceback."""
    assert set(get_args(Phase)) == set(PHASES)
