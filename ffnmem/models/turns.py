"""Whose turn a model is: one context changes it for a while, threads that only read it go side by side, never both.

A block (``fm.intervene``, ``edit.hooks``, ``edit.applied``) belongs to the context that opened it. What runs inside
that context sees the change: nested calls, ``asyncio.to_thread``, ``contextvars.copy_context().run`` in another thread.
Every other thread or context is refused by name, and a block does not begin while another thread is in the middle of
something. One that is left while another context is inside a block within it ends with that one. Nothing here waits, so
nothing can deadlock.

A KeyboardInterrupt may come at any line, also in the middle of beginning or ending a block. So what undoes a step is
kept before the step is done, and can be done twice; and a block ends with the ``with`` statement that began it, whether
or not its ``__exit__`` was run to the end.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ContextDecorator, ExitStack, contextmanager
from contextvars import ContextVar, copy_context
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from torch import nn

from ..core.errors import BusyError

P = ParamSpec("P")
R = TypeVar("R")
KEPT = "_ffnmem_turns"
"""The attribute of a module that holds its model's turns: models around the same modules share them."""


class OpenBlock:
    """An open block, what undoes it, and the blocks around it that were left before it: they end when it does.

    Attributes:
        undo: called in turn from the last; each may be called again after an interrupt.
        after: called once the block was left without an error.
    """

    def __init__(self, words: str) -> None:
        self.words, self.entered = words, False
        self.undo: list[Callable[[], object]] = []
        self.after: Callable[[], None] | None = None
        self.left: list[OpenBlock] = []
        self.holder: Callable[[], object] = lambda: self
        """What holds the block open; it gives None where that has gone."""

    def ends_with(self, holder: object, turns: Turns) -> None:
        """End when ``holder`` goes at the latest."""
        self.holder = weakref.ref(holder, lambda _: turns.leave(self))

    def hook(self, module: nn.Module, hook: Callable[..., Any], before: bool = False, **options: bool) -> None:
        """Hang a hook on a module's passes, or before them, until the block ends."""
        table = module._forward_pre_hooks if before else module._forward_hooks  # a bridge's module has the same one
        self.undo.append(lambda: [table.pop(number) for number, held in list(table.items()) if held is hook])
        register: Any = module.register_forward_pre_hook if before else module.register_forward_hook
        register(hook, **options)


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
        if self.blocks and self.undoing not in (inside := INSIDE.get()):
            for block in self.blocks[::-1]:
                if block.holder() is None and not any(block in other.left for other in self.blocks):
                    self.leave(block)  # an interrupt came between
            for block in self.blocks:
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

    def changing(
        self, words: str, modules: Iterable[nn.Module] = (), begin: Callable[[OpenBlock], Any] = lambda block: block
    ) -> ModelChange:
        """A block that changes the model.

        Args:
            words: what changes it, for whoever is refused.
            modules: what is changed; nobody else can call these, whichever way to them is taken.
            begin: changes the model, the undoing of each step in ``block.undo`` before it is done, and gives what
                ``as`` binds.

        Raises, when it is entered: BusyError: another context is inside a block, or another thread in the middle of a
            pass or a function.
        """
        return ModelChange(self, words, modules, begin)

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

    def leave(self, block: OpenBlock) -> None:
        """End a block, unless it has ended, or somebody else is inside one that began inside it, with which it ends."""
        with self.lock:
            inside = INSIDE.get()
            inner = self.blocks[self.blocks.index(block) + 1 :] if block in self.blocks else ()
            others = [other for other in inner if other not in inside]
            if others:
                others[0].left.append(block)
                INSIDE.set(tuple(other for other in inside if other is not block))
            elif block in self.blocks:
                self.end(block)

    def end(self, block: OpenBlock) -> None:
        """Undo a block, and those that were left before it. Raises what undoing it raised."""
        # Whoever leaves it, such as the garbage collector in another thread, must put things back.
        problem = copy_context().run(self.undo, block)
        for outer in block.left:
            self.end(outer)
        self.release(block)
        if problem is not None:
            raise problem

    def undo(self, block: OpenBlock) -> Exception | None:
        """Undo all that can be undone; what an interrupt stopped stays in ``block.undo``."""
        INSIDE.set((*INSIDE.get(), self.undoing))
        problem = None
        while block.undo:
            try:
                block.undo[-1]()
            except Exception as error:  # noqa: BLE001 (raised by end)
                problem = problem or error
            block.undo.pop()
        return problem

    def release(self, block: OpenBlock) -> None:
        """End a block in whatever context; nothing happens where it did not begin."""
        with self.lock:
            if block in self.blocks:
                me = threading.get_ident()
                for thread in {*self.functions, *self.passes} - {me}:
                    self.disturbed[thread] = block.words
            INSIDE.set(tuple(other for other in INSIDE.get() if other is not block))
            self.blocks = tuple(other for other in self.blocks if other is not block)
            block.holder = type(None)  # what held it may go without anything being done

    def guard(self, _module: nn.Module, *_passed: Any) -> None:
        """A hook on what is changed: who comes to it past the decoder, or set out before, is refused here."""
        self.check()


class Leave:
    """``__exit__`` of :class:`ModelChange`: a new function for each ``with`` statement, which alone holds it.

    It goes when the statement is left, in whichever way: an interrupt may come after ``__enter__`` has changed the
    model and before the body begins, or before the first line of an ordinary ``__exit__``, and its traceback would hold
    an ordinary object for as long as somebody looks at it. The frame of a partial function does not hold that.
    """

    def __get__(self, change: ModelChange | None, owner: type | None = None) -> Callable[..., None]:
        if change is None:
            return leave  # ExitStack asks the class
        block = OpenBlock(change.words)
        leaving = partial(leave, change, block=block)
        block.ends_with(leaving, change.turns)
        change.asked[threading.get_ident()] = block
        return leaving


def leave(change: ModelChange, kind: object = None, *_error: object, block: OpenBlock | None = None) -> None:
    """Leave a block; without one, or with one that was never entered, the last that was entered by a call."""
    if block is None or not block.entered:
        block = change.called.pop()
    change.turns.leave(block)
    if kind is None and block.after is not None:
        block.after()


class ModelChange(ContextDecorator, AbstractContextManager[Any]):
    """What :meth:`Turns.changing` returns, which has its arguments; it can be entered again, also inside itself."""

    def __init__(
        self, turns: Turns, words: str, modules: Iterable[nn.Module], begin: Callable[[OpenBlock], Any] | None = None
    ) -> None:
        self.turns, self.words, self.modules = turns, words, tuple(modules)
        self.change = begin
        self.asked: dict[int, OpenBlock] = {}  # by thread, of a ``with`` statement that is about to begin
        self.called: list[OpenBlock] = []  # entered by a call of ``__enter__``

    def begin(self, block: OpenBlock) -> Any:
        return None if self.change is None else self.change(block)

    def __enter__(self) -> Any:
        block = self.asked.pop(threading.get_ident(), None)
        called = block is None or block.holder() is None
        if block is None or called:
            block = OpenBlock(self.words)
            block.ends_with(self, self.turns)
        block.entered = True
        try:
            self.turns.take(block)
            guard = partial(self.turns.guard)  # one of its own: a block around this one has another
            for module in self.modules:
                block.hook(module, guard, before=True)
                block.hook(module, guard)
            given = self.begin(block)
            if called:
                self.called.append(block)
        except BaseException:
            self.turns.leave(block)
            raise
        return given

    __exit__ = Leave()


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
