"""Operations that are killed at their n-th file-system event, run again to the end, and compared with a run in peace.

The events are what Python tells its audit hooks. Libraries in C and Rust tell nothing: what they wrote is killed at the
next event, before it is renamed.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .material import fresh

EVENTS = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.chmod", "os.truncate", "shutil.rmtree")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
EMPTY = hashlib.sha256(b"").hexdigest()
LONGEST = 120  # seconds after which a child counts as hanging
MINE = {"notes.txt": "mine", ".backup.tmp": "mine", ".tmpK9nrHs": "mine", ".hidden/.ffnmem-x-0123abcd.tmp": "mine"}
"""Files of the user's beside what an operation writes."""


@dataclass(frozen=True)
class Operation:
    """Something that writes below a folder, and is run again when it was killed; ``before``: what lies there before."""

    name: str
    run: Callable[[Path], Any]
    before: Callable[[Path], Any] = lambda root: None

    def start(self) -> Path:
        """A new folder with what lies there at the beginning."""
        root = fresh()
        for name, text in MINE.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        self.before(root)
        return root

    @cache  # noqa: B019 (operations live as long as the process)
    def in_peace(self) -> tuple[int, dict[str, str]]:
        """How many events a run has, and what it leaves; the first run is in this process, to compile everything."""
        self.run(self.start())
        root = self.start()
        count = child(root, self.run)
        assert count is not None, f"{self.name} was killed by itself"
        return count, snapshot(root)

    def survives(self, event: int) -> None:
        """Kill it at an event, and run it again: that must leave what a run in peace leaves."""
        _, expected = self.in_peace()
        root = self.start()
        child(root, self.run, event)
        assert child(root, self.run) is not None
        found = snapshot(root)
        changed = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        assert not changed, f"{self.name} killed at event {event} differs in {changed[:9]}"


def snapshot(root: Path) -> dict[str, str]:
    """What lies below a folder, by its path there: a hash of every file, where a link leads, "" for a folder.

    Empty locks are left out: they hold nothing.
    """
    found = {}
    for path in root.rglob("*"):
        if path.is_symlink():
            said = str(path.readlink())
        elif path.is_dir():
            said = ""
        else:
            said = hashlib.sha256(path.read_bytes()).hexdigest()
        if path.name != ".lock" or said != EMPTY:
            found[path.relative_to(root).as_posix()] = said
    return found


def child(root: Path, run: Callable[[Path], Any], at: int | None = None) -> int | None:
    """Run in a fork of this process, killed before event ``at``; how many events it had, None where it was killed.

    Raises AssertionError where it failed or hung.
    """
    told, tell = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads at a fork: those of libraries are asleep
        process = os.fork()
    if process == 0:
        os.close(told)
        text = ""
        try:
            signal.alarm(LONGEST)
            events = Events(root, at)
            sys.addaudithook(events)
            run(root)
            text = str(events.count)
        except BaseException:  # noqa: BLE001 (told to the parent)
            text = traceback.format_exc()
        finally:
            os.write(tell, text.encode()[-60_000:])
            os._exit(0)
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, f"ended by signal {os.WTERMSIG(status)}"
        return None
    assert text.isdigit(), f"a run after a kill failed: {text}"
    return int(text)


class Events:
    """An audit hook that counts file-system events below a folder, and kills its process before one of them."""

    def __init__(self, root: Path, at: int | None) -> None:
        self.root, self.at, self.count = str(root), at, 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not (event in EVENTS or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES)):
            return
        # Names without a folder are those of shutil.rmtree, which goes by descriptors.
        if not any(self.is_below(place) for place in arguments[:2]):
            return
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1

    def is_below(self, place: Any) -> bool:
        name = os.fsdecode(place) if isinstance(place, str | bytes | os.PathLike) else os.sep
        return name.startswith(self.root) or os.sep not in name
