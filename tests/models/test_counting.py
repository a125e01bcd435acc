"""Parameters and FLOPs by component, against Hugging Face's own sums and against counted arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ffnmem.core.errors import ModelError
from ffnmem.models import anatomy

from ..architectures import DECODERS
from ..helpers import allclose, refuses

TINY: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50}
PLAIN = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GROUPED = {"num_key_value_heads": 2}
CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("gpt2", {}),
    ("gpt2", {"n_inner": 48, "tie_word_embeddings": False}),
    ("gpt_neo", {"attention_types": [[["global", "local"], 1]]}),
    ("gptj", {"rotary_dim": 4}),
    ("gpt_neox", {"intermediate_size": 80}),
    ("gpt_neox", {"intermediate_size": 80, "attention_bias": False, "tie_word_embeddings": True}),
    ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 16, "do_layer_norm_before": False}),
    ("opt", {"word_embed_proj_dim": 32, "enable_bias": False, "layer_norm_elementwise_affine": False}),
    ("phi", {"intermediate_size": 80}),
    ("phi", {"intermediate_size": 80, "qk_layernorm": True, **GROUPED}),
    ("bloom", {}),
    ("falcon", {}),
    ("falcon", {"multi_query": False, "bias": True, "num_kv_heads": 4, "alibi": True}),
    ("falcon", {"parallel_attn": False}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 96}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}),
    ("llama", {"intermediate_size": 80, **GROUPED}),
    ("llama", {"intermediate_size": 80, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("llama", {"intermediate_size": 80, "head_dim": 12}),
    ("mistral", {"intermediate_size": 80, "num_key_value_heads": 4, "head_dim": None}),
    ("mistral", {"intermediate_size": 80, **GROUPED}),
    ("qwen2", {"intermediate_size": 80, "tie_word_embeddings": True, **GROUPED}),
    ("qwen3", {"intermediate_size": 80, "head_dim": 16, **GROUPED}),
    ("qwen3", {"intermediate_size": 80, "attention_bias": True, **GROUPED}),
    ("gemma", {"intermediate_size": 80, "head_dim": 16, "num_key_value_heads": 1}),
    ("gemma2", {"intermediate_size": 80, "head_dim": 16, "attention_bias": True, **GROUPED}),
    ("gemma3_text", {"intermediate_size": 80, "head_dim": 16, **GROUPED}),
    ("stablelm", {"intermediate_size": 80, "num_key_value_heads": 4}),
    ("stablelm", {"use_qkv_bias": True, "qk_layernorm": True, "use_parallel_residual": True, **GROUPED}),
    ("olmo", {"intermediate_size": 80, "attention_bias": True, **GROUPED}),
    ("olmo2", {"intermediate_size": 80, **GROUPED}),
    ("phi3", {"intermediate_size": 80, **GROUPED}),
]
PUBLISHED: list[tuple[str, int, str, dict[str, Any]]] = [
    ("GPT-2", 124_439_808, "gpt2", {}),
    ("GPT-2 XL", 1_557_611_200, "gpt2", {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    ("GPT-J 6B", 6_050_882_784, "gptj", {}),
    ("GPT-NeoX 20B", 20_554_567_680, "gpt_neox", {}),
    ("OPT 125M", 125_239_296, "opt", {}),
    ("Phi 1.5", 1_418_270_720, "phi", {}),
    ("BLOOM 560M", 559_214_592, "bloom", {"hidden_size": 1024, "n_layer": 24, "n_head": 16}),
    ("Falcon 7B", 6_921_720_704, "falcon", {}),
    ("Llama 7B", 6_738_415_616, "llama", {}),
    ("Mistral 7B", 7_241_732_096, "mistral", {}),
    ("Gemma 7B", 8_537_680_896, "gemma", {}),
    ("Gemma 2 2B", 2_614_341_888, "gemma2", {}),
    ("StableLM 3B", 2_795_443_200, "stablelm", {}),
    ("OLMo 7B", 6_888_095_744, "olmo", {}),
    ("OLMo 2 7B", 7_298_617_344, "olmo2", {"vocab_size": 100352}),
    ("Phi 3 mini", 3_821_079_552, "phi3", {}),
]


def tiny_config(family: str, changes: dict[str, Any]) -> Any:
    names = {"gpt2": "n_embd n_layer n_head", "gptj": "n_embd n_layer n_head", "bloom": "hidden_size n_layer n_head"}
    names["gpt_neo"] = "hidden_size num_layers num_heads"
    wanted = names.get(family, "hidden_size num_hidden_layers num_attention_heads").split()
    sizes = dict(zip([*wanted, "vocab_size"], TINY.values(), strict=True))
    return transformers.AutoConfig.for_model(family, **{**sizes, **PLAIN, **changes})


@pytest.mark.parametrize(("family", "changes"), CHANGES, ids=str)
def test_parameters_and_flops_are_those_that_run(family: str, changes: dict[str, Any]) -> None:
    """A bias or a shared head would be counted where there is none, or arithmetic otherwise than torch counts it."""
    config, n = tiny_config(family, changes), 8
    found = anatomy(config, context=n)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert found.to_frame().equals(anatomy(model, context=n).to_frame())
    assert "other" not in set(found.components["component"])
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.randint(3, 50, (1, n), generator=torch.Generator().manual_seed(0)), use_cache=False)
    assert counter.get_total_flops() == n * found.flops


@pytest.mark.parametrize(
    ("title", "parameters", "family", "changes"), PUBLISHED, ids=lambda x: x if type(x) is str else ""
)
def test_published_models_have_their_parameters(
    title: str, parameters: int, family: str, changes: dict[str, Any]
) -> None:
    """A published model would have another number of parameters than it has; Llama 7B would take 27 GB to count."""
    assert anatomy({"model_type": family, **changes}).parameters == parameters, title


def test_each_component_is_hugging_faces_modules() -> None:
    """The total would be right, but parameters stand in the wrong line."""
    for family, parts in (
        ("gpt2", {"attention": "attn.", "FFN": "mlp.", "norms": "ln_", "token embedding": "wte."}),
        ("llama", {"attention": "self_attn.", "FFN": "mlp.", "norms": "norm", "token embedding": "embed_tokens."}),
        ("qwen3", {"FFN": "mlp.", "norms": "norm", "token embedding": "embed_tokens.", "unembedding": "lm_head."}),
    ):
        config = tiny_config(family, {} if family == "gpt2" else {"intermediate_size": 80, **GROUPED})
        found, model = anatomy(config), transformers.AutoModelForCausalLM.from_config(config)
        for component, part in parts.items():
            expected = sum(p.numel() for name, p in model.named_parameters() if part in name)
            assert found.total("parameters", component) == expected, (family, component)


def test_two_thirds_of_the_layers_are_ffn() -> None:
    """The share that makes FFNs worth reading would be wrong: 8d² of 12d² but for biases and norms."""
    gpt2 = anatomy({"model_type": "gpt2"})
    assert allclose(gpt2.ffn_share_of_layers, 2 / 3, 1e-3)
    assert gpt2.total("layer_parameters", "FFN") == 2 * 768 * 3072 + 3072 + 768
    assert gpt2.ffn_share == 12 * gpt2.total("layer_parameters", "FFN") / 124_439_808
    bare = {"enable_bias": False, "layer_norm_elementwise_affine": False, "ffn_dim": 128, "word_embed_proj_dim": 32}
    assert allclose(anatomy(tiny_config("opt", bare)).ffn_share_of_layers, 2 / 3, 1e-15)


def test_what_is_of_no_known_kind_is_other() -> None:
    """A part that nobody knows would vanish, and the sum not be the whole."""
    hf = DECODERS["GPT-2"]()
    hf.transformer.h[0].adapter = nn.Linear(16, 3)
    hf.transformer.extra = nn.Linear(5, 2)
    found = anatomy(hf)
    assert found.parameters == sum(parameter.numel() for parameter in hf.parameters())
    assert found.components["component"].iloc[-1] == "other"
    # Half of 51 is no whole number: what the mean of two layers leaves over stands outside.
    assert (found.total("layer_parameters", "other"), found.total("parameters", "other")) == (25, 51 + 12)


def test_sizes_that_fit_no_model() -> None:
    with refuses(ModelError, ValueError, "starcoder2", "zero"):
        anatomy(transformers.Starcoder2Config(num_attention_heads=0))
