"""Progress: bars on a terminal's standard error, nothing elsewhere, the right phase and speed."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ffnmem.cli import progress as module
from ffnmem.cli.progress import Progress


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal that keeps what is written to it."""
    stream = io.StringIO()
    monkeypatch.setattr(
        module, "Console", lambda **_: Console(file=stream, force_terminal=True, width=100, legacy_windows=False)
    )
    return stream


def test_that_phases_follow_each_other(terminal: io.StringIO) -> None:
    with Progress() as progress:
        progress.report("pack", 10, 1234)
        assert "1,234 tokens" in progress.bars.tasks[0].fields["speed"]
        assert progress.bars.tasks[0].total is None  # nobody knows how much text there is
        progress.report("scan", 100, 400)
        progress.report("scan", 300, 400)
        pack, scan = progress.bars.tasks
        assert not pack.visible
        assert (scan.completed, scan.total) == (300, 400)
        progress.report("rescore", 1, 2)
        progress.bars.refresh()
    assert "running candidates again in float32" in terminal.getvalue()


def test_that_waiting_is_shown(terminal: io.StringIO) -> None:
    with Progress() as progress:
        progress.wait("joining 3 stores")
        progress.bars.refresh()
    assert "joining 3 stores" in terminal.getvalue()


def test_that_nothing_is_written_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress:
        progress.report("scan", 1, 2)
        progress.report("scan", 2, 2)
    assert capfd.readouterr() == ("", "")
