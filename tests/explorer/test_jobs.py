"""Work that pages wait for: one at a time, once for equal keys, bounded, and given up when nobody waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ffnmem.core.errors import BusyError
from ffnmem.explorer import jobs as module
from ffnmem.explorer.jobs import Abandoned, Jobs


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    found = Jobs(waiting=2)
    yield found
    found.close()
    found.thread.join(10)
    assert not found.thread.is_alive()


def test_one_runs_at_a_time_and_the_queue_is_bounded(jobs: Jobs) -> None:
    go, running, most = threading.Event(), [], []

    def work(_progress: object) -> int:
        running.append(1)
        most.append(len(running))
        go.wait(10)
        running.pop()
        return len(most)

    first = jobs.submit("a", work)
    while not running:
        pass
    second, third = jobs.submit("b", work), jobs.submit("c", work)
    assert jobs.submit("b", work) is second
    assert jobs.submit("a", work) is first
    assert (jobs.before(first), jobs.before(second), jobs.before(third)) == (0, 1, 2)
    with pytest.raises(BusyError, match="2 pages wait"):
        jobs.submit("d", work)
    go.set()
    assert [job.future.result(10) for job in (first, second, third)] == [1, 2, 3]
    assert max(most) == 1
    assert jobs.submit("a", lambda _: 9) is first, "until somebody has had what comes of it"
    jobs.forget(first)
    assert jobs.submit("a", lambda _: 9).future.result(10) == 9


def test_a_failure_ends_its_work_alone(jobs: Jobs) -> None:
    def fails(_progress: object) -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        jobs.submit("a", fails).future.result(10)
    assert jobs.submit("b", lambda _: 1).future.result(10) == 1


def test_work_that_nobody_waits_for_is_given_up(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()

    def work(progress: module.Progress) -> None:
        progress("read", 1, 2)
        begun.set()
        go.wait(10)
        progress("read", 2, 2)

    job = jobs.submit("a", work)
    begun.wait(10)
    assert (job.phase, job.done, job.total) == ("reading neurons", 1, 2)
    monkeypatch.setattr(module, "PATIENCE", -1.0)
    go.set()
    with pytest.raises(Abandoned):
        job.future.result(10)


def test_the_end_gives_up_what_runs() -> None:
    jobs, begun = Jobs(), threading.Event()

    def work(progress: module.Progress) -> None:
        while True:
            progress("read", 1, 2)
            begun.set()

    job = jobs.submit("a", work)
    begun.wait(10)
    jobs.close()
    assert not jobs.thread.is_alive()
    assert isinstance(job.future.exception(), Abandoned)
    with pytest.raises(BusyError):
        jobs.submit("b", work)
