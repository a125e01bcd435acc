"""The way to TransformerLens, which is imported here and nowhere else, and only when somebody asks for a bridge."""

from __future__ import annotations

import copy
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError, UnsupportedModelError
from ..core.foreign import foreign
from .configs import quiet, unusual_fields
from .layout import inner


def is_bridge(source: Any) -> bool:
    """Whether something is a TransformerBridge, without importing what would say so."""
    return any(cls.__name__ == "TransformerBridge" for cls in type(source).__mro__)


def boot(network: Any, tokenizer: Any, name: str, dtype: torch.dtype) -> Any:
    """The bridge around a Hugging Face model, which it rewires; the tokenizer stays as it is."""
    from transformer_lens.model_bridge import TransformerBridge

    with quiet(), tempfile.TemporaryDirectory() as folder:
        # TransformerLens reads the tokenizer again from where it came from, which an in-memory one does not have.
        with foreign(InputError, f"the tokenizer of {name} cannot be copied"):
            tokenizer = copy.deepcopy(tokenizer)
            if not Path(tokenizer.init_kwargs.get("name_or_path") or "no folder").is_dir():
                tokenizer.save_pretrained(folder)
                tokenizer.init_kwargs["name_or_path"] = folder
        network.config.architectures = [type(network).__name__]  # which TransformerLens goes by
        what = f"{name} ({type(network).__name__}) is no language model that TransformerLens boots"
        with foreign(UnsupportedModelError, what, lambda: unusual_fields(network.config.to_dict())):
            bridge = TransformerBridge.boot_transformers(name, hf_model=network, tokenizer=tokenizer, dtype=dtype)
            return pass_caches(bridge)


def pass_caches(bridge: Any) -> Any:
    """A bridge whose attention finds its cache, which is called ``cache`` from transformers 5.24 on.

    TransformerLens 4.3 looks for older names, and would let every step after the first see itself alone.
    """
    for module in bridge.modules():
        if hasattr(module, "_update_kv_cache"):
            module._update_kv_cache = partial(update_cache, module)
    return bridge


def update_cache(
    attention: Any, keys: Tensor, values: Tensor, cache: Any = None, past_key_values: Any = None, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    held = past_key_values if cache is None else cache
    return type(attention)._update_kv_cache(attention, keys, values, past_key_values=held, **kwargs)


class Twin:
    """Modules of their own that hold the very parameters of a Hugging Face model, which stays whole: for a bridge.

    No hooks hang on them at first, so that they may be tried without anybody's seeing it.

    Args:
        network: the Hugging Face model.
        shared: what its modules refer to and their copies shall refer to as well.
    """

    def __init__(self, network: nn.Module, shared: Any) -> None:
        memo: dict[int, Any] = {id(one): one for one in (*network.parameters(), *network.buffers(), shared)}
        memo |= {id(table): OrderedDict() for module in network.modules() for _, table in hook_tables(module)}
        self.network: Any = copy.deepcopy(network, memo)
        # Before a bridge takes them apart.
        self.pairs = list(zip(network.modules(), self.network.modules(), strict=True))

    def share_hooks(self, bridge: nn.Module, run: Callable[[], Any]) -> None:
        """Let a bridge around the twin and the model hold the same hooks from now on: who removes one takes it from
        both. Where TransformerLens computes a module itself (attention), hooks hang on what stands in its place.

        Args:
            run: one pass through the bridge, by which is seen what TransformerLens calls.
        """
        ran: set[nn.Module] = set()
        handles = [other.register_forward_pre_hook(lambda module, _args: ran.add(module)) for _, other in self.pairs]
        try:
            run()
        finally:
            for handle in handles:
                handle.remove()
        wrappers = {inner(module): module for module in bridge.modules() if inner(module) is not module}
        blocks: list[Any] = [module for module in bridge.modules() if hasattr(module, "_teardown_capture_hooks")]
        for block in blocks:  # TransformerLens' own hooks
            block._teardown_capture_hooks()
        for own, other in self.pairs:
            tables = hook_tables(own)
            called = other if other in ran or not any(table for _, table in tables) else wrappers.get(other, other)
            for name, table in tables:
                table.update(vars(called)[name])
                setattr(called, name, table)
        for block in blocks:
            block._maybe_wire_capture_hooks()


def hook_tables(module: nn.Module) -> list[tuple[str, dict[int, Any]]]:
    """Where torch keeps the hooks on passes of a module."""
    return [
        (name, table)
        for name, table in vars(module).items()
        if name.startswith(("_forward_", "_backward_")) and isinstance(table, dict)
    ]
