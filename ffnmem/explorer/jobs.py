"""Work that a page waits for: done one after the other in a thread of its own, with a bound on how much may wait."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any

from ..core.errors import BusyError
from ..core.progress import PHASES, Phase, Progress

WAITING = 8  # pieces of work in the queue
PATIENCE = 60.0  # seconds after which nobody waits any more
ENDING = 10.0  # seconds that the end waits for what runs
KEPT = 64  # pieces of work whose outcome nobody has had yet

Work = Callable[[Progress], Any]


class Abandoned(Exception):
    """Nobody waits for this any more."""


class Job:
    """A piece of work. ``future``: what comes of it; ``phase``, ``done``, ``total``: how far it is."""

    def __init__(self, key: Hashable, work: Work) -> None:
        self.id, self.key, self.work = secrets.token_urlsafe(12), key, work
        self.future: Future[Any] = Future()
        self.phase, self.done, self.total = "", 0, 0
        self.asked = time.monotonic()

    def progress(self, phase: Phase, done: int, total: int) -> None:
        """How far it is; raises Abandoned, which ends the work, where nobody has asked for long."""
        if time.monotonic() - self.asked > PATIENCE:
            raise Abandoned
        self.phase, self.done, self.total = PHASES[phase][0], done, total

    def is_for(self, key: Hashable) -> bool:
        """Whether it gives what a key asks for: not if it was given up, or ended and nobody has asked for long."""
        if self.key != key:
            return False
        if not self.future.done():
            return True
        return time.monotonic() - self.asked <= PATIENCE and not isinstance(self.future.exception(), Abandoned)

    def run(self) -> None:
        if time.monotonic() - self.asked > PATIENCE:
            self.future.set_exception(Abandoned())
            return
        try:
            found = self.work(self.progress)
        except BaseException as error:  # noqa: BLE001  # whoever waits is told
            self.future.set_exception(error)
        else:
            self.future.set_result(found)


class Jobs:
    """One thread that works off a queue, so that the model is used by one at a time. Equal keys are one piece of work.

    Args:
        waiting: the most that may wait.
    """

    def __init__(self, waiting: int = WAITING) -> None:
        self.waiting = waiting
        self.queue: deque[Job] = deque()
        self.known: dict[str, Job] = {}
        self.turn = threading.Condition()
        self.current: Job | None = None
        self.closed = False
        self.thread = threading.Thread(target=self.work_off, name="ffnmem explorer", daemon=True)
        self.thread.start()

    def submit(self, key: Hashable, work: Work) -> Job:
        """A piece of work put into the queue, or the one with that key whose outcome nobody has had yet, so that a page
        that waited finds it whatever it is.

        Raises: BusyError: too many wait.
        """
        with self.turn:
            same = next((job for job in self.known.values() if job.is_for(key)), None)
            if same is not None:
                same.asked = time.monotonic()
                return same
            if self.closed or len(self.queue) >= self.waiting:
                raise BusyError(
                    f"{self.waiting} pages wait for the model already: wait for one of them, then load this one again"
                )
            job = Job(key, work)
            self.queue.append(job)
            self.known[job.id] = job
            for old in list(self.known)[:-KEPT]:
                del self.known[old]
            self.turn.notify()
            return job

    def find(self, name: str) -> Job | None:
        """A piece of work by its id; that somebody asks keeps it alive."""
        job = self.known.get(name)
        if job is not None:
            job.asked = time.monotonic()
        return job

    def forget(self, job: Job) -> None:
        """Somebody has had its outcome."""
        with self.turn:
            self.known.pop(job.id, None)

    def before(self, job: Job) -> int:
        """How many come before it."""
        with self.turn:
            ahead = self.queue.index(job) if job in self.queue else 0
            return ahead + (self.current is not None) if job in self.queue else 0

    def work_off(self) -> None:
        while True:
            with self.turn:
                self.current = None
                while not self.queue and not self.closed:
                    self.turn.wait()
                if self.closed:
                    return
                self.current = job = self.queue.popleft()
            job.run()

    def close(self) -> None:
        """Nothing more is begun, and what runs is given up as soon as it says how far it is; waits for that a while: a
        process that ends in the middle of it would end noisily."""
        with self.turn:
            self.closed = True
            if self.current is not None:
                self.current.asked = -math.inf
            self.turn.notify_all()
        self.thread.join(ENDING)
