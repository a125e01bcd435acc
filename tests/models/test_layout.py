"""Where the parts of a model are, and which models are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn

import ffnmem as fm
from ffnmem.core.errors import HookError, UnsupportedModelError
from ffnmem.models.bridging import boot
from ffnmem.models.layout import Half, inner, read_layout

from ..architectures import DECODERS, MIXTURES, build_bloom
from ..helpers import PROMPT, Pair, allclose, build, build_gpt2, build_opt, refuses, shared_sizes

SIZES = {
    "vocab_size": shared_sizes()["vocab_size"],
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
GPT_SIZES = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, **shared_sizes()}


def build_t5() -> Any:
    sizes = {"d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 32, "d_kv": 8, "decoder_start_token_id": 0}
    return hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=SIZES["vocab_size"], **sizes))


def build_mamba() -> Any:
    return hf.MambaForCausalLM(hf.MambaConfig(**{**SIZES, "state_size": 4}))


def build_adapted(wrapped: bool) -> Any:
    """Llama with a LoRA adapter, in a model of PEFT's or injected."""
    import peft

    model, config = build("Llama"), peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"])
    return peft.get_peft_model(model, config) if wrapped else peft.inject_adapter_in_model(config, model)


class Linear4bit(nn.Linear):
    """What bitsandbytes puts in the place of a projection, but for its kernels: two weights in a byte, in a column."""

    def __init__(self, whole: nn.Linear) -> None:
        super().__init__(whole.in_features, whole.out_features, bias=False)
        self.weight = nn.Parameter(torch.zeros(whole.weight.numel() // 2, 1, dtype=torch.uint8), requires_grad=False)


def build_4bit(**config: Any) -> Any:
    model = build("Llama", **config)
    for layer in model.model.layers:
        layer.mlp.up_proj = Linear4bit(layer.mlp.up_proj)
    return model


def build_multimodal() -> Any:
    model = build("Llama")
    model.config.text_config = model.config.vision_config = {}
    return model


FALCON = {"vocab_size": SIZES["vocab_size"], "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
DEEP = {"moe_intermediate_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
INJECTED = "peft.PeftModel.from_pretrained(base, adapter).merge_and_unload()"
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "encoder-decoder": (build_t5, "encoder-decoder"),
    "encoder": (lambda: hf.BertForMaskedLM(hf.BertConfig(**SIZES)), "decoder"),
    "no FFN": (build_mamba, "no feed-forward network"),
    "no layers": (lambda: build_gpt2(n_layer=0), "no layers"),
    "norm after": (lambda: build_opt(do_layer_norm_before=False), "after"),
    "projected embeddings": (lambda: build_opt(word_embed_proj_dim=8), "OPTForCausalLM"),
    "experts after a dense layer": (
        lambda: hf.Glm4MoeForCausalLM(hf.Glm4MoeConfig(**SIZES, **DEEP)),
        "mixture of experts in layer 1",
    ),
    "PEFT model": (lambda: build_adapted(True), "merge it into the weights first, by model.merge_and_unload()"),
    "injected adapter": (lambda: build_adapted(False), INJECTED),
    "4-bit": (lambda: build_4bit(quantization_config=hf.BitsAndBytesConfig(load_in_4bit=True)), "bitsandbytes"),
    "4-bit by hand": (build_4bit, "quantised (model.layers.0.mlp.up_proj.weight, uint8)"),
    "norm between": (lambda: build_bloom(apply_residual_connection_post_layernorm=True), "what their norms give"),
    "projections in slices": (lambda: build_bloom(slow_but_exact=True, pretraining_tp=2), "slice by slice"),
    "rounded positions": (lambda: hf.FalconForCausalLM(hf.FalconConfig(alibi=True, **FALCON)), "bfloat16"),
    "multimodal": (build_multimodal, "multimodal"),
    "unknown": (lambda: hf.CTRLLMHeadModel(hf.CTRLConfig(dff=32, **GPT_SIZES)), "TransformerLens"),
    "no language model": (lambda: hf.GPT2Model(hf.GPT2Config(**GPT_SIZES)), "GPT2Model"),
}


# peft 0.21 asks transformers 5 for a property by the name that it had before.
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("kind", REFUSED)
def test_refused_by_name(kind: str, tokenizer: Any) -> None:
    """A model that we misread would give numbers that look right, or a traceback from deep inside a library."""
    build, reason = REFUSED[kind]
    model = build()
    with refuses(UnsupportedModelError, ValueError, type(model).__name__, reason):
        fm.load(model, tokenizer=tokenizer)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("name", ["GPT-2", "Cohere"])
def test_weights_that_a_bridge_has_processed(name: str, times: int, tokenizer: Any) -> None:
    """A scale of logits (Cohere) would count in the unembedding and once more. Projections of gated FFNs do not run:
    an intervention would do nothing, and a scan read other weights."""
    bridge = boot(DECODERS[name](), tokenizer, name, torch.float32)
    before = fm.load(bridge)
    for _ in range(times):
        bridge.process_weights()
    if before.gated:
        with refuses(UnsupportedModelError, ValueError, "compatibility mode", "process_weights()"):
            fm.load(bridge)
        with refuses(HookError, RuntimeError, "did not fire"):
            fm.capture(before, PROMPT)
        return
    model = fm.load(bridge)
    capture = fm.capture(model, PROMPT)
    with torch.no_grad():
        expected = bridge(capture.tokens)[0, -1]
    assert allclose(capture.predictions(k=1)["logit"][0], expected.max(), 1e-6)
    assert allclose(fm.attribute(capture).logit, expected.max(), 1e-5)


def test_keys_that_left_their_projection_are_refused(tokenizer: Any) -> None:
    """What is written into `model.ffn[l].gates` would be seen by some functions and not by others."""
    model = fm.load(build("Phi3"), tokenizer=tokenizer)
    model.to_bridge().to(torch.float64)
    with refuses(UnsupportedModelError, ValueError, "gate_up_proj", "layer 0"):
        fm.load(model.to_bridge())


@pytest.mark.parametrize("name", [name for name in DECODERS if name not in MIXTURES])
def test_paths_lead_to_what_transformerlens_finds(name: str, tokenizer: Any) -> None:
    """A norm, a projection or an attention would be another one than people who use TransformerLens mean."""
    model = fm.load(DECODERS[name](), tokenizer=tokenizer)
    ours = model.layout
    # A bridge around the very modules that were read.
    theirs = read_layout(model.hf_model, name, boot(model.hf_model, model.tokenizer, name, torch.float32))
    for part in ("embedding", "position_embedding", "final_norm", "unembedding", "body"):
        assert same(getattr(ours, part), getattr(theirs, part)), part
    for one, other in zip(ours.blocks, theirs.blocks, strict=True):
        for part in vars(one):
            a, b = getattr(one, part), getattr(other, part)
            if isinstance(a, Half):  # TransformerLens makes modules of its own around the same numbers
                assert torch.equal(a.weight, inner(b).weight), part
            else:
                assert same(a, b), part


def same(ours: nn.Module | None, theirs: nn.Module | None) -> bool:
    return ours is theirs if ours is None or theirs is None else inner(ours) is inner(theirs)


def test_the_body_has_no_unembedding(pair: Pair) -> None:
    """Every capture would pay for logits that nobody asked for."""
    unembedding = inner(pair.model.layout.unembedding)
    assert all(module is not unembedding for module in pair.model.layout.body.modules())
