"""Toy models written as GGUF files, as llama.cpp's converters write them: its names, permutations and transposes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from ..helpers import build, build_gpt2, build_tokenizer

SIZES = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}


def toy(kind: str) -> Any:
    if kind == "gpt2":
        return build_gpt2(n_embd=32, n_inner=128, n_positions=1024)  # which transformers takes for given
    name = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[kind]
    more: dict[str, Any] = {"qwen3": {"head_dim": 128}}.get(kind, {})  # which transformers takes for given
    return build(name, **SIZES, intermediate_size=64, tie_word_embeddings=kind == "llama", **more)


def write_gguf(path: Path, kind: str, model: Any, quantise: str = "F32", **fields: Any) -> Path:
    """A model as a GGUF file; ``quantise``: of its matrices. ``fields`` come after the others."""
    writer = gguf.GGUFWriter(path, kind)
    config = model.config
    if kind == "gpt2":
        sizes = (config.n_positions, config.n_embd, config.n_layer, config.n_inner, config.n_head)
    else:
        sizes = (config.max_position_embeddings, config.hidden_size, config.num_hidden_layers)
        sizes += (config.intermediate_size, config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        writer.add_vocab_size(config.vocab_size)
    positions, width, layers, hidden, heads = sizes
    writer.add_context_length(positions)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(heads)
    if kind == "gpt2":
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    add_tokenizer(writer, config.vocab_size)
    for name, value in fields.items():
        getattr(writer, name)(value)
    names = gguf.get_tensor_name_map(next(a for a, said in gguf.MODEL_ARCH_NAMES.items() if said == kind), layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = stored(kind, name, tensor.numpy(), config)
        title = names.get_name(name.rpartition(".")[0]) + "." + name.rpartition(".")[2]
        how = gguf.GGMLQuantizationType[quantise if array.ndim == 2 else "F32"]
        writer.add_tensor(title, gguf.quants.quantize(np.ascontiguousarray(array), how), raw_dtype=how)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tokenizer(writer: gguf.GGUFWriter, size: int) -> None:
    tokenizer = build_tokenizer()
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    pairs = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary[:size])
    writer.add_token_types([3 if i == 0 else 1 for i in range(len(vocabulary[:size]))])
    writer.add_token_merges([" ".join(pair) if isinstance(pair, list) else pair for pair in pairs])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_unk_token_id(0)


def stored(kind: str, name: str, array: np.ndarray, config: Any) -> np.ndarray:
    """A weight as it lies in the file: Llama's queries and keys interleaved, GPT-2's Conv1D transposed."""
    if kind == "gpt2" and ("c_attn.weight" in name or "c_proj.weight" in name or "c_fc.weight" in name):
        return array.T
    if kind == "llama" and ("q_proj" in name or "k_proj" in name):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
        return halves.swapaxes(1, 2).reshape(array.shape)
    return array


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([[0, 5, 6, 7, 300, 12]])).logits
