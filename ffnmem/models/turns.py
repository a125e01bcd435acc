"""Who may use a model: one thread changes it for a while, threads that only read it go side by side, never both.

A block (``fm.intervene``, ``edit.hooks``, ``edit.applied``) belongs to the thread that opened it, and does not begin
while another thread runs the model or a function that reads it. Nothing waits, so nothing can deadlock.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from torch import nn

from ..core.errors import BusyError

P = ParamSpec("P")
R = TypeVar("R")
KEPT = "_ffnmem_turns"
"""The attribute of a module that holds its model's turns: models around the same modules share them."""


class OpenBlock(ExitStack):
    """What undoes an open block, by ``callback``."""

    def hook(self, module: nn.Module, hook: Callable[..., Any], before: bool = False, **options: bool) -> None:
        """Hang a hook on a module's passes, or before them, until the block ends."""
        register: Any = module.register_forward_pre_hook if before else module.register_forward_hook
        self.callback(register(hook, **options).remove)


class Turns:
    """Who changes and who reads one set of weights."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # the garbage collector may close a block while this thread holds it
        self.owner = 0  # the thread whose blocks are open
        self.blocks: list[str] = []  # what changes the model, the outermost block first
        self.functions: Counter[int] = Counter()  # by thread, how many of ours run
        self.passes: set[int] = set()  # threads in a pass of anybody's
        self.watched = False

    def __reduce__(self) -> tuple[type[Turns], tuple[()]]:
        return Turns, ()  # a copy of a model is a model of its own

    def check(self) -> None:
        """Raise BusyError in every thread but the one whose block is open."""
        words = self.blocks[:1]
        if words and self.owner != threading.get_ident():
            raise BusyError(
                f"the model is changed by {words[0]} in another thread: wait until that block is left, open it in the "
                "thread that runs the model, or load a model of its own"
            )

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A block in which no other thread may change the model. Raises BusyError as :meth:`check`."""
        me = threading.get_ident()
        with self.lock:
            self.check()
            self.functions[me] += 1
            within = me in self.passes
        try:
            yield
        finally:
            with self.lock:
                self.functions[me] -= 1
                if not within:
                    self.passes.discard(me)  # one that a KeyboardInterrupt ended: torch then calls no hook

    def watch(self, module: nn.Module) -> None:
        """See every pass that goes through a decoder, whoever runs it."""
        self.watched = True
        module.register_forward_pre_hook(self.begin_pass)
        module.register_forward_hook(self.end_pass, always_call=True)

    def begin_pass(self, _module: nn.Module, _args: Any) -> None:
        with self.lock:
            self.check()
            self.passes.add(threading.get_ident())

    def end_pass(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        with self.lock:
            self.passes.discard(threading.get_ident())

    @contextmanager
    def changing(self, words: str) -> Iterator[OpenBlock]:
        """A block that changes the model; raises BusyError when it is entered while another thread uses the model.

        ``words``: what changes it, for whoever is refused.
        """
        me = threading.get_ident()
        with self.lock:
            self.check()
            if {*+self.functions, *self.passes} - {me}:
                raise BusyError(
                    f"{words} cannot begin: another thread is in the middle of a pass or a function of the same model; "
                    "wait for it, or load a model of its own"
                )
            self.owner = me
            self.blocks.append(words)
        try:
            with OpenBlock() as block:
                try:
                    yield block
                finally:
                    self.owner = threading.get_ident()  # the garbage collector's, where a generator was dropped
        finally:
            self.owner = me  # of the blocks around this one
            self.blocks.remove(words)


def in_turn(function: Callable[P, R]) -> Callable[P, R]:
    """A public function that reads models among its arguments: none is changed elsewhere while it runs."""

    @wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        with ExitStack() as stack:
            for value in (*args, *kwargs.values()):
                turns = getattr(value, "turns", None)
                if isinstance(turns, Turns):
                    stack.enter_context(turns.reading())
            return function(*args, **kwargs)

    return inside
