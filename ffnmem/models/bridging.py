"""The way to TransformerLens, which is imported here and nowhere else, and only when somebody asks for a bridge."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import torch

from ..core.errors import InputError, UnsupportedModelError
from ..core.foreign import foreign
from .configs import quiet, unusual_fields


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
            return TransformerBridge.boot_transformers(name, hf_model=network, tokenizer=tokenizer, dtype=dtype)


def around_the_same_weights(network: Any, shared: Any, tokenizer: Any, name: str, dtype: torch.dtype) -> Any:
    """A bridge around modules of its own that hold the very parameters of a Hugging Face model, which stays whole.

    Args:
        network: the model. shared: what its hooks refer to and the copies of them shall share with them.
    """
    held = [*network.parameters(), *network.buffers(), shared]
    modules = copy.deepcopy(network, {id(one): one for one in held})
    return boot(modules, tokenizer, name, dtype)
