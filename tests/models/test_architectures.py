"""Every described architecture through every part of ffnmem; others read by the names of their parts, or refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers as hf
from packaging.version import Version
from torch import nn
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.nemotron.modeling_nemotron import NemotronLayerNorm1P
from transformers.models.olmo.modeling_olmo import OlmoLayerNorm

import ffnmem as fm
from ffnmem.core.errors import HookError, UnsupportedModelError
from ffnmem.models import layout, loading
from ffnmem.models.architectures import DESCRIBED
from ffnmem.models.bridging import boot
from ffnmem.models.checking import check_undescribed
from ffnmem.models.layout import Half, inner, read_layout
from ffnmem.models.norms import LAYER, LAYER_OFFSET, RMS, RMS_OFFSET, NormMap, kind_of, widen

from ..architectures import DECODERS, EVERY, FORMS, KINDS, MIXTURES, SWEEP, build_bloom
from ..helpers import PROMPT, allclose, build, build_gpt2, build_opt, randomise, refuses, shared_sizes
from .examining import HUGGING_FACE, PARTS, Examined

# What TransformerLens cannot run from a version of transformers on, for a part that it reads and that is gone.
NO_BRIDGE = {"CodeGen": "5.24"}


@pytest.fixture(scope="module")
def examined(request: pytest.FixtureRequest, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Examined:
    return Examined(request.param, tmp_path_factory.mktemp("architecture"), tokenizer)


OF_NAMES = ("load", "capture", "edit", "export")
"""Parts that depend on how tensors are named, joined and tied; the others, on a model's form alone."""


@pytest.mark.parametrize(
    ("examined", "part"),
    [
        (name, part)
        if name in FORMS or (name in KINDS and part in OF_NAMES)
        else pytest.param(name, part, marks=pytest.mark.exhaustive)
        for name in DECODERS
        for part in PARTS
    ],
    indirect=["examined"],
)
def test_every_part_works(examined: Examined, part: str) -> None:
    """See :mod:`tests.models.examining` for what is compared with what."""
    PARTS[part](examined)


@pytest.mark.parametrize("examined", EVERY, indirect=True)
def test_its_bridge_is_the_same_model(examined: Examined) -> None:
    """Logits with an intervention, an edit and none are equal, and so is every part by its name."""
    model, tokens = examined.model, examined.captured.tokens
    no_bridge = Version(hf.__version__) >= Version(NO_BRIDGE.get(examined.name, "999"))
    if examined.name in MIXTURES or no_bridge:
        with refuses(
            UnsupportedModelError, ValueError, "does not run under" if no_bridge else "experts run as one FFN"
        ):
            model.to_bridge()
        return
    own, bridge = model.hf_model, model.to_bridge()
    for block in (fm.intervene(model, {(0, 3): 5.0}, positions=-1), examined.rome.applied(model), nullcontext()):
        with block, torch.no_grad():
            assert allclose(bridge(tokens), own(input_ids=tokens).logits, HUGGING_FACE)
    assert model.hf_model is own
    plain = fm.load(DECODERS[examined.name](), tokenizer=model.tokenizer)
    name, ours = examined.name, plain.layout  # a bridge around the very modules that were read:
    theirs = read_layout(plain.hf_model, name, boot(plain.hf_model, plain.tokenizer, name, torch.float32))
    for part in ("embedding", "position_embedding", "final_norm", "unembedding", "body"):
        assert same(getattr(ours, part), getattr(theirs, part)), part
    for one, other in zip(ours.blocks, theirs.blocks, strict=True):
        for part in vars(one):
            assert same(getattr(one, part), getattr(other, part)), part


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, Half):  # TransformerLens makes modules of its own around the same numbers
        return torch.equal(ours.weight, inner(theirs).weight)
    return ours is theirs if ours is None or theirs is None else inner(ours) is inner(theirs)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", SWEEP)
def test_every_dtype_works(name: str, dtype: str, tokenizer: Any) -> None:
    """A model that loads would fail at its first capture, deep inside a library; or rounding alone would be warned of
    as an inexact sum, which is an error here."""
    capture = fm.capture(fm.load(DECODERS[name](), tokenizer=tokenizer, dtype=dtype), PROMPT)
    assert max(fm.decompose(capture, layer).error for layer in range(2)) < 2e-2
    assert fm.attribute(capture).error < 0.1
    paths = fm.attribute_paths(capture)
    assert paths.scores.dtype == torch.float32
    assert paths.error < 0.02 * float(paths.components["logit"].abs().sum())
    fm.circuit(capture, fm.causal_scores(capture, exact=0).top(5))


def test_every_description_is_tried() -> None:
    """A description that no model of the table has would be believed, not tested."""
    assert {type(build_decoder()).__name__ for build_decoder in DECODERS.values()} == set(DESCRIBED)


# -- without a description --------------------------------------------------------------------------------------------


@pytest.fixture
def undescribed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if ffnmem had never heard of any architecture."""
    for module in (layout, loading):
        monkeypatch.setattr(module, "DESCRIBED", {})


READ = ("GPT-2", "OPT", "Pythia", "GPT-J", "Llama", "Qwen 3", "Gemma 2", "OLMo 2", "Granite", "Cohere")


@pytest.mark.usefixtures("undescribed")
@pytest.mark.parametrize("name", [n if n in KINDS else pytest.param(n, marks=pytest.mark.exhaustive) for n in READ])
def test_others_are_read_by_the_names_of_their_parts(name: str, tokenizer: Any) -> None:
    """Whatever TransformerLens boots and is put together in a usual way works, and is exact too."""
    model = fm.load(DECODERS[name](), tokenizer=tokenizer, dtype="float64")
    assert not model.layout.described
    capture = fm.capture(model, PROMPT)
    assert max(fm.decompose(capture, layer).error for layer in range(2)) < 1e-12
    assert fm.attribute(capture).error < 1e-10


def set_activation(model: fm.Model, name: str) -> None:
    model.ffn = tuple(replace(ffn, activation=name) for ffn in model.ffn)


def change_layout(model: fm.Model, **changes: Any) -> None:
    model.layout = replace(model.layout, **changes)


def change_blocks(model: fm.Model, **changes: Any) -> None:
    change_layout(model, blocks=tuple(replace(block, **changes) for block in model.layout.blocks))


WRONG: list[tuple[str, Callable[[fm.Model], None], str]] = [
    ("Llama", lambda m: set_activation(m, "relu"), "coefficients of layer 0"),
    ("Llama", lambda m: change_layout(m, write_scale=0.5), "output of layer 0"),
    ("Gemma 2", lambda m: change_blocks(m, post=None), "output of layer 0"),
    ("Llama", lambda m: change_layout(m, logit_scale=2.0), "logits"),
    ("Gemma 2", lambda m: change_layout(m, soft_cap=None), "logits"),
    ("Llama", lambda m: change_blocks(m, attention_out=m.hf_model.lm_head), "attention of layer 0 did not run"),
]


@pytest.mark.parametrize(("name", "wrong", "says"), WRONG)
def test_what_is_otherwise_is_named(name: str, wrong: Callable[[fm.Model], None], says: str, tokenizer: Any) -> None:
    """A part that nobody told of would make every number wrong, and nothing say so."""
    model = fm.load(DECODERS[name](), tokenizer=tokenizer)
    check_undescribed(model)
    wrong(model)
    with refuses(UnsupportedModelError, ValueError, type(model.hf_model).__name__, says):
        check_undescribed(model)


def test_real_ones(tokenizer: Any) -> None:
    """One that has no description here and works; its attention is tried, and refused where it is not linear."""
    model = fm.load(build("SeedOss", head_dim=8), tokenizer=tokenizer)
    assert not model.layout.described
    assert model.gated
    assert fm.attribute_paths(fm.capture(model, PROMPT), " Paris").error < 1e-5
    model.layout.blocks[1].attention_out.register_forward_hook(lambda _m, _args, out: (out[0] ** 2, *out[1:]))
    with refuses(UnsupportedModelError, ValueError, "layer 1 is not linear"):
        fm.attribute_paths(fm.capture(model, PROMPT), " Paris")


# -- what is refused --------------------------------------------------------------------------------------------------

SIZES = {
    "vocab_size": shared_sizes()["vocab_size"],
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
GPT_SIZES = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, **shared_sizes()}
FALCON = {key: SIZES[key] for key in SIZES if key != "intermediate_size"}
DEEP = {"moe_intermediate_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1}


def build_t5() -> Any:
    sizes = {"d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 32, "d_kv": 8, "decoder_start_token_id": 0}
    return hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=SIZES["vocab_size"], **sizes))


def build_adapted(wrapped: bool) -> Any:
    """Llama with a LoRA adapter, in a model of PEFT's or injected."""
    peft = pytest.importorskip("peft", reason="the wheel is tried without PEFT")

    model, config = build("Llama"), peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"])
    return peft.get_peft_model(model, config) if wrapped else peft.inject_adapter_in_model(config, model)


def build_4bit() -> Any:
    """With a projection as bitsandbytes puts it there: two weights in a byte, in a column."""
    model = build("Llama")
    projection = model.model.layers[0].mlp.up_proj
    projection.weight = nn.Parameter(torch.zeros(projection.weight.numel() // 2, 1).byte(), requires_grad=False)
    return model


def build_multimodal() -> Any:
    model = build("Llama")
    model.config.text_config = model.config.vision_config = {}
    return model


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "encoder-decoder": (build_t5, "encoder-decoder"),
    "encoder": (lambda: hf.BertForMaskedLM(hf.BertConfig(**SIZES)), "decoder"),
    "no FFN": (lambda: hf.MambaForCausalLM(hf.MambaConfig(**SIZES, state_size=4)), "no feed-forward network"),
    "no layers": (lambda: build_gpt2(n_layer=0), "no layers"),
    "norm after": (lambda: build_opt(do_layer_norm_before=False), "after"),
    "projected embeddings": (lambda: build_opt(word_embed_proj_dim=8), "OPTForCausalLM"),
    "experts after a dense layer": (
        lambda: hf.Glm4MoeForCausalLM(hf.Glm4MoeConfig(**SIZES, **DEEP)),
        "mixture of experts in layer 1",
    ),
    "PEFT model": (lambda: build_adapted(True), "merge it into the weights first, by model.merge_and_unload()"),
    "injected adapter": (
        lambda: build_adapted(False),
        "peft.PeftModel.from_pretrained(base, adapter).merge_and_unload()",
    ),
    "4-bit": (build_4bit, "quantised (model.layers.0.mlp.up_proj.weight, uint8)"),
    "norm between": (lambda: build_bloom(apply_residual_connection_post_layernorm=True), "what their norms give"),
    "projections in slices": (lambda: build_bloom(slow_but_exact=True, pretraining_tp=2), "slice by slice"),
    "rounded positions": (lambda: hf.FalconForCausalLM(hf.FalconConfig(alibi=True, **FALCON)), "bfloat16"),
    "multimodal": (build_multimodal, "multimodal"),
    "unknown": (lambda: hf.CTRLLMHeadModel(hf.CTRLConfig(dff=32, **GPT_SIZES)), "TransformerLens"),
    "own activation": (lambda: build("Apertus"), "Apertus"),
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


@pytest.mark.usefixtures("undescribed")
def test_what_states_no_activation_is_refused(tokenizer: Any) -> None:
    with refuses(UnsupportedModelError, ValueError, "state its activation"):
        fm.load(DECODERS["Bloom"](), tokenizer=tokenizer)


def test_clipping_is_refused_where_it_matters(tokenizer: Any) -> None:
    """Clipped values are no linear map of the stream, so paths through attention would not add up; all else does."""
    capture = fm.capture(fm.load(build("Olmo", clip_qkv=0.1), tokenizer=tokenizer, dtype="float64"), PROMPT)
    assert fm.attribute(capture).error < 1e-10
    with refuses(UnsupportedModelError, ValueError, "clip_qkv"):
        fm.attribute_paths(capture)


def test_several_layers_of_one_edit_are_refused_behind_a_norm(tokenizer: Any) -> None:
    """MEMIT hands on what is missing from layer to layer, which a norm behind the FFN would change."""
    model = fm.load(DECODERS["Gemma 2"](), tokenizer=tokenizer)
    fact = fm.Fact("Eiffel Tower", "city", "The city of the {}", "Paris", "Rome")
    moment = fm.editing.second_moment(model, [PROMPT] * 4)
    with refuses(UnsupportedModelError, ValueError, "layers=1"):
        fm.editing.memit(model, [fact], layer=1, layers=2, moment=moment, contexts=("{}",))


def test_weights_that_a_bridge_has_processed(tokenizer: Any) -> None:
    """Projections of gated FFNs do not run then: an intervention would do nothing, and a scan read other weights."""
    for name in ("GPT-2", "Cohere"):
        bridge = boot(DECODERS[name](), tokenizer, name, torch.float32)
        before = fm.load(bridge)
        bridge.process_weights()
        if not before.gated:
            capture = fm.capture(fm.load(bridge), PROMPT)
            assert allclose(fm.attribute(capture).logit, bridge(capture.tokens)[0, -1].max().item(), 1e-5)
            continue
        with refuses(UnsupportedModelError, ValueError, "compatibility mode", "process_weights()"):
            fm.load(bridge)
        with refuses(HookError, RuntimeError, "did not fire"):
            fm.capture(before, PROMPT)


def test_keys_that_left_their_projection_are_refused(tokenizer: Any) -> None:
    """What is written into `model.ffn[l].gates` would be seen by some functions and not by others."""
    model = fm.load(build("Phi3"), tokenizer=tokenizer)
    model.to_bridge().to(torch.float64)
    with refuses(UnsupportedModelError, ValueError, "gate_up_proj", "layer 0"):
        fm.load(model.to_bridge())


# -- norms as linear maps ---------------------------------------------------------------------------------------------

WIDTH = 12
NORMS = {
    "torch's": (lambda: nn.LayerNorm(WIDTH, eps=1e-2), LAYER),
    "torch's without gain": (lambda: nn.LayerNorm(WIDTH, elementwise_affine=False), LAYER),
    "Llama": (lambda: LlamaRMSNorm(WIDTH, eps=1e-3), RMS),
    "Gemma": (lambda: GemmaRMSNorm(WIDTH), RMS_OFFSET),
    "Nemotron": (lambda: NemotronLayerNorm1P(WIDTH), LAYER_OFFSET),
    "OLMo": (lambda: OlmoLayerNorm(WIDTH), LAYER),
    "Cohere": (lambda: CohereLayerNorm(WIDTH), LAYER),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_is_linear_once_its_scale_is_frozen(name: str) -> None:
    """Norm(x)·w = x·pull(w)/σ + constant(w), on which attribution rests; a gain without its 1, or a mean that is not
    taken out, would put a small error everywhere. Widened, a norm of a float64 model counts in float64."""
    build, kind = NORMS[name]
    rounded: nn.Module = randomise(build()).double()
    module: nn.Module = randomise(build()).double()
    widen(nn.Sequential(module))
    x, w = 1.5 + 2 * torch.randn(2, 7, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert kind_of(module) is kind
    assert kind_of(nn.Linear(WIDTH, WIDTH)) is None
    assert allclose(rounded(x), module(x), 1e-6)
    norm = NormMap.of(module, kind, WIDTH)
    assert allclose(norm(x), module(x), 1e-12)
    frozen = (x * norm.pull(w)).sum(-1) / norm.scale(x) + norm.constant(w)
    assert allclose(frozen, (norm(x) * w).sum(-1), 1e-12)
    shift = 0 if norm.shift is None else norm.shift
    assert allclose(norm.passed(x) / norm.scale(x).unsqueeze(-1) + shift, norm(x), 1e-12)
    assert torch.autograd.gradcheck(lambda x: module(x), (x[:2].requires_grad_(),))
    half: Any = randomise(build()).to(torch.bfloat16)
    assert kind_of(half) is kind
    assert NormMap.of(half, kind, WIDTH).gain.dtype == torch.float32  # or it would round every direction
