"""A bar only for what takes long, only on a terminal."""

from __future__ import annotations

import pytest

from ffnmem.cli import progress as module
from ffnmem.cli.progress import late_bar


class Recorded:
    """In place of a bar."""

    calls: list[tuple[str, int, int] | str]

    def __enter__(self) -> Recorded:
        Recorded.calls.append("shown")
        return self

    def __exit__(self, *error: object) -> None:
        Recorded.calls.append("gone")

    def report(self, phase: str, done: int, total: int) -> None:
        Recorded.calls.append((phase, done, total))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int] | str]:
    Recorded.calls = []
    monkeypatch.setattr(module, "Progress", Recorded)
    return Recorded.calls


def test_what_is_quick_shows_nothing(calls: list[object]) -> None:
    with late_bar() as report:
        report("read", 1, 2)
        report("read", 2, 2)
    assert calls == []


def test_what_takes_long_shows_a_bar(calls: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    """And takes it away when it ends, also when it fails."""
    monkeypatch.setattr(module, "WAIT", -1.0)

    def work() -> None:
        with late_bar() as report:
            report("read", 1, 2)
            report("read", 2, 2)
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        work()
    assert calls == ["shown", ("read", 1, 2), ("read", 2, 2), "gone"]


def test_its_phase_has_words(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The true bar knows the phase; where there is no terminal it is silent."""
    monkeypatch.setattr(module, "WAIT", -1.0)
    with late_bar() as report:
        report("read", 1, 2)
    assert capfd.readouterr() == ("", "")
