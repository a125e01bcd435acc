"""Whose turn a model is: one context changes it for a while, threads that only read it go side by side, never both.

A block (``fm.intervene``, ``edit.hooks``, ``edit.applied``) belongs to the context that opened it. What runs inside
that context sees the change: nested calls, ``asyncio.to_thread``, ``contextvars.copy_context().run`` in another thread.
Every other thread or context is refused by name, and a block does not begin while another thread is in the middle of
something. One that is left while another context is inside a block within it ends with that one. Nothing here waits, so
nothing can deadlock.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from torch import nn

from ..core.errors import BusyError

P = ParamSpec("P")
R = TypeVar("R")
KEPT = "_ffnmem_turns"
"""The attribute of a module that holds its model's turns: models around the same modules share them."""


class OpenBlock:
    """An open block, what undoes it, and the blocks around it that were left before it: they end when it does."""

    def __init__(self, words: str) -> None:
        self.words = words
        self.undo = ExitStack()
        self.left: list[OpenBlock] = []


INSIDE: ContextVar[tuple[OpenBlock, ...]] = ContextVar("ffnmem_inside", default=())
"""The blocks that this context is inside of, of any model."""


class Turns:
    """Who changes and who reads one set of weights."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # the garbage collector may close a block while this thread holds it
        self.blocks: tuple[OpenBlock, ...] = ()  # open, the outermost first
        self.functions: dict[int, list[str]] = {}  # by thread, what of ours runs there
        self.passes: set[int] = set()  # threads in a pass of anybody's
        self.watched = False
        self.undoing = OpenBlock("undoing")  # who is inside of this one leaves a block, and is held up by nothing
        self.disturbed: dict[int, str] = {}  # by thread, the block that was left in the middle of what runs there

    def __reduce__(self) -> tuple[type[Turns], tuple[()]]:
        return Turns, ()  # a copy of a model is a model of its own

    # -- reading -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise BusyError in every context but the one whose block is open."""
        if self.blocks:
            inside = INSIDE.get()
            for block in self.blocks if self.undoing not in inside else ():
                if block not in inside:
                    raise BusyError(
                        f"the model is changed by {block.words} in another thread or context: wait until that block is "
                        "left, run this inside it by contextvars.copy_context().run, or load a model of its own"
                    )

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """A block in which no other thread may change the model. Raises BusyError as :meth:`check`, and at the end
        if what was read changed on the way, because another thread left a block that this one was inside of."""
        me = threading.get_ident()
        with self.lock:
            self.check()
            if me not in self.functions and me not in self.passes:
                self.disturbed.pop(me, None)  # of a thread that died
            within = me in self.passes
            self.functions.setdefault(me, []).append(what)
        try:
            yield
        except Exception as error:
            if me in self.disturbed and self.undoing not in INSIDE.get():  # an error that nobody could make sense of
                raise disturbed(what, self.disturbed[me]) from error
            raise
        else:
            if me in self.disturbed and self.undoing not in INSIDE.get():
                raise disturbed(what, self.disturbed[me])
        finally:
            with self.lock:
                if not within:
                    self.passes.discard(me)  # one that a KeyboardInterrupt ended: torch then calls no hook
                self.functions[me].pop()
                if not self.functions[me]:
                    del self.functions[me]
                    self.disturbed.pop(me, None)

    def watch(self, module: nn.Module) -> None:
        """See every pass that goes through a decoder, whoever runs it."""
        self.watched = True
        module.register_forward_pre_hook(self.begin_pass)
        module.register_forward_hook(self.end_pass, always_call=True)

    def begin_pass(self, _module: nn.Module, _args: Any) -> None:
        me = threading.get_ident()
        with self.lock:
            self.check()
            if me not in self.functions:
                self.disturbed.pop(me, None)  # of a pass that a KeyboardInterrupt ended: torch then calls no hook
            self.passes.add(me)

    def end_pass(self, _module: nn.Module, _args: Any, output: Any) -> None:
        me = threading.get_ident()
        with self.lock:
            self.passes.discard(me)
            words = self.disturbed.get(me) if me in self.functions else self.disturbed.pop(me, None)
        if words is not None and output is not None:  # None where the pass raises an error of its own
            raise disturbed("this pass", words)

    # -- changing ------------------------------------------------------------------------------------------------

    @contextmanager
    def changing(self, words: str, modules: Iterable[nn.Module] = ()) -> Iterator[ExitStack]:
        """A block that changes the model, and what undoes the change: callbacks to be put on the stack it gives.

        Args:
            words: what changes it, for whoever is refused.
            modules: what is changed; nobody else can call these, whichever way to them is taken.

        Raises: BusyError: another context is inside a block, or another thread in the middle of a pass or a function.
        """
        block = OpenBlock(words)
        try:
            self.take(block)
            for module in modules:
                block.undo.callback(module.register_forward_pre_hook(self.guard).remove)
                block.undo.callback(module.register_forward_hook(self.guard).remove)
            yield block.undo
        finally:
            if not self.handed_on(block):
                self.end(block)

    def take(self, block: OpenBlock) -> None:
        with self.lock:
            self.check()
            me, running = threading.get_ident(), sys._current_frames()
            for thread in [*self.functions, *self.passes]:
                if thread != me and thread in running:  # a thread may have died in the middle of a pass
                    what = self.functions.get(thread, ["a pass"])[0]
                    raise BusyError(
                        f"{block.words} cannot begin: another thread is in the middle of {what} of the same model; "
                        "wait for it, or load a model of its own"
                    )
            self.blocks = (*self.blocks, block)
            INSIDE.set((*INSIDE.get(), block))

    def handed_on(self, block: OpenBlock) -> bool:
        """Whether somebody else is inside a block that began inside this one, which then ends with that one."""
        with self.lock:
            inside = INSIDE.get()
            inner = self.blocks[self.blocks.index(block) + 1 :] if block in self.blocks else ()
            others = [other for other in inner if other not in inside]
            if others:
                others[0].left.append(block)
                INSIDE.set(tuple(other for other in inside if other is not block))
        return bool(others)

    def end(self, block: OpenBlock) -> None:
        """Undo a block, and those that were left before it."""
        # Whoever leaves it, such as the garbage collector in another thread, must put things back.
        token = INSIDE.set((*INSIDE.get(), self.undoing))
        try:
            block.undo.close()
        finally:
            INSIDE.reset(token)
            self.release(block)
            for outer in block.left:
                self.end(outer)

    def release(self, block: OpenBlock) -> None:
        """End a block in whatever context; nothing happens where it did not begin."""
        with self.lock:
            if block in self.blocks:
                me = threading.get_ident()
                for thread in {*self.functions, *self.passes} - {me}:
                    self.disturbed[thread] = block.words
                self.blocks = tuple(other for other in self.blocks if other is not block)
            INSIDE.set(tuple(other for other in INSIDE.get() if other is not block))

    def guard(self, _module: nn.Module, *_passed: Any) -> None:
        """A hook on what is changed: who comes to it past the decoder, or set out before, is refused here."""
        self.check()


def disturbed(what: str, words: str) -> BusyError:
    return BusyError(
        f"{words} was left while another thread was in the middle of {what}, so what it found is neither with the "
        "change nor without: run it again, and leave a block only when all that runs inside it is done"
    )


def check_turn(module: nn.Module) -> None:
    """Raise BusyError for a module of a model that another context changes."""
    turns = module.__dict__.get(KEPT)
    if turns is not None:
        turns.check()


def in_turn(function: Callable[P, R]) -> Callable[P, R]:
    """A public function that reads models among its arguments: none is changed elsewhere while it runs."""

    @wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        with ExitStack() as stack:
            for value in (*args, *kwargs.values()):
                turns = getattr(value, "turns", None)
                if isinstance(turns, Turns):
                    stack.enter_context(turns.reading(function.__name__))
            return function(*args, **kwargs)

    return inside
