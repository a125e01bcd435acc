"""Failures: one line, the right status, and quiet where nobody made a mistake."""

from __future__ import annotations

import gc
import signal
import time
import warnings
from pathlib import Path

import pytest

from ffnmem.cli.guard import SELDOM, USUAL, collect_as_usual, run_guarded, seldom_collected, warnings_as_notes
from ffnmem.core.errors import FileError, InputError, warn
from ffnmem.facts import Fact, write_facts

from .running import mistake, process, run


def failing(error: BaseException) -> int:
    """The exit status of an app that raises."""

    def fail(_tokens: object) -> None:
        raise error

    return run_guarded(fail, [])


ENDINGS = [
    (InputError("the prompt\nis wrong"), 2, "ffnmem: error: the prompt is wrong\n"),
    (FileError("the prompt is wrong"), 2, "ffnmem: error: the prompt is wrong\n"),  # an OSError too
    (OSError("a full disk"), 2, "ffnmem: error: cannot write the output: a full disk\n"),
    (MemoryError(), 2, "ffnmem: error: the memory of this machine does not suffice: ask for less at a time\n"),
    (KeyboardInterrupt(), 130, ""),
]


@pytest.mark.parametrize(("error", "status", "says"), ENDINGS)
def test_what_is_no_fault_is_no_traceback(
    error: BaseException, status: int, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A traceback for a mistake tells its maker nothing; but a fault of the program must not look like the user's."""
    assert failing(error) == status
    assert capfd.readouterr() == ("", says)
    with pytest.raises(ZeroDivisionError):
        failing(ZeroDivisionError())


def test_warnings_of_ours_are_notes_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    """Python would show them with a line of our code, or twice where a command asks twice, or not at all."""

    def doubt(_tokens: object) -> None:
        for text in ("it is\nodd", "it is\nodd", "very odd"):
            warn(text)

    assert run_guarded(doubt, []) == 0
    assert capfd.readouterr() == ("", "ffnmem: warning: it is odd\nffnmem: warning: very odd\n")
    shown = warnings.showwarning
    with warnings_as_notes(), pytest.warns(UserWarning, match="theirs"):
        warnings.warn("theirs", UserWarning, stacklevel=1)
    assert warnings.showwarning is shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_signals_end_a_real_process_quietly(number: signal.Signals) -> None:
    """Whoever stops a command would get a traceback, or a status that does not say so."""
    running = process("facts", "atlas", "--json", "--full")
    assert running.stdout is not None
    assert running.stdout.read(1)  # it writes more than a pipe holds, and waits for its reader
    time.sleep(0.5)
    running.send_signal(number)
    _, err = running.communicate(timeout=20)
    assert (running.returncode, err.strip()) == (128 + number, b"")


def test_a_signal_that_is_to_be_ignored_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """``nohup ffnmem scan`` would end with the terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    heard: list[object] = []
    monkeypatch.setattr(
        "ffnmem.facts.listing.load_facts",
        lambda *_: heard.append(signal.getsignal(signal.SIGHUP)) or [Fact("a", prompt="{} is", target_true="b")],
    )
    try:
        run("facts", "atlas")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert heard == [signal.SIG_IGN]


@pytest.mark.parametrize(("unbuffered", "form"), [("", "--json"), ("1", "--limit=4000")])
def test_a_closed_pipe_is_quiet(unbuffered: str, form: str) -> None:
    """``ffnmem facts | head -1`` must not end in a traceback, however Python buffers."""
    running = process("facts", "atlas", "--full", form, env={"PYTHONUNBUFFERED": unbuffered})
    assert running.stdout is not None
    assert running.stderr is not None
    assert running.stdout.readline()
    running.stdout.close()
    assert running.stderr.read() == b""
    assert running.wait(timeout=60) == 1
    running.stderr.close()


def test_terminals_without_unicode(tmp_path: Path) -> None:
    """A terminal that cannot show a letter must still show the table; data is UTF-8 anyway."""
    facts = tmp_path / "facts.jsonl"
    write_facts([Fact(subject="Ærø", relation="island.country", prompt="{} is in", target_true="Denmark")], facts)
    for form, expected in (("--limit=1", "?r?"), ("--json", "Ærø")):
        written = process("facts", facts, form, env={"PYTHONIOENCODING": "ascii"})
        out, err = written.communicate(timeout=120)
        assert (written.returncode, err) == (0, b"")
        assert expected in out.decode("utf-8")


def test_nothing_in_a_message_reaches_the_terminal_as_control() -> None:
    """A file's or a token's text could recolour the terminal or forge a second line."""
    assert "\x1b" not in mistake("facts", "no\x1b[31m\nfile", named=("no\\x1b[31m\\nfile",))


def test_garbage_is_looked_for_seldom_until_all_is_there() -> None:
    """A quarter of a short command's time; but a process that works on would grow."""
    with seldom_collected():
        assert gc.get_threshold() == SELDOM
        collect_as_usual()
        assert gc.get_threshold() == USUAL
    assert gc.get_threshold() == USUAL
    gc.unfreeze()
