"""Edited models for other programs: as a plain Hugging Face checkpoint, and as a PEFT adapter."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError, UnsupportedModelError
from ..core.files import appearing, check_new_folder, readable, write_whole
from ..models.configs import is_cached, locate, quiet
from ..models.hooks import listening
from ..models.layer_pass import Counterparts, network_around
from ..models.loading import open_tokenizer
from ..models.model import AGREE, HALF, Model
from .changes import EditedLayer

PROBE = 8  # tokens


def write_checkpoint(model: Model, folder: str | Path) -> Path:
    """Write a model, as it is now, as a checkpoint of its own Hugging Face class, checked against it; raises as
    :meth:`ffnmem.Edit.export`."""
    path = check_new_folder(folder)
    network: Any
    network, _ = network_around(model, model.dtype, attention="eager")
    network.tie_weights()
    generation = getattr(model.hf_model, "generation_config", None)
    if generation is not None:
        network.generation_config = copy.deepcopy(generation)
    check_same_logits(network, model)
    with appearing(path) as place, quiet():
        # Contiguous: the values of experts are views of one matrix.
        tensors = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
        network.save_pretrained(place, state_dict=tensors)
        plain_tokenizer(model).save_pretrained(place)
        for file in place.glob("*.safetensors"):
            readable(file)
    return path


def plain_tokenizer(model: Model) -> Any:
    """The tokenizer as it was before TransformerLens read it again so that it begins every text with its token.

    From its own files where they are at hand. A tokenizer that was only in memory is written so that it adds no token.
    """
    origin = model.tokenizer.init_kwargs.get("name_or_path") or ""
    for source in (origin, locate(model.name)[1]) if model.name else (origin,):
        if source and (Path(source).is_dir() or is_cached(source)):
            found = open_tokenizer(model.name, source, local=True)
            if found.get_vocab() == model.tokenizer.get_vocab():
                return found
    found = copy.deepcopy(model.tokenizer)
    if found.init_kwargs.get("is_local") and found.init_kwargs.get("add_bos_token"):
        # Read again from a folder that is gone: the one that loading made for a tokenizer without a folder of its own.
        # That happens only to tokenizers that do not add the token by themselves.
        found.init_kwargs.pop("add_bos_token")
        found.add_bos_token = False
    return found


def check_same_logits(network: Any, model: Model) -> None:
    """Raise UnsupportedModelError where the network is another model: a bias of its own, norms folded into weights."""
    tokens = torch.arange(min(PROBE, model.d_vocab), device=model.device).unsqueeze(0)
    final: list[Tensor] = []
    with listening(outputs=[(model.layout.final_norm, lambda out: final.append(out.detach()))]):
        model.body(tokens)
    with torch.no_grad():
        found = network(input_ids=tokens, use_cache=False).logits
    expected = model.logits_of(final[0])
    if not bool(expected.isfinite().all()):
        largest = max(float(ffn.values.detach().abs().max()) for ffn in model.ffn)
        raise InputError(
            f"{model.name} with its edits gives NaN or infinite logits in {str(model.dtype)[6:]}, where values reach "
            f"{largest:.3g}: load it in float32, where they have room, or take edits back"
        )
    off = float((found - expected).abs().max() / expected.abs().max().clamp(min=1.0))
    if not off <= AGREE.get(model.dtype, HALF):
        raise UnsupportedModelError(
            f"{model.name}: a {type(network).__name__} with its weights gives other logits (off by {off:.1g}), so it "
            "cannot be written as one: it has weights that this class does not have, hooks, or folded norms"
        )


def write_adapter(changes: Sequence[EditedLayer], model: Model, folder: str | Path) -> Path:
    """Write changes of a model's layers as a PEFT adapter; raises as :meth:`ffnmem.Edit.export_lora`."""
    from safetensors.torch import save

    if any(model.ffn[change.layer].mixture is not None for change in changes):
        raise UnsupportedModelError(
            f"{model.name} is edited in a layer of experts, whose values are one tensor that no adapter of linear "
            "layers fits: export a checkpoint"
        )
    path = check_new_folder(folder)
    network, _ = network_around(model, model.dtype)
    names = Counterparts(model, network).names
    tensors, ranks = {}, {}
    for change in changes:
        name = names[id(model.ffn[change.layer].project_out)]
        tensors[f"base_model.model.{name}.lora_A.weight"] = change.left.float()
        tensors[f"base_model.model.{name}.lora_B.weight"] = change.right.T.float().contiguous()
        ranks[name] = change.rank
    with appearing(path) as place:
        write_whole(place / "adapter_config.json", json.dumps(adapter_config(model, ranks), indent=2) + "\n")
        write_whole(place / "adapter_model.safetensors", save(tensors, {"format": "pt"}))
    return path


def adapter_config(model: Model, ranks: dict[str, int]) -> dict[str, Any]:
    """What PEFT needs to know. Whole names select these modules alone; each has its own rank as its α."""
    rank = max(ranks.values())
    others = {name: found for name, found in ranks.items() if found != rank}
    conv1d = not isinstance(model.ffn[0].project_out, nn.Linear)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model.name,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": rank,
        "rank_pattern": others,
        "alpha_pattern": others,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": conv1d,
        "target_modules": list(ranks),
    }
