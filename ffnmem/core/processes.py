"""Processes that work for this one and end when it does, in whatever way it ends."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from multiprocessing.connection import wait
from typing import Any


def start(work: Callable[[Any, Any], None], task: Any) -> tuple[Any, Any]:
    """A new process that runs ``work(task, pipe)``, a function of a module, and the end of the pipe where it is heard.

    It knows nothing of Ctrl-C: who started it hears that, and kills it.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    # Spelled out, so that the child needs none of its slow imports before it looks out for its parent.
    arguments = (work.__module__, work.__qualname__, pickle.dumps(task), theirs)
    process = context.Process(target=run, args=arguments, daemon=True)
    with without_interrupts():
        process.start()
    theirs.close()
    return process, ours


@contextmanager
def without_interrupts() -> Iterator[None]:
    """What is started inside ignores SIGINT from its first moment on."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say how signals are dealt with
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def run(module: str, name: str, task: bytes, pipe: Any) -> None:
    """What the new process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    work: Callable[[Any, Any], None] = getattr(import_module(module), name)
    work(pickle.loads(task), pipe)


def end_with_parent() -> None:
    """Wait until the parent is gone, and end this process without a word: nobody is left to hear one."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def tell(pipe: Any, what: Any) -> None:
    """Say something to the parent, or end where it hears no more."""
    try:
        pipe.send(what)
    except OSError:
        os._exit(1)
