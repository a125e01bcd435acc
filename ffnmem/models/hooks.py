"""Hooks that cannot leak: registered together, removed together, and told of their own thread's passes alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from torch import Tensor, nn

from ..core.errors import HookError, listed

OnTensor = Callable[[Tensor], None]
Key = TypeVar("Key")


class OpenBlock(ExitStack):
    """A block that changes a model: what undoes it, by ``callback``."""

    def hook(self, module: nn.Module, hook: Callable[..., Any], before: bool = False, **options: bool) -> None:
        """Hang a hook on a module's passes, or before them, until the block ends."""
        register: Any = module.register_forward_pre_hook if before else module.register_forward_hook
        self.callback(register(hook, **options).remove)

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


@contextmanager
def listening(
    inputs: Iterable[tuple[nn.Module, OnTensor]] = (), outputs: Iterable[tuple[nn.Module, OnTensor]] = ()
) -> Iterator[None]:
    """Call each function with the first input, or the output, of its module whenever this thread runs that inside the
    block; what other threads run meanwhile is theirs."""
    me = threading.get_ident()

    def hear(receive: OnTensor, value: Any) -> None:
        if threading.get_ident() == me:
            receive(first_tensor(value))

    handles = []
    try:
        for module, receive in inputs:
            handles.append(module.register_forward_pre_hook(lambda _m, args, to=receive: hear(to, args)))
        for module, receive in outputs:
            handles.append(module.register_forward_hook(lambda _m, _args, out, to=receive: hear(to, out)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def hook_tables(module: nn.Module) -> dict[str, dict[int, Any]]:
    """Where torch keeps the hooks on passes of a module."""
    return {
        name: table
        for name, table in vars(module).items()
        if name.startswith(("_forward_", "_backward_")) and isinstance(table, dict)
    }
