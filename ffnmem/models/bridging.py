"""The way to TransformerLens, which is imported here and nowhere else, and only when somebody asks for a bridge."""

from __future__ import annotations

import copy
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError, UnsupportedModelError
from ..core.foreign import foreign
from .configs import quiet
from .hooks import hook_tables


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
        with foreign(UnsupportedModelError, what):
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


def copy_around(network: nn.Module, hooked: Sequence[nn.Module]) -> tuple[Any, list[tuple[nn.Module, nn.Module]]]:
    """Modules of their own around the very parameters of a Hugging Face model, which stays whole, for a bridge.

    Args:
        network: the Hugging Face model.
        hooked: some of its modules.

    Returns: The copy, without any hooks, and each of ``hooked`` beside its own copy.
    """
    memo: dict[int, Any] = {id(one): one for one in (*network.parameters(), *network.buffers())}
    memo |= {id(table): OrderedDict() for module in network.modules() for table in hook_tables(module).values()}
    copied: Any = copy.deepcopy(network, memo)
    copies = dict(zip(network.modules(), copied.modules(), strict=True))
    return copied, [(module, copies[module]) for module in hooked]
