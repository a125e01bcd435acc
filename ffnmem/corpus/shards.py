"""Shards of a pass side by side: processes of this machine, or actors of a Ray cluster (the extra ``ffnmem[ray]``).

What a shard is, only its task and the function that works on it know: it keeps checkpoints of its own, and one that
dies is started again from there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any

from ..core import processes
from ..core.errors import FfnmemError, MissingExtraError, WorkerError
from ..core.progress import Phase, Progress

TRIES = 3  # of each shard
POLL_SECONDS = 0.5

Work = Callable[[Any, Progress], str]
"""Works on a task of plain values, a function of a module; returns where what it found lies."""


def run_shards(
    tasks: Sequence[Any], work: Work, progress: Together, engine: str = "local", *, gpus: int = 0
) -> list[str]:
    """Work on all shards at once, each TRIES times at most.

    Args:
        tasks: one a shard. work: what is done with each.
        progress: told of all of them together.
        engine: "local" or "ray". gpus: that an actor of Ray takes.

    Returns: where the result of each task lies.

    Raises: WorkerError: one that died time and again. MissingExtraError: no Ray. FfnmemError: a mistake of the user's
        that a worker found.
    """
    if engine == "ray":
        return run_on_ray(tasks, work, progress, gpus)
    return run_locally(tasks, work, progress)


class Together:
    """The progress of all shards as one."""

    def __init__(self, report: Progress | None, phase: Phase, count: int, total: int) -> None:
        self.report, self.phase, self.done, self.total = report, phase, [0] * count, total

    def __call__(self, index: int, done: int) -> None:
        self.done[index] = done
        if self.report is not None:
            self.report(self.phase, sum(self.done), self.total)


# -- processes -------------------------------------------------------------------------------------------------------


def run_locally(tasks: Sequence[Any], work: Work, progress: Together) -> list[str]:
    """All shards, each in a process; one that dies is started again, TRIES times in all; what each gives."""
    tries = [0] * len(tasks)
    running: dict[int, tuple[Any, Any]] = {}
    found: dict[int, str] = {}

    def begin(index: int) -> None:
        tries[index] += 1
        running[index] = processes.start(worker, (work, tasks[index]))

    try:
        for index in range(len(tasks)):
            begin(index)
        while running:
            wait([pipe for _, pipe in running.values()], timeout=1.0)
            for index, (process, pipe) in list(running.items()):
                if listen(index, pipe, progress, found):
                    continue
                process.join()
                pipe.close()
                del running[index]
                if process.exitcode == 0:
                    continue
                if tries[index] == TRIES:
                    raise WorkerError(
                        f"the worker of shard {index} died {TRIES} times (exit status {process.exitcode}); "
                        "run the same scan again to go on"
                    )
                begin(index)
        return [found[index] for index in range(len(tasks))]
    finally:
        for process, _ in running.values():
            process.kill()
        for process, pipe in running.values():
            process.join()
            pipe.close()


def listen(index: int, pipe: Any, progress: Together, found: dict[int, str]) -> bool:
    """Take in what a worker has sent; False once it has hung up. Raises what a worker calls its user's mistake."""
    while True:
        try:
            if not pipe.poll():
                return True
            message = pipe.recv()
        except (EOFError, OSError):
            return False
        if isinstance(message, FfnmemError):
            raise message
        if isinstance(message, str):
            found[index] = message
        else:
            progress(index, message)


def worker(work_and_task: tuple[Work, Any], pipe: Any) -> None:
    """A worker process: how far it is, what it found, and a user's mistake are told to the parent."""
    work, task = work_and_task
    try:
        processes.tell(pipe, work(task, lambda _phase, done, _total: processes.tell(pipe, done)))
    except FfnmemError as error:
        processes.tell(pipe, error)
        raise SystemExit(1) from None


# -- Ray -------------------------------------------------------------------------------------------------------------


def import_ray() -> Any:
    """Ray, which tells nobody that it is used; raises MissingExtraError if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise MissingExtraError("the engine 'ray' needs Ray: pip install 'ffnmem[ray]'") from None
    return ray


class ShardActor:
    """Works on one shard; asked for its progress meanwhile."""

    def __init__(self) -> None:
        self.done = 0

    def run(self, work: Work, task: Any) -> str | FfnmemError:
        """What the work gives, or what the user did wrong."""
        try:
            return work(task, self.note)
        except FfnmemError as error:
            return error

    def note(self, _phase: str, done: int, _total: int) -> None:
        self.done = done

    def progress(self) -> int:
        return self.done


def run_on_ray(tasks: Sequence[Any], work: Work, progress: Together, gpus: int) -> list[str]:
    """All shards on the cluster of ``RAY_ADDRESS``, or on one of this machine alone."""
    ray = import_ray()
    ours = not ray.is_initialized()
    if ours:
        local = {} if os.environ.get("RAY_ADDRESS") else {"_node_ip_address": "127.0.0.1", "num_cpus": len(tasks)}
        ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False, **local)
    try:
        return on_actors(ray, tasks, work, progress, gpus)
    except ray.exceptions.RayError as error:
        reason = str(getattr(error, "cause", None) or error).strip().splitlines()[0]
        raise WorkerError(f"a Ray worker failed ({reason}); run the same scan again to go on") from None
    finally:
        if ours:
            ray.shutdown()


def on_actors(ray: Any, tasks: Sequence[Any], work: Work, progress: Together, gpus: int) -> list[str]:
    """One actor a shard, each restarted when it dies; what each gives, in the order of the tasks."""
    actor = ray.remote(ShardActor).options(
        num_cpus=1, num_gpus=gpus, max_concurrency=2, max_restarts=TRIES - 1, max_task_retries=TRIES - 1
    )
    actors = [actor.remote() for _ in tasks]
    results = [a.run.remote(work, task) for a, task in zip(actors, tasks, strict=True)]
    found: dict[int, str] = {}
    while len(found) < len(tasks):
        waiting = [result for index, result in enumerate(results) if index not in found]
        ray.wait(waiting, num_returns=len(waiting), timeout=POLL_SECONDS)
        for index, (a, result) in enumerate(zip(actors, results, strict=True)):
            if index in found:
                continue
            if ray.wait([result], timeout=0)[0]:
                path = ray.get(result)
                if isinstance(path, FfnmemError):
                    raise path
                found[index] = path
                ray.kill(a)  # leaves its place to one that waits for it
            elif ray.wait([asked := a.progress.remote()], timeout=POLL_SECONDS)[0]:
                progress(index, ray.get(asked))
    return [found[index] for index in range(len(tasks))]
