"""A checkpoint becomes a Hugging Face model only if it is what its config says: nothing is filled in at random."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..errors import ModelError, UnsupportedModelError, listed
from ..foreign import foreign
from .architectures import DESCRIBED
from .configs import open_config, unusual_fields
from .sources import ask_hub, is_cached, locate, quiet

MASKS = re.compile(r"(^|\.)(attn|attention)\.(bias|masked_bias|causal_mask|embed_positions)$|rotary_emb\.inv_freq$")
"""What older versions of Hugging Face saved beside the weights, and newer ones compute: masks and angles."""
GIB = 1 << 30
ATTENTION = "eager"
"""Hugging Face's attention that shows its pattern, and takes the same steps on every machine."""


def read_checkpoint(source: str | Path, dtype: torch.dtype) -> Any:
    """A Hugging Face model from the embedded folder, a local folder or the hub, all of its weights from there.

    Raises:
        ModelNotFoundError: no such name, folder or hub id. UnsupportedModelError: an encoder-decoder, a PEFT adapter.
        ModelError: files that cannot be read, or tensors that are not those that the config asks for.
    """
    name, path, local = locate(source)
    local = local or is_cached(path) or ask_hub(name)
    config = open_config(name, path, local)
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(f"{name} is an encoder-decoder model; ffnmem reads decoder-only models")
    # First on the device "meta", where no number is read and no memory taken, however large the sizes in the config.
    with torch.device("meta"):  # for tables that are computed, too
        empty, report = from_files(name, path, config, local, dtype, device_map="meta")
    if getattr(empty, "_hf_peft_config_loaded", False):
        raise UnsupportedModelError(f"{name} holds a PEFT adapter: merge it into the weights first")
    check_report(report, name, type(empty).__name__)
    check_buffers(empty, name)
    check_names(stored_names(name, path), empty.base_model_prefix, name)
    model, report = from_files(name, path, config, local, dtype)
    check_report(report, name, type(model).__name__)  # whatever became of the files in between
    return model


def from_files(
    name: str, path: str, config: Any, local: bool, dtype: torch.dtype, **options: Any
) -> tuple[Any, Mapping[str, Any]]:
    """The model as Hugging Face loads it, and its report of what was missing, unexpected or of another shape."""
    import transformers

    where = "" if local else " from the Hugging Face hub"
    with quiet(), foreign(ModelError, f"{name} could not be read{where}", lambda: unusual_fields(config.to_dict())):
        return transformers.AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=dtype,
            local_files_only=local,
            use_safetensors=True,
            trust_remote_code=False,
            attn_implementation=ATTENTION,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # which are in the report, and refused by us
            **options,
        )


def stored_names(name: str, path: str) -> list[str]:
    """The names of all tensors in the files that Hugging Face loaded; those of several shards one after the other."""
    from safetensors import safe_open
    from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file
    from transformers.utils.hub import get_checkpoint_shard_files

    found: list[str] = []
    with quiet(), foreign(ModelError, f"{name} could not be read"):
        # What is on the hub was fetched when it was loaded; what it converted for us lies in another branch.
        here: dict[str, Any] = {"local_files_only": True, "_raise_exceptions_for_missing_entries": False}
        files = [cached_file(path, SAFE_WEIGHTS_NAME, **here)]
        if files == [None]:
            index = cached_file(path, SAFE_WEIGHTS_INDEX_NAME, **here)
            files = [] if index is None else get_checkpoint_shard_files(path, index, local_files_only=True)[0]
        for file in files:
            with safe_open(file, framework="pt") as tensors:
                found += tensors.keys()
    return found


def check_names(stored: Iterable[str], prefix: str, name: str) -> None:
    """Raise ModelError where a weight is stored twice, in two shards or with and without the prefix of the base model:
    Hugging Face takes one of them without a word."""
    seen: dict[str, str] = {}
    for key in stored:
        weight = key.removeprefix(f"{prefix}.")
        if weight in seen and not MASKS.search(key):
            raise ModelError(f"{name}: its files hold the same weight twice, as {seen[weight]} and as {key}")
        seen[weight] = key


def check_report(report: Mapping[str, Any], name: str, kind: str) -> None:
    """Raise ModelError, with the first few names and how many, unless the tensors are those of the config."""
    unexpected = sorted(key for key in report["unexpected_keys"] if not MASKS.search(key))
    mismatched = [f"{key} {list(there)} instead of {list(ours)}" for key, there, ours in report["mismatched_keys"]]
    wrong = [
        f"{what} {listed(sorted(tensors), 3)}"
        for what, tensors in (
            ("missing", report["missing_keys"]),
            ("unexpected", unexpected),
            ("of another shape", mismatched),
            ("unreadable", report["error_msgs"]),
        )
        if tensors
    ]
    if wrong:
        if kind not in DESCRIBED:  # such as an encoder, which Hugging Face reads as a decoder without a head
            wrong.append(f"{kind} is no decoder-only language model that ffnmem describes")
        raise ModelError(f"{name}: its tensors are not those that its config.json asks for: {'; '.join(wrong)}")


def check_buffers(empty: torch.nn.Module, name: str) -> None:
    """Raise ModelError where tables that are computed, not stored, would take more memory than all of the weights."""
    weights = sum(p.numel() * p.element_size() for p in empty.parameters())
    sizes = {path: buffer.numel() * buffer.element_size() for path, buffer in empty.named_buffers()}
    if sum(sizes.values()) > max(GIB, weights):
        path, total = max(sizes, key=sizes.__getitem__), sum(sizes.values())
        raise ModelError(
            f"{name}: its config.json asks for tables of {total / GIB:,.0f} GiB beside {weights / GIB:,.1f} of weights "
            f"({path}): its number of positions is out of range"
        )
