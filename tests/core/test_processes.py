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
import sys, time
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


def talk(task: Any, pipe: Any) -> None:
    tell(pipe, (task, signal.getsignal(signal.SIGINT) == signal.SIG_IGN))
    while True:
        tell(pipe, "x" * 1000)


def test_a_child_ignores_ctrl_c_and_ends_quietly_when_nobody_hears_it(capfd: pytest.CaptureFixture[str]) -> None:
    """A terminal sends Ctrl-C to all processes, and each would print a traceback; or end in a BrokenPipeError."""
    process, pipe = start(talk, {"a": 1})
    assert pipe.recv() == ({"a": 1}, True)
    pipe.close()
    process.join(60)
    assert process.exitcode == 1
    assert capfd.readouterr().err == ""
    assert signal.getsignal(signal.SIGINT) != signal.SIG_IGN


def test_a_child_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """It would work on as an orphan, and end in a traceback when it has something to say."""
    (tmp_path / "parent.py").write_text(PARENT)
    with (tmp_path / "said").open("wb") as said:
        parent = subprocess.Popen([sys.executable, tmp_path / "parent.py"], stdout=subprocess.PIPE, stderr=said)
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
        assert parent.stdout.read() == b""  # which ends when the last process has closed it
        parent.stdout.close()
    assert (tmp_path / "said").read_bytes() == b""
    deadline = time.monotonic() + 30
    while runs(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not runs(child)


def runs(pid: int) -> bool:
    """Whether there is such a process, which nobody may have buried yet."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
