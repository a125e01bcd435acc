"""Child processes: what they say is heard, and none outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ffnmem.core.processes import start, tell

PARENT = """
import os, sys, time
from ffnmem.core import processes
from tests.core.test_processes import wait_for_ever
if __name__ == "__main__":
    process, pipe = processes.start(wait_for_ever, "task")
    assert pipe.recv() == "task"
    print(process.pid, flush=True)
    time.sleep(600)
"""


def wait_for_ever(task: Any, pipe: Any) -> None:
    tell(pipe, task)
    time.sleep(600)


def echo(task: Any, pipe: Any) -> None:
    tell(pipe, (task, signal.getsignal(signal.SIGINT) == signal.SIG_IGN))


def talk(_task: Any, pipe: Any) -> None:
    while True:
        tell(pipe, "x" * 1000)


def test_a_child_does_its_work_and_ignores_ctrl_c() -> None:
    """A terminal sends Ctrl-C to all processes, and each child would print a traceback of its own."""
    process, pipe = start(echo, {"a": 1})
    assert pipe.recv() == ({"a": 1}, True)
    process.join()
    assert process.exitcode == 0


def test_a_child_that_nobody_hears_ends_quietly(capfd: pytest.CaptureFixture[str]) -> None:
    """It would end in a BrokenPipeError."""
    process, pipe = start(talk, None)
    assert pipe.recv()
    pipe.close()
    process.join(60)
    assert process.exitcode == 1
    assert capfd.readouterr().err == ""


def test_a_child_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """It would work on as an orphan, and end in a traceback when it has something to say."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with (tmp_path / "said").open("wb") as said:
        parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=said)
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
        assert parent.stdout.read() == b""  # which ends when the last process has closed it
    assert (tmp_path / "said").read_bytes() == b""
    with pytest.raises(ProcessLookupError):
        wait_until_gone(child)
    parent.stdout.close()


def wait_until_gone(pid: int) -> None:
    """Raises ProcessLookupError once there is no such process; init may take a moment to bury it."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and state_of(pid) != "Z":
        os.kill(pid, 0)
        time.sleep(0.01)
    raise ProcessLookupError


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""
