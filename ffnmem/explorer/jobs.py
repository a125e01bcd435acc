"""Work that a page waits for: done one after the other on one thread, with a bound on how much may wait."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ..core.progress import Phase, Progress

WAITING = 8  # pieces of work that may wait
PATIENCE = 60.0  # seconds after which nobody waits any more
KEPT = 64  # pieces of work whose outcome nobody has had yet


class UnavailableError(Exception):
    """A page that cannot be had at this moment; the message says when to ask again."""


class Abandoned(UnavailableError):
    """Nobody waits for this any more."""

    def __str__(self) -> str:
        return "Nobody waited for this any more, so it was given up: load the page again."


class Job:
    """A piece of work. ``future``: what comes of it; ``phase``, ``done``, ``total``: how far it is."""

    def __init__(self) -> None:
        self.id = secrets.token_urlsafe(12)
        self.future: Future[Any] = Future()
        self.phase: Phase | None = None
        self.done, self.total = 0, 0
        self.asked = time.monotonic()

    @property
    def abandoned(self) -> bool:
        """Whether nobody has asked for it for long."""
        return time.monotonic() - self.asked > PATIENCE

    def progress(self, phase: Phase, done: int, total: int) -> None:
        """How far it is; raises Abandoned, which ends the work, where nobody waits."""
        if self.abandoned:
            raise Abandoned
        self.phase, self.done, self.total = phase, done, total

    def run(self, work: Callable[[Progress], Any]) -> Any:
        """Do the work."""
        if self.abandoned:
            raise Abandoned
        return work(self.progress)


class Jobs:
    """One worker thread, so that the model is used by one at a time. Used from one thread, the server's.

    Work of equal keys is one piece of work until somebody has had its outcome, so that a page that waited finds it,
    whatever it is.
    """

    def __init__(self) -> None:
        self.worker = ThreadPoolExecutor(1, "ffnmem explorer")
        self.known: dict[Hashable, Job] = {}

    def submit(self, key: Hashable, work: Callable[[Progress], Any]) -> Job:
        """A piece of work put into the queue, or the one with that key.

        Raises: UnavailableError: too many wait.
        """
        job = self.known.get(key)
        if job is None or (job.future.done() and job.abandoned):
            if sum(not one.future.done() for one in self.known.values()) > WAITING:  # one of them runs
                raise UnavailableError(
                    f"{WAITING} pages wait for the model already: wait for one of them, then load this one again"
                )
            self.known.pop(key, None)  # the new one is the last in the queue
            job = self.known[key] = Job()
            job.future = self.worker.submit(job.run, work)
            for old in [name for name, one in self.known.items() if one.future.done()][:-KEPT]:
                del self.known[old]
        job.asked = time.monotonic()
        return job

    def find(self, name: str) -> Job | None:
        """A piece of work by its id; that somebody asks keeps it alive."""
        job = next((one for one in self.known.values() if one.id == name), None)
        if job is not None:
            job.asked = time.monotonic()
        return job

    def forget(self, job: Job) -> None:
        """Somebody has had its outcome."""
        self.known = {key: one for key, one in self.known.items() if one is not job}

    def before(self, job: Job) -> int:
        """How many come before it."""
        waiting = [one for one in self.known.values() if not one.future.done()]
        return waiting.index(job) if job in waiting else 0

    def close(self) -> None:
        """Nothing more is begun, and what runs is given up as soon as it says how far it is."""
        for job in self.known.values():
            job.asked = -math.inf
        self.worker.shutdown(cancel_futures=True)
