"""Toy models written as GGUF files, as llama.cpp's converters write them: its names, permutations and transposes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from ..architectures import build_bloom, build_falcon
from ..helpers import build, build_gpt2, build_tokenizer

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "tie_word_embeddings": False,
}
EPS = 2**-10  # no one's default, and the same number in float32, as files hold it
LARGE = {"head_dim": 128}  # which transformers takes for given in Qwen 3
SOFT = {"head_dim": 256, "sliding_window": 4}  # as 27B do not have it

TOYS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: build_gpt2(n_embd=32, n_inner=128, n_positions=1024, layer_norm_epsilon=EPS),
    "llama": lambda: build("Llama", **SIZES | {"tie_word_embeddings": True}, rms_norm_eps=EPS),
    "qwen2": lambda: build("Qwen2", **SIZES, rms_norm_eps=EPS),
    "qwen3": lambda: build("Qwen3", **SIZES, **LARGE, rms_norm_eps=EPS),
    "gemma2": lambda: build("Gemma2", **SIZES | SOFT | {"tie_word_embeddings": True}, rms_norm_eps=EPS),
    "gemma3": lambda: build("Gemma3", **SIZES | SOFT | {"tie_word_embeddings": True}, rms_norm_eps=EPS),
    "starcoder2": lambda: build("Starcoder2", **SIZES, norm_epsilon=EPS),
    "phi3": lambda: build("Phi3", **SIZES, rms_norm_eps=EPS),
    "stablelm": lambda: build("StableLm", **SIZES, layer_norm_eps=EPS),
    "nemotron": lambda: build("Nemotron", **SIZES),
    "falcon": lambda: build_falcon(hidden_size=32, num_attention_heads=4, attn_implementation="eager"),
    "bloom": lambda: build_bloom(hidden_size=32, n_head=4, layer_norm_epsilon=EPS),
}
"""By llama.cpp's name of the architecture. What transformers takes for given is so; all else is unusual."""


def toy(kind: str) -> Any:
    model = TOYS[kind]()
    if getattr(model.config, "rope_parameters", None) and kind not in FIXED:
        return turned(kind, model, 5000.0)
    return model


FIXED = ("starcoder2", "stablelm", "falcon", "gemma3")
"""Whose rotary base transformers takes for given."""


def turned(kind: str, model: Any, theta: float) -> Any:
    """The same weights with another base of rotary positions."""
    config = copy.deepcopy(model.config)
    config.rope_parameters["rope_theta"] = theta
    found = type(model)(config).eval()
    found.load_state_dict(model.state_dict())
    return found


def fields_of(kind: str, config: Any) -> Iterator[tuple[str, Any]]:
    """What llama.cpp's converter says of a config: the writer's methods and their values."""

    def first(*names: str) -> Any:
        return next((getattr(config, name) for name in names if getattr(config, name, None) is not None), None)

    width, heads = first("hidden_size", "n_embd"), first("num_attention_heads", "n_head")
    yield "add_context_length", first("max_position_embeddings", "n_positions") or 2048
    yield "add_embedding_length", width
    yield "add_block_count", config.num_hidden_layers
    yield "add_feed_forward_length", first("intermediate_size", "n_inner", "ffn_hidden_size") or 4 * width
    yield "add_head_count", heads
    eps = first("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
    yield ("add_layer_norm_rms_eps" if hasattr(config, "rms_norm_eps") else "add_layer_norm_eps"), eps
    if kind == "gpt2":
        return
    yield "add_head_count_kv", 1 if kind == "falcon" else first("num_key_value_heads") or heads
    yield "add_vocab_size", config.vocab_size
    turning = getattr(config, "rope_parameters", None)
    if turning is None or kind == "falcon":
        return
    turning = turning.get("full_attention", turning)
    yield "add_rope_freq_base", turning["rope_theta"]
    head = first("head_dim") or width // heads
    if first("head_dim") is not None:
        yield "add_key_length", head
        yield "add_value_length", head
    if kind in ("llama", "phi3", "stablelm", "nemotron"):
        yield "add_rope_dimension_count", int(head * turning.get("partial_rotary_factor", 1))
    if kind == "stablelm":
        yield "add_parallel_residual", config.use_parallel_residual
    if kind == "gemma2":
        yield "add_attn_logit_softcapping", config.attn_logit_softcapping
        yield "add_final_logit_softcapping", config.final_logit_softcapping
    if kind.startswith("gemma"):
        yield "add_sliding_window", config.sliding_window


def write_gguf(
    path: Path, kind: str, model: Any, quantise: str = "F32", arch: str = "", cuts_by: str = "gpt-2", **fields: Any
) -> Path:
    """A model as a GGUF file; ``quantise``: of its matrices; ``arch``: what it calls itself; ``cuts_by``: its
    pre-tokeniser. ``fields`` come last."""
    writer = gguf.GGUFWriter(path, arch or kind)
    config = model.config
    said = dict(fields_of(kind, config))
    for name, value in (said | fields).items():
        getattr(writer, name)(*(value if isinstance(value, tuple) else (value,)))
    add_tokenizer(writer, config.vocab_size, cuts_by)
    names = gguf.get_tensor_name_map(
        next(a for a, said in gguf.MODEL_ARCH_NAMES.items() if said == kind), config.num_hidden_layers
    )
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and (config.tie_word_embeddings or kind in ("falcon", "bloom")):
            continue
        array = stored(kind, name, tensor.numpy(), config)
        base, _, suffix = name.removeprefix("transformer." if kind == "bloom" else "").rpartition(".")
        title = f"{names.get_name(base)}.{suffix}"
        how = gguf.GGMLQuantizationType[quantise if array.ndim == 2 else "F32"]
        writer.add_tensor(title, gguf.quants.quantize(np.ascontiguousarray(array), how), raw_dtype=how)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tokenizer(writer: gguf.GGUFWriter, size: int, cuts_by: str) -> None:
    tokenizer = build_tokenizer()
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    pairs = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    if cuts_by:
        writer.add_tokenizer_pre(cuts_by)
    writer.add_token_list(vocabulary[:size])
    writer.add_token_types([3 if i == 0 else 1 for i in range(len(vocabulary[:size]))])
    writer.add_token_merges([" ".join(pair) if isinstance(pair, list) else pair for pair in pairs])
    writer.add_bos_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_unk_token_id(0)


def write_pieces(path: Path, pieces: Any, **fields: Any) -> Path:
    """A tokenizer of SentencePiece as a GGUF file, beside a tensor of nothing."""
    writer, every = gguf.GGUFWriter(path, "llama"), range(pieces.vocab_size())
    kinds = gguf.TokenType

    def kind(i: int) -> int:
        if pieces.is_unknown(i) or pieces.is_control(i):
            return kinds.UNKNOWN if pieces.is_unknown(i) else kinds.CONTROL
        if pieces.is_byte(i):
            return kinds.BYTE
        return kinds.USER_DEFINED if pieces.id_to_piece(i) == "<think>" else kinds.NORMAL

    writer.add_tokenizer_model("llama")
    writer.add_token_list([pieces.id_to_piece(i) for i in every])
    writer.add_token_scores([pieces.get_score(i) for i in every])
    writer.add_token_types([kind(i) for i in every])
    writer.add_bos_token_id(pieces.bos_id())
    writer.add_unk_token_id(pieces.unk_id())
    for name, value in fields.items():
        getattr(writer, name)(value)
    writer.add_tensor("nothing", np.zeros((2, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def stored(kind: str, name: str, array: np.ndarray, config: Any) -> np.ndarray:
    """A weight as it lies in the file: Llama's queries and keys interleaved, GPT-2's Conv1D transposed, and so on."""
    if kind == "gpt2" and ("c_attn.weight" in name or "c_proj.weight" in name or "c_fc.weight" in name):
        return array.T
    if kind == "llama" and ("q_proj" in name or "k_proj" in name):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
        return halves.swapaxes(1, 2).reshape(array.shape)
    if kind in ("gemma2", "gemma3", "nemotron") and name.endswith("norm.weight"):
        return array + 1
    if kind == "bloom" and "query_key_value" in name:
        parts = array.reshape(config.n_head, 3, array.shape[0] // config.n_head // 3, *array.shape[1:])
        return parts.swapaxes(0, 1).reshape(array.shape)
    return array


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([[0, 5, 6, 7, 300, 12]])).logits
