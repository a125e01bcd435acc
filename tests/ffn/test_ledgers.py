"""The ledger against Hugging Face's models, counted without weights, and against counted arithmetic."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from ffnmem.core.errors import InputError, UnsupportedModelError
from ffnmem.ffn.ledgers import ledger, parity, parity_width
from ffnmem.ffn.shapes import FAMILIES, Shape

from ..helpers import allclose, refuses
from .test_shapes import GPT2, hugging_face

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
    (
        "OPT 350M",
        331_196_416,
        "opt",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "ffn_dim": 4096,
            "num_attention_heads": 16,
            "word_embed_proj_dim": 512,
            "do_layer_norm_before": False,
        },
    ),
    ("Phi 1.5", 1_418_270_720, "phi", {}),
    ("BLOOM 560M", 559_214_592, "bloom", {"hidden_size": 1024, "n_layer": 24, "n_head": 16}),
    ("Falcon 7B", 6_921_720_704, "falcon", {}),
    ("Llama 7B", 6_738_415_616, "llama", {}),
    (
        "Llama 3 8B",
        8_030_261_248,
        "llama",
        {"vocab_size": 128256, "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 8192},
    ),
    ("Mistral 7B", 7_241_732_096, "mistral", {}),
    (
        "Qwen2 0.5B",
        494_032_768,
        "qwen2",
        {
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
    ),
    (
        "Qwen3 0.6B",
        596_049_920,
        "qwen3",
        {
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "tie_word_embeddings": True,
        },
    ),
    ("Gemma 7B", 8_537_680_896, "gemma", {}),
    ("Gemma 2 2B", 2_614_341_888, "gemma2", {}),
    (
        "Gemma 3 1B",
        999_885_952,
        "gemma3_text",
        {
            "vocab_size": 262144,
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "num_hidden_layers": 26,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
        },
    ),
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
    return hugging_face(family, **{**sizes, **PLAIN, **changes})


def build(config: Any, device: str) -> Any:
    from transformers import AutoModelForCausalLM

    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, attn_implementation="eager")


def counted(config: Any) -> int:
    """The parameters of Hugging Face's model, built without memory; tied ones once, as ``parameters`` has them."""
    return sum(parameter.numel() for parameter in build(config, "meta").parameters())


def test_every_family_is_tested() -> None:
    """A family in the table would have been counted by nobody."""
    assert {family for family, _ in CHANGES} == set(FAMILIES)
    assert {family for _, _, family, _ in PUBLISHED} >= set(FAMILIES) - {"gpt_neo"}


@pytest.mark.parametrize(("family", "changes"), CHANGES, ids=str)
def test_small_models_have_the_parameters_counted(family: str, changes: dict[str, Any]) -> None:
    """A bias, a norm or a shared head would be counted where there is none, or not where there is one."""
    config = tiny_config(family, changes)
    assert ledger(config).parameters == counted(config)
    assert ledger(config) == ledger(config.to_dict()) == ledger(Shape.from_config(config))


@pytest.mark.parametrize(
    ("title", "parameters", "family", "changes"), PUBLISHED, ids=lambda x: x if type(x) is str else ""
)
def test_published_models_have_their_parameters(
    title: str, parameters: int, family: str, changes: dict[str, Any]
) -> None:
    """A published model would have another number of parameters than it has."""
    config = hugging_face(family, **changes)
    assert ledger(config).parameters == parameters == counted(config), title


def test_each_component_is_hugging_faces_modules() -> None:
    """The total would be right, but parameters stand in the wrong line."""
    for family, parts in (
        ("gpt2", {"attention": "attn.", "FFN": "mlp.", "norms": "ln_", "token embedding": "wte."}),
        ("llama", {"attention": "self_attn.", "FFN": "mlp.", "norms": "norm", "token embedding": "embed_tokens."}),
        ("qwen3", {"FFN": "mlp.", "norms": "norm", "token embedding": "embed_tokens.", "unembedding": "lm_head."}),
    ):
        config = tiny_config(family, {} if family == "gpt2" else {"intermediate_size": 80, **GROUPED})
        found, model = ledger(config), build(config, "meta")
        for component, part in parts.items():
            expected = sum(p.numel() for name, p in model.named_parameters() if part in name)
            assert found.of(found[component])[0] == expected, (family, component)


@pytest.mark.parametrize(("family", "changes"), CHANGES, ids=str)
def test_flops_are_those_that_run(family: str, changes: dict[str, Any]) -> None:
    """The arithmetic would be counted otherwise than torch counts it while the model runs."""
    from torch.utils.flop_counter import FlopCounterMode

    config, n = tiny_config(family, changes), 8
    model = build(config, "cpu").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.randint(3, 50, (1, n), generator=torch.Generator().manual_seed(0)), use_cache=False)
    assert counter.get_total_flops() == n * ledger(config, context=n).flops


def test_two_thirds_of_the_layers_are_ffn() -> None:
    """The share that makes FFNs worth reading would be wrong: 8d² of 12d² but for biases and norms."""
    gpt2 = ledger(GPT2)
    assert allclose(gpt2.ffn_share_of_layers, 2 / 3, 1e-3)
    assert gpt2["FFN"].layer_parameters == 2 * 768 * 3072 + 3072 + 768
    assert gpt2.ffn_share == 12 * gpt2["FFN"].layer_parameters / 124_439_808
    bare = {"enable_bias": False, "layer_norm_elementwise_affine": False, "ffn_dim": 128, "word_embed_proj_dim": 32}
    assert allclose(ledger(tiny_config("opt", bare)).ffn_share_of_layers, 2 / 3, 1e-15)


def test_the_table_sums_up() -> None:
    """Shares would not be shares; a lookup would cost arithmetic."""
    found = ledger(GPT2, context=100)
    frame = found.to_frame().set_index("component")
    assert frame["parameters"].sum() == found.parameters
    assert frame["flops"].sum() == found.flops
    assert allclose(frame["share"].sum(), 1.0, 1e-12)
    assert allclose(frame["flops_share"].sum(), 1.0, 1e-12)
    assert frame.loc[["token embedding", "position embedding", "norms"], "flops"].tolist() == [0, 0, 0]
    assert frame.loc["unembedding", "parameters"] == 0  # tied
    assert frame.loc["unembedding", "flops"] == 2 * 768 * 50257
    assert (12 * frame["layer_parameters"] <= frame["parameters"]).all()


def test_attention_grows_with_the_context() -> None:
    """Scores and mix would not count, or not by the context: 4·d_model FLOPs a layer for each further position."""
    short, long = ledger(GPT2, context=10), ledger(GPT2, context=11)
    assert long.flops - short.flops == 12 * 4 * 768
    assert long.parameters == short.parameters
    assert ledger(GPT2).context == 1024
    assert ledger({**GPT2, "n_positions": 32}).context == 32
    assert ledger(hugging_face("llama")).context == 1024
    assert ledger(hugging_face("bloom")).context == 1024  # which names no context


def test_what_cannot_be_counted_is_refused() -> None:
    """A context that the model does not have would be counted."""
    with refuses(InputError, ValueError, "1025", "1024"):
        ledger(GPT2, context=1025)
    with refuses(InputError, ValueError, "context", "0"):
        ledger(GPT2, context=0)
    with refuses(InputError, ValueError, "'MLP'", "FFN"):
        ledger(GPT2)["MLP"]
    with refuses(UnsupportedModelError, ValueError, "mixtral"):
        ledger(hugging_face("mixtral"))


def test_texts() -> None:
    """A ledger could not be read or written."""
    found = ledger(GPT2)
    assert repr(found).startswith("Ledger(gpt2, 124,439,808 parameters, FFN 45.5% of all and 66.6% of the layers")
    assert "\n" not in repr(found)
    written = json.loads(json.dumps(found.to_dict()))
    assert written["parameters"] == 124_439_808
    assert [row["component"] for row in written["components"]][2:4] == ["attention", "FFN"]
    one_layer = sum(one.layer_parameters for one in found.components)
    assert found.sheet().blocks[1].rows[-1][:4] == ("all", one_layer, 124_439_808, 1.0)


def test_llamas_width_is_the_parity_width() -> None:
    """The rule 8d/3, rounded up, would not give the published widths."""
    assert parity_width(4096) == 11008
    assert parity_width(5120) == 13824  # Llama 13B
    assert parity_width(8192) == 22016  # Llama 65B
    assert parity_width(768, multiple=1) == 2048
    assert parity_width(768, multiple=1, d_mlp=3073) == 2049
    assert parity_width(4096, d_mlp=12288) == 8192


def test_parity_of_llama_7b() -> None:
    """The price of gating would be told wrong."""
    found = parity(4096, 11008)
    assert (found.gated, found.classic, found.difference) == (135_266_304, 134_217_728, 1_048_576)
    assert round(100 * found.relative, 1) == 0.8
    assert found == parity(4096)
    assert parity(4096, 14336).relative > 0.3  # Mistral and Llama 3 spend more
    assert parity(768, d_mlp=3072, h=2048).difference == 0
    assert "+0.8%" in repr(found)
    assert json.loads(json.dumps(found.to_dict()))["difference"] == 1_048_576


def test_parity_refuses_no_width() -> None:
    """A width of 0 would be called equal."""
    for wrong in ({"d_model": 0}, {"d_model": 8, "multiple": 0}, {"d_model": 8, "d_mlp": 0}):
        with pytest.raises(InputError):
            parity_width(**wrong)
    with refuses(InputError, ValueError, "h must", "0"):
        parity(8, 0)
