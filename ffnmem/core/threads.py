"""Threads for loops of our own between two of torch's."""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch

# Threads of OpenMP wait busily for their next loop, for milliseconds. A pool of our own that works between two of
# torch's loops shares the cores with them: a third of the time goes to waiting. So the loop is given to the same
# threads, by the call that compilers make of a parallel region. It is there wherever torch runs on GNU's library or one
# that stands in for it; elsewhere a pool does the same, slower.
Region = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@cache
def openmp_parallel() -> Any:
    """``GOMP_parallel`` of the loaded library of that name, which is torch's in its own wheels; or None."""
    try:
        return ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY).GOMP_parallel
    except (AttributeError, OSError):  # another system, or another library
        return None


def in_region(parallel: Any, run: Callable[[int, int], None], shares: list[tuple[int, int]]) -> None:
    """Every share in some thread of a region as wide as torch's own: of a narrower one the others would be ended, and
    made again for torch's next loop."""
    left, errors = iter(shares), list[BaseException]()

    def work(_: Any) -> None:
        try:
            for one in left:
                run(*one)
        except BaseException as error:  # noqa: BLE001  # it cannot pass through the region
            errors.append(error)

    parallel(Region(work), None, max(len(shares), torch.get_num_threads()), 0)
    if errors:
        raise errors[0]


class Threads:
    """As many threads as torch uses, which each take a share of a width; to be closed.

    Args:
        count: how many; default: torch's.
        whole: shares are multiples of this, but for the last.
    """

    def __init__(self, count: int | None = None, whole: int = 1) -> None:
        self.count, self.whole = min(count or torch.get_num_threads(), 16), whole
        self.parallel = openmp_parallel() if self.count > 1 else None
        self.pool = ThreadPoolExecutor(self.count) if self.count > 1 and self.parallel is None else None

    def __call__(self, run: Callable[[int, int], None], width: int) -> None:
        """Call ``run(start, stop)`` for every share of ``width`` and wait."""
        share = -(-width // (self.count * self.whole)) * self.whole
        shares = [(a, b) for a, b in itertools.pairwise([*range(0, width, share), width]) if a < b]
        if self.parallel is not None and len(shares) > 1:
            in_region(self.parallel, run, shares)
        elif self.pool is not None:
            for future in [self.pool.submit(run, *one) for one in shares]:
                future.result()
        else:
            for one in shares:
                run(*one)

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown()


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
