"""Work that pages wait for: one at a time, once for equal keys, bounded, and given up when nobody waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ffnmem.core.progress import Progress
from ffnmem.explorer import jobs as module
from ffnmem.explorer.jobs import WAITING, Abandoned, Jobs, UnavailableError


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    found = Jobs()
    yield found
    found.close()


def test_one_runs_at_a_time_and_the_queue_is_bounded(jobs: Jobs) -> None:
    go, running, most = threading.Event(), [], []

    def work(_progress: Progress) -> int:
        running.append(1)
        most.append(len(running))
        go.wait(10)
        running.pop()
        return len(most)

    queued = [jobs.submit(key, work) for key in range(WAITING + 1)]
    while not running:
        pass
    assert [jobs.submit(key, work) for key in range(WAITING + 1)] == queued
    assert [jobs.before(job) for job in queued] == list(range(WAITING + 1))
    with pytest.raises(UnavailableError, match="8 pages wait"):
        jobs.submit("more", work)
    go.set()
    assert [job.future.result(10) for job in queued] == list(range(1, WAITING + 2))
    assert max(most) == 1
    assert jobs.submit(0, lambda _: 9) is queued[0], "until somebody has had what comes of it"
    jobs.forget(queued[0])
    assert jobs.submit(0, lambda _: 9).future.result(10) == 9


@pytest.mark.parametrize("ending", ["impatience", "the end"])
def test_work_that_nobody_waits_for_is_given_up(jobs: Jobs, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    begun = threading.Event()

    def work(progress: Progress) -> None:
        while True:
            progress("read", 1, 2)
            begun.set()

    job = jobs.submit("a", work)
    begun.wait(10)
    assert (job.phase, job.done, job.total) == ("read", 1, 2)
    if ending == "the end":
        jobs.close()
    else:
        monkeypatch.setattr(module, "PATIENCE", -1.0)
    with pytest.raises(Abandoned):
        job.future.result(10)
