"""Blocks that change a model and leave nothing behind, and hooks that are told of their own thread's passes alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ContextDecorator
from functools import partial
from typing import Any, TypeVar
from weakref import finalize

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from ..core.errors import HookError, listed

OnTensor = Callable[[Tensor], None]
Key = TypeVar("Key")
Mode = TypeVar("Mode", bound=TorchFunctionMode)


class BlockMode(TorchFunctionMode):
    """A mode of torch that does nothing once its block is over: one that torch took off its stack for a call may come
    back to it after an interrupt, once the traceback goes."""

    over = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = func if self.over else partial(self.called, func)
        return call(*args, **(kwargs or {}))

    def called(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """What a call of a function of torch gives inside the block."""
        return func(*args, **kwargs)


class UndoList:
    """What undoes the changes that a block makes; each is recorded before it is made.

    An interrupt may come at any line, so what undoes a change must do nothing where there is nothing (more) to undo.
    """

    def __init__(self) -> None:
        self.calls: list[Callable[[], Any]] = []

    def callback(self, undo: Callable[..., Any], *args: Any) -> None:
        """Record what undoes the change that is made next."""
        self.calls.append(partial(undo, *args))

    def close(self) -> None:
        """Undo the changes, the last one first; called again after an interrupt, those that are left."""
        while self.calls:
            try:
                self.calls[-1]()
            except Exception:
                self.calls.pop()
                raise
            self.calls.pop()

    def hook(self, module: nn.Module, hook: Callable[..., Any], before: bool = False, **options: bool) -> None:
        """Hang a hook on a module's passes, or before them, until the block ends."""
        register: Any = module.register_forward_pre_hook if before else module.register_forward_hook
        self.callback(remove_hook, module, hook)
        register(hook, **options)

    def mode(self, mode: Mode) -> Mode:
        """Enter a mode of torch until the block ends."""
        self.callback(leave_mode, mode)
        self.callback(setattr, mode, "over", True)
        mode.__enter__()  # type: ignore[no-untyped-call]
        return mode

    def listen(
        self, inputs: Iterable[tuple[nn.Module, OnTensor]] = (), outputs: Iterable[tuple[nn.Module, OnTensor]] = ()
    ) -> None:
        """:func:`listening` until the block ends."""
        me = threading.get_ident()

        def hear(receive: OnTensor, value: Any) -> None:
            if threading.get_ident() == me:
                receive(first_tensor(value))

        for module, receive in inputs:
            self.hook(module, lambda _m, args, to=receive: hear(to, args), before=True)
        for module, receive in outputs:
            self.hook(module, lambda _m, _args, out, to=receive: hear(to, out))

    def require(self, network: nn.Module, modules: Mapping[int, nn.Module], name: str) -> None:
        """Raise HookError behind a pass of a network in which a layer's module did not run: what hangs there did
        nothing."""
        ran: set[int] = set()

        def check(_module: nn.Module, _args: Any, _output: Any) -> None:
            if silent := sorted({*modules} - ran):
                raise HookError(
                    f"the FFN of layer {listed(silent)} of {name} ran without its down projection, so nothing was "
                    "changed there: its forward was replaced"
                )

        for layer, module in modules.items():
            self.hook(module, lambda _module, _args, layer=layer: ran.add(layer), before=True)
        self.hook(network, check)


class BlockExit:
    """``OpenBlock.__exit__``: a call that only the ``with`` statement refers to, which gets it before it enters.

    However the statement ends, it lets go of that call, and whatever is not undone by then is undone at once. That
    covers a Ctrl-C within ``__enter__``, or in ``__exit__`` before its first line. A traceback that is kept refers to
    the block, but not to this call.
    """

    def __get__(self, block: OpenBlock | None, kind: type[OpenBlock]) -> Callable[..., None]:
        if block is None:
            return kind.leave
        block.entering = undo = UndoList()
        leave = partial(block.leave)
        undo.callback(finalize(leave, undo.close).detach)  # which is called last: nothing is left to undo
        return leave


class OpenBlock(ContextDecorator):
    """A block that changes a model, and undoes that when it ends, at whatever line an interrupt comes.

    That holds for a ``with`` statement. An ``ExitStack``, or who calls ``__enter__`` by hand, undoes it by calling
    ``__exit__``, as with any block. One more interrupt while what is left is undone at once may leave a part.

    Args:
        changes: makes the changes, recording each in an :class:`UndoList`; what it returns is what ``as`` names.
    """

    __exit__ = BlockExit()

    def __init__(self, changes: Callable[[UndoList], Any] = lambda undo: undo) -> None:
        self.changes = changes
        self.entering: UndoList | None = None  # of the ``with`` that is about to enter
        self.open: list[UndoList] = []  # a block may be entered again inside itself

    def begin(self, undo: UndoList) -> Any:
        """Make the changes, for a ``with`` that enters the block."""
        return self.changes(undo)

    def __enter__(self) -> Any:
        undo, self.entering = self.entering or UndoList(), None
        try:
            entered = self.begin(undo)
            self.open.append(undo)
        except BaseException:  # for who entered it without a ``with``
            undo.close()
            raise
        return entered

    def leave(self, *_error: Any) -> None:
        """Undo the changes of the ``with`` that ends; takes what ``__exit__`` takes."""
        self.open.pop().close()


def first_tensor(value: Any) -> Tensor:
    """The tensor itself, or the first of a tuple (attention modules return their weights beside their output)."""
    found = value[0] if isinstance(value, tuple) else value
    assert isinstance(found, Tensor)
    return found


def with_input(args: tuple[Any, ...], kwargs: dict[str, Any], x: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A module's call with another first input, which some are given by name."""
    return ((x, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": x})


def keeper(into: dict[Key, Any], key: Key, shaped: Callable[[Tensor], Any] = Tensor.detach) -> OnTensor:
    """A function for :func:`listening` that keeps what it is told of under a key, without its gradient."""

    def keep(tensor: Tensor) -> None:
        into[key] = shaped(tensor.detach())

    return keep


def listening(
    inputs: Iterable[tuple[nn.Module, OnTensor]] = (), outputs: Iterable[tuple[nn.Module, OnTensor]] = ()
) -> OpenBlock:
    """Call each function with the first input, or the output, of its module whenever this thread runs that inside the
    block; what other threads run meanwhile is theirs."""
    return OpenBlock(lambda undo: undo.listen(inputs, outputs))


def on_meta() -> OpenBlock:
    """A block in which this thread makes tensors without numbers."""
    return OpenBlock(lambda undo: undo.mode(DeviceContext("meta")))


def leave_mode(mode: TorchFunctionMode) -> None:
    """Leave a mode of torch, and those entered inside it, if this thread is in it."""
    while mode in _get_current_function_mode_stack():  # type: ignore[no-untyped-call]
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]


def remove_hook(module: nn.Module, hook: Callable[..., Any]) -> None:
    """Remove a hook on a module's passes, if it hangs there."""
    tables = hook_tables(module).values()
    for key in [key for table in tables for key, held in table.items() if held is hook]:
        for table in tables:
            table.pop(key, None)


def hook_tables(module: nn.Module) -> dict[str, dict[int, Any]]:
    """Where torch keeps the hooks on passes of a module."""
    return {
        name: table
        for name, table in vars(module).items()
        if name.startswith(("_forward_", "_backward_")) and isinstance(table, dict)
    }
