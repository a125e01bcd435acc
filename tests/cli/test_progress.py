"""Progress: bars on a terminal's standard error, elsewhere one line for what takes long; words for every phase."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import get_args

import pytest
from rich.console import Console

from ffnmem.cli import progress as module
from ffnmem.cli.progress import show_progress
from ffnmem.core.progress import PHASES, Phase

from .running import PROMPT, run

Clock = Callable[[float], None]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal that keeps what is written to it."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, legacy_windows=False)
    monkeypatch.setattr("rich.console.Console", lambda **_: console)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    return stream


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Lets seconds pass."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


def test_that_a_bar_is_shown_for_what_takes_long(terminal: io.StringIO, clock: Clock) -> None:
    """Not for what is quick; and it is taken away when the work ends, also when it fails."""
    with show_progress() as report:
        report("read", 1, 2)
    assert terminal.getvalue() == ""

    def work() -> None:
        with show_progress() as report:
            clock(3)
            report("pack", 10, 1234)
            report("read", 1, 2)
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        work()
    assert "tokenising" in terminal.getvalue()
    assert "reading neurons" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is cleared


def test_that_a_pipe_gets_one_line_for_each_phase_that_takes_long(
    clock: Clock, capfd: pytest.CaptureFixture[str]
) -> None:
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


def test_that_every_phase_has_words() -> None:
    """A function that reports a phase without words ended a command in a traceback. That a phase that is reported is
    one of ``Phase`` is what mypy checks of every function."""
    assert set(get_args(Phase)) == set(PHASES)


def test_that_a_search_for_a_small_circuit_reports_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ended with a KeyError as soon as it took longer than two seconds."""
    heard: list[str] = []
    monkeypatch.setattr(module.PhaseLines, "report", lambda self, phase, done, total: heard.append(PHASES[phase][0]))
    run("causal", "minimal", PROMPT, "--share", ".5", "--json")
    assert "leaving firings out" in heard
