"""Every architecture that is described, at toy size with random weights, as Hugging Face builds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import transformers

from .helpers import (
    ARCHITECTURES,
    build,
    build_gemma2,
    build_gpt2,
    build_gpt_neo,
    build_gpt_neox,
    build_opt,
    randomise,
    shared_sizes,
)

GPT_SIZES = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_inner": 64, "n_positions": 32}
FALCON = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
PLAIN = {"intermediate_size": 64, "num_key_value_heads": 2}


def gpt_like(kind: str, **changes: Any) -> Any:
    """A model whose config has GPT-2's names for sizes."""
    config = getattr(transformers, f"{kind}Config")
    sizes = {**GPT_SIZES, **shared_sizes(), **changes}
    return randomise(getattr(transformers, f"{kind}ForCausalLM")(config(**sizes)))


def build_falcon(**changes: Any) -> Any:
    config = transformers.FalconConfig(**{**FALCON, **shared_sizes(), **changes})
    return randomise(transformers.FalconForCausalLM(config))


def build_bloom(**changes: Any) -> Any:
    sizes = {"hidden_size": 16, "n_layer": 2, "n_head": 2, **shared_sizes(), **changes}
    config = transformers.BloomConfig(**sizes)
    return randomise(transformers.BloomForCausalLM(config))


def build_mpt() -> Any:
    sizes = {"d_model": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 32, "vocab_size": shared_sizes()["vocab_size"]}
    return randomise(transformers.MptForCausalLM(transformers.MptConfig(**sizes)))


DEEPSEEK = {
    "num_key_value_heads": 2,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "first_k_dense_replace": 0,
}
"""Latent attention, experts in groups, and one that is shared."""

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4}

DECODERS: dict[str, Callable[[], Any]] = {
    "GPT-2": build_gpt2,
    "GPT-2 untied": lambda: build_gpt2(tie_word_embeddings=False),
    "GPT-Neo": build_gpt_neo,
    "GPT-J": lambda: gpt_like("GPTJ", rotary_dim=4),
    "CodeGen": lambda: gpt_like("CodeGen", rotary_dim=4, n_head=4, n_ctx=32),
    "StarCoder": lambda: gpt_like("GPTBigCode"),
    "Pythia": build_gpt_neox,
    "GPT-NeoX sequential": lambda: build_gpt_neox(use_parallel_residual=False),
    "OPT": build_opt,
    "OPT without biases": ARCHITECTURES["opt without biases"],
    "Phi 2": lambda: build("Phi", **PLAIN),
    "Bloom": build_bloom,
    "Falcon 7B": build_falcon,
    "Falcon 40B": lambda: build_falcon(new_decoder_architecture=True, num_kv_heads=1),
    "Falcon sequential": lambda: build_falcon(parallel_attn=False, bias=True),
    "MPT": build_mpt,
    "StarCoder 2": lambda: build("Starcoder2"),
    "Nemotron": lambda: build("Nemotron"),
    "Arcee": lambda: build("Arcee"),
    "Llama": lambda: build("Llama"),
    "Llama tied, with biases": lambda: build("Llama", tie_word_embeddings=True, mlp_bias=True, attention_bias=True),
    "Mistral": lambda: build("Mistral", sliding_window=4),
    "Qwen 2": lambda: build("Qwen2"),
    "Qwen 3": lambda: build("Qwen3", head_dim=8),
    "SmolLM 3": lambda: build("SmolLM3", layer_types=None),
    "Phi 3": lambda: build("Phi3"),
    "GLM": lambda: build("Glm", head_dim=8),
    "GLM 4": lambda: build("Glm4", head_dim=8),
    "Gemma": lambda: build("Gemma", head_dim=8),
    "Gemma 2": build_gemma2,
    "Gemma 3": lambda: build(
        "Gemma3", head_dim=8, sliding_window=4, layer_types=["sliding_attention", "full_attention"]
    ),
    "StableLM": lambda: build("StableLm"),
    "StableLM parallel": lambda: build("StableLm", use_parallel_residual=True),
    "Granite": lambda: build(
        "Granite", residual_multiplier=0.3, logits_scaling=4.0, embedding_multiplier=3.0, attention_multiplier=0.2
    ),
    "OLMo": lambda: build("Olmo"),
    "OLMo 2": lambda: build("Olmo2"),
    "OLMo 3": lambda: build("Olmo3", sliding_window=4),
    "Cohere": lambda: build("Cohere"),
    "Cohere 2": lambda: build("Cohere2", head_dim=8),
    "Mixtral": lambda: build("Mixtral", intermediate_size=16, num_local_experts=4),
    "Qwen 2 MoE": lambda: build(
        "Qwen2Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, shared_expert_intermediate_size=16
    ),
    "Qwen 3 MoE": lambda: build("Qwen3Moe", head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
    "Qwen 3 MoE with a dense layer": lambda: build(
        "Qwen3Moe",
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        mlp_only_layers=[0],
        intermediate_size=96,
    ),
    "OLMoE": lambda: build("Olmoe", intermediate_size=16, num_experts=4, num_experts_per_tok=2),
    "DeepSeek V2": lambda: build("DeepseekV2", **DEEPSEEK, topk_method="group_limited_greedy"),
    "DeepSeek V3 with a dense layer": lambda: build(
        "DeepseekV3", **{**DEEPSEEK, "first_k_dense_replace": 1, "intermediate_size": 48}
    ),
    "Llama 4": lambda: build(
        "Llama4",
        head_dim=8,
        intermediate_size=16,
        intermediate_size_mlp=48,
        num_local_experts=4,
        num_experts_per_tok=2,
        moe_layers=[1],
        no_rope_layers=[1, 0],
        attention_chunk_size=4,
        floor_scale=2,
    ),
    "GPT-OSS": lambda: build(
        "GptOss",
        head_dim=8,
        intermediate_size=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=4,
        swiglu_limit=1.5,
        rope_parameters={**YARN, "rope_theta": 10000.0},
    ),
}
"""By a name for people. Sizes are small, and what an architecture has of its own is switched on."""

MIXTURES = (
    "Mixtral",
    "Qwen 2 MoE",
    "Qwen 3 MoE",
    "Qwen 3 MoE with a dense layer",
    "OLMoE",
    "DeepSeek V2",
    "DeepSeek V3 with a dense layer",
    "Llama 4",
    "GPT-OSS",
)
"""Of experts, whose tensors Hugging Face joins, and which have no bridge."""

KINDS = (
    "GPT-2",  # weights transposed, keys of all heads in one tensor
    "GPT-Neo",
    "Pythia",  # tensors stored under other names than they are loaded by
    "OPT without biases",
    "Bloom",
    "Falcon 40B",
    "MPT",
    "Llama tied, with biases",
    "Phi 3",  # gates and keys in one tensor
    "Gemma 2",
    "OLMo 2",
    "Cohere",
    "Granite",  # scales on what is written, embedded and on logits
    "Qwen 2 MoE",  # experts, and a shared one
)
"""One for every way in which tensors are named, joined, tied and left out."""

EVERY = [name if name in KINDS else pytest.param(name, marks=pytest.mark.exhaustive) for name in DECODERS]
"""All names, for a test that repeats itself on what is read alike: ``make test`` takes ``KINDS`` of them."""

FORMS = ("GPT-2", "Llama tied, with biases", "Gemma 2", "Pythia", "Qwen 2 MoE")
"""One of each form: classic, gated, gated with a norm behind, parallel, experts."""

SWEEP = [name if name in FORMS else pytest.param(name, marks=pytest.mark.exhaustive) for name in DECODERS]
"""All names, for a test of what depends on a model's form alone: ``make test`` takes ``FORMS`` of them."""
