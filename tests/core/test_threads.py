"""Shares of a loop among threads: torch's own where they can be had, else a pool's."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from ffnmem.core import threads
from ffnmem.core.threads import Threads, available_cores


@pytest.mark.parametrize("region", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_every_share_once_and_errors_passed_on(count: int, region: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not region:
        monkeypatch.setattr(threads, "openmp_parallel", lambda: None)
    run, seen, lock = Threads(count), np.zeros(10, int), threading.Lock()

    def mark(start: int, stop: int) -> None:
        with lock:
            seen[start:stop] += 1

    def fail(start: int, stop: int) -> None:
        raise ZeroDivisionError

    run(mark, 10)
    run(mark, 1)
    with pytest.raises(ZeroDivisionError):
        run(fail, 10)
    run(mark, 10)  # what failed leaves nothing behind
    run.close()
    assert seen.tolist() == [3] + [2] * 9


def test_shares_are_whole_strips_but_for_the_last() -> None:
    shares, lock = [], threading.Lock()

    def note(start: int, stop: int) -> None:
        with lock:
            shares.append((start, stop))

    Threads(2, whole=4)(note, 11)
    assert sorted(shares) == [(0, 8), (8, 11)]


def test_work_is_given_to_torchs_threads() -> None:
    """Where torch's library is GNU's, a region runs beside torch's own without threads of ours."""
    before = threading.active_count()
    run = Threads(2)
    if threads.openmp_parallel() is None:
        pytest.skip("torch does not run on GNU's OpenMP here")
    names = []
    run(lambda start, stop: names.append(threading.current_thread().name), 2)
    assert len(names) == 2
    assert run.pool is None
    assert threading.active_count() <= before + 1
    assert torch.ones(3).sum() == 3


def test_cores() -> None:
    assert available_cores() >= 1
