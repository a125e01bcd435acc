"""Shards of a scan as actors of a Ray cluster (the extra ``ffnmem[ray]``), joined by a tree of merges."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from ..errors import FfnmemError, MissingExtraError, WorkerError
from .state import ScanState
from .state_file import StateFile, save_state
from .workers import TRIES, ShardTask, Together, mistake, run_shard

POLL_SECONDS = 0.5


def import_ray() -> Any:
    """Ray, which tells nobody that it is used; raises MissingExtraError if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise MissingExtraError("the engine 'ray' needs Ray: pip install 'ffnmem[ray]'") from None
    return ray


class ShardActor:
    """Scans one shard; asked for its progress meanwhile."""

    def __init__(self) -> None:
        self.done = 0

    def run(self, task: ShardTask) -> tuple[str, tuple[str, str] | None]:
        """The path of the shard's state, or what the user did wrong: the error's class and message."""
        try:
            return run_shard(task, self.note), None
        except FfnmemError as error:
            return "", (type(error).__name__, str(error))

    def note(self, _phase: str, done: int, _total: int) -> None:
        self.done = done

    def progress(self) -> int:
        return self.done


def merge_files(first: str, second: str, out: str) -> str:
    """Join two shards' states into a file."""
    a, b = StateFile(Path(first)), StateFile(Path(second))
    save_state(Path(out), a.state().merged(b.state()), a.identity, a.progress)
    return out


def run_on_ray(tasks: list[ShardTask], progress: Together) -> ScanState:
    """All shards on the cluster of ``RAY_ADDRESS``, or on one of this machine alone. Raises WorkerError, InputError."""
    ray = import_ray()
    ours = not ray.is_initialized()
    if ours:
        local = {} if os.environ.get("RAY_ADDRESS") else {"_node_ip_address": "127.0.0.1", "num_cpus": len(tasks)}
        ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False, **local)
    try:
        paths = scan_shards(ray, tasks, progress)
        merge = ray.remote(merge_files)
        while len(paths) > 1:
            pairs = zip(paths[::2], paths[1::2], strict=False)
            joined = [
                merge.remote(a, b, str(tasks[0].path.parent / f"merged-{secrets.token_hex(4)}.safetensors"))
                for a, b in pairs
            ]
            paths = ray.get(joined) + (paths[-1:] if len(paths) % 2 else [])
        return StateFile(Path(paths[0])).state()
    except ray.exceptions.RayError as error:
        reason = str(getattr(error, "cause", None) or error).strip().splitlines()[0]
        raise WorkerError(f"a Ray worker failed ({reason}); run the same scan again to go on") from None
    finally:
        if ours:
            ray.shutdown()


def scan_shards(ray: Any, tasks: list[ShardTask], progress: Together) -> list[str]:
    """One actor a shard, each restarted when it dies; the paths of their states, in the order of the tasks."""
    gpus = int(tasks[0].device.startswith("cuda"))
    actor = ray.remote(ShardActor).options(
        num_cpus=1, num_gpus=gpus, max_concurrency=2, max_restarts=TRIES - 1, max_task_retries=TRIES - 1
    )
    actors = [actor.remote() for _ in tasks]
    results = [a.run.remote(task) for a, task in zip(actors, tasks, strict=True)]
    found: dict[int, str] = {}
    while len(found) < len(tasks):
        waiting = [result for index, result in enumerate(results) if index not in found]
        ray.wait(waiting, num_returns=len(waiting), timeout=POLL_SECONDS)
        for index, (a, result) in enumerate(zip(actors, results, strict=True)):
            if index in found:
                continue
            if ray.wait([result], timeout=0)[0]:
                path, said = ray.get(result)
                if said is not None:
                    raise mistake(*said)
                found[index] = path
                ray.kill(a)  # leaves its place to one that waits for it
            elif ray.wait([asked := a.progress.remote()], timeout=POLL_SECONDS)[0]:
                progress(index, ray.get(asked))
    return [found[index] for index in range(len(tasks))]
