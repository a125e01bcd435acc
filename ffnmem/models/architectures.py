"""One description an architecture: where its parts are, which activation, which norms.

Parts have the names that TransformerLens gives them, which are the same for every architecture: ``ln1`` and ``ln2``
before attention and FFN, ``ln1_post`` and ``ln2_post`` behind them, ``in``, ``gate`` and ``out`` inside an FFN. Where
Hugging Face keeps each stands beside it (``paths``). All that an architecture does otherwise than GPT-2 is said here;
the rest of the package asks the description.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from .norms import LAYER, LAYER_OFFSET, RMS, RMS_OFFSET, NormKind

ACTIVATION_FIELDS = ("activation_function", "hidden_activation", "hidden_act", "activation")


@dataclass(frozen=True)
class Refusal:
    """A setting with which a model of a family cannot be read.

    Attributes:
        field: of the config. reason: in words. when: which of its two values is meant; None is neither.
    """

    field: str
    reason: str
    when: bool = True

    def applies(self, config: Any) -> bool:
        value = setting(config, self.field)
        return value is not None and bool(value) is self.when


def setting(config: Any, field: str) -> Any:
    """A field of a config, or of a config inside it (``attn_config.clip_qkv``); None where there is none."""
    found = config
    for name in field.split(".") if field else ():
        found = found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)
    return found if field else None


Paths = Mapping[str, str]
"""Where Hugging Face keeps the parts of a decoder, by TransformerLens' names: ``blocks``, ``ln_final``, ``pos_embed``
from the model, the others from a layer. Where settings decide between two names, both stand there: ``ln_mlp|norm``."""

LLAMA_PATHS: Paths = {
    "blocks": "model.layers",
    "ln_final": "model.norm",
    "ln1": "input_layernorm",
    "attn": "self_attn",
    "ln2": "post_attention_layernorm",
    "in": "mlp.up_proj",
    "gate": "mlp.gate_proj",
    "out": "mlp.down_proj",
}
GPT_PATHS: Paths = {
    "blocks": "transformer.h",
    "pos_embed": "transformer.wpe",
    "ln_final": "transformer.ln_f",
    "ln1": "ln_1",
    "attn": "attn",
    "ln2": "ln_2",
    "in": "mlp.c_fc",
    "out": "mlp.c_proj",
}


def but(paths: Paths, **changes: str | None) -> Paths:
    """Paths with some others, or without those that are None; ``in_`` is ``in``, which Python keeps for itself."""
    changed = {**paths, **{name.removesuffix("_"): path for name, path in changes.items()}}
    return {name: path for name, path in changed.items() if path is not None}


GPT_J_PATHS = but(GPT_PATHS, pos_embed=None, ln2=None, in_="mlp.fc_in", out="mlp.fc_out")
NEOX_PATHS: Paths = {
    "blocks": "gpt_neox.layers",
    "ln_final": "gpt_neox.final_layer_norm",
    "ln1": "input_layernorm",
    "attn": "attention",
    "ln2": "post_attention_layernorm",
    "in": "mlp.dense_h_to_4h",
    "out": "mlp.dense_4h_to_h",
}
BLOOM_PATHS = but(NEOX_PATHS, blocks="transformer.h", ln_final="transformer.ln_f", attn="self_attention")
OPT_PATHS: Paths = {
    "blocks": "model.decoder.layers",
    "pos_embed": "model.decoder.embed_positions",
    "ln_final": "model.decoder.final_layer_norm",
    "ln1": "self_attn_layer_norm",
    "attn": "self_attn",
    "ln2": "final_layer_norm",
    "in": "fc1",
    "out": "fc2",
}
MPT_PATHS: Paths = {
    "blocks": "transformer.blocks",
    "ln_final": "transformer.norm_f",
    "ln1": "norm_1",
    "attn": "attn",
    "ln2": "norm_2",
    "in": "ffn.up_proj",
    "out": "ffn.down_proj",
}
GEMMA_2_PATHS = but(
    LLAMA_PATHS,
    ln1_post="post_attention_layernorm",
    ln2="pre_feedforward_layernorm",
    ln2_post="post_feedforward_layernorm",
)
NORMS_BEHIND = but(
    LLAMA_PATHS, ln1=None, ln2=None, ln1_post="post_attention_layernorm", ln2_post="post_feedforward_layernorm"
)
PARTS = ("embed", "pos_embed", "blocks", "ln_final", "unembed", "ln1", "ln2", "ln1_post", "ln2_post", "attn")
BRIDGE_PATHS: Paths = {**{name: name for name in PARTS}, "in": "mlp.in", "gate": "mlp.gate", "out": "mlp.out"}
"""Of a TransformerBridge."""


@dataclass(frozen=True)
class ExpertForm:
    """How an architecture keeps its experts and what its router does.

    Attributes:
        router: its name in the block.
        columns: keys, gates and values are ``[expert, d_in, d_out]`` as they multiply; else their transposes.
        scales_input: the router multiplies what an expert reads; else what it writes.
        in_pair: the block returns what the router gives beside its output.
        clamped: rows of gates and keys alternate, all have biases, and both products are clamped (GPT-OSS).
    """

    router: str = "gate"
    columns: bool = False
    scales_input: bool = False
    in_pair: bool = False
    clamped: bool = False


@dataclass(frozen=True)
class Architecture:
    """How a decoder of a family is put together.

    Attributes:
        title: what people call it.
        paths: where Hugging Face keeps its parts, which every layer has but for ``ln2``, where attention and FFN share
            one norm. Empty for an architecture that is not described here.
        norm_kind: of every norm of the residual stream.
        joint: the Hugging Face name of one projection that holds gates and keys, in this order.
        activation: the field of the config that names it; or, where no field does, ``"= name"``.
        attention_out: the part of attention whose output it writes, or several names of it; empty for its own.
        adds_residual: attention is given the residual stream too and adds it to its output.
        mask_leaves_out: attention's mask is True where nothing may be looked at.
        clip: the field of the config that clips queries, keys and values, which is not linear.
        write_scale: the field of the config with what attention's and FFN's writes are multiplied by.
        logit_scale, logit_divisor, soft_cap: fields of the config with what logits are multiplied by, divided by, and
            kept below, as c·tanh(logit/c).
        refused: settings with which a model cannot be read.
        parallel: whether the FFN reads beside attention: always, never, or where a field of the config says so.
        prepend_bos: whether the model was trained with a token before every text.
        experts: how it keeps its experts; None where its layers have none.
    """

    title: str
    paths: Paths = field(default_factory=dict)
    norm_kind: NormKind = LAYER
    joint: str | None = None
    activation: str = "hidden_act"
    attention_out: str = ""
    adds_residual: bool = False
    mask_leaves_out: bool = False
    clip: str = ""
    write_scale: str = ""
    logit_scale: str = ""
    logit_divisor: str = ""
    soft_cap: str = ""
    refused: tuple[Refusal, ...] = ()
    parallel: bool | str = False
    prepend_bos: bool = True
    experts: ExpertForm | None = None


GPT = Architecture("GPT-2", GPT_PATHS, activation="activation_function")
GPT_J = replace(GPT, title="GPT-J", paths=GPT_J_PATHS, parallel=True)
LLAMA = Architecture("Llama", LLAMA_PATHS, RMS)
GEMMA_2 = Architecture(
    "Gemma 2", GEMMA_2_PATHS, RMS_OFFSET, activation="hidden_activation", soft_cap="final_logit_softcapping"
)
OLMO_2 = replace(LLAMA, title="OLMo 2", paths=NORMS_BEHIND)
COHERE = replace(
    LLAMA, title="Cohere", paths=but(LLAMA_PATHS, ln2=None), norm_kind=LAYER, logit_scale="logit_scale", parallel=True
)
PHI_3 = replace(LLAMA, title="Phi 3", joint="gate_up_proj")
GLM = replace(PHI_3, title="GLM", prepend_bos=False)
FALCON = Architecture(
    "Falcon",
    but(BLOOM_PATHS, ln1="ln_attn|input_layernorm", ln2="ln_mlp|post_attention_layernorm"),
    activation="activation",
    refused=(Refusal("alibi", "Hugging Face rounds its ALiBi biases to bfloat16, TransformerLens does not"),),
    parallel="parallel_attn",
)
OPT = replace(
    GPT,
    title="OPT",
    paths=OPT_PATHS,
    refused=(Refusal("do_layer_norm_before", "it normalises after its layers, not before", when=False),),
)
BLOOM = Architecture(
    "Bloom",
    BLOOM_PATHS,
    activation="= gelu_pytorch_tanh",
    attention_out="o|dense",
    adds_residual=True,
    refused=(
        Refusal("apply_residual_connection_post_layernorm", "its layers add to what their norms give"),
        Refusal("slow_but_exact", "it computes its projections slice by slice (slow_but_exact), without its modules"),
    ),
    prepend_bos=False,
)
PYTHIA = Architecture(
    "Pythia / GPT-NeoX",
    NEOX_PATHS,
    parallel="use_parallel_residual",
    prepend_bos=False,
)
MPT = Architecture(
    "MPT",
    MPT_PATHS,
    activation="= gelu",
    mask_leaves_out=True,
    clip="attn_config.clip_qkv",
    prepend_bos=False,
)
PHI = Architecture(
    "Phi 1 and 2",
    but(LLAMA_PATHS, ln_final="model.final_layernorm", ln2=None, in_="mlp.fc1", gate=None, out="mlp.fc2"),
    parallel=True,
    prepend_bos=False,
)
GLM_4 = replace(
    GLM, title="GLM 4", paths=but(LLAMA_PATHS, ln1_post="post_self_attn_layernorm", ln2_post="post_mlp_layernorm")
)
STARCODER_2 = Architecture(
    "StarCoder 2", but(LLAMA_PATHS, in_="mlp.c_fc", gate=None, out="mlp.c_proj"), prepend_bos=False
)
UNGATED = but(LLAMA_PATHS, gate=None)
MIXTRAL = replace(LLAMA, title="Mixtral", experts=ExpertForm())
LLAMA_4 = replace(
    LLAMA,
    title="Llama 4",
    paths=but(LLAMA_PATHS, in_="feed_forward.up_proj", gate="feed_forward.gate_proj", out="feed_forward.down_proj"),
    experts=ExpertForm("router", columns=True, scales_input=True, in_pair=True),
)

DESCRIBED: Mapping[str, Architecture] = MappingProxyType(
    {
        "GPT2LMHeadModel": GPT,
        "GPTNeoForCausalLM": replace(GPT, title="GPT-Neo", paths=but(GPT_PATHS, attn="attn.attention")),
        "GPTJForCausalLM": GPT_J,
        "CodeGenForCausalLM": replace(GPT_J, title="CodeGen"),
        "GPTBigCodeForCausalLM": replace(GPT, title="StarCoder"),
        "GPTNeoXForCausalLM": PYTHIA,
        "OPTForCausalLM": OPT,
        "PhiForCausalLM": PHI,
        "BloomForCausalLM": BLOOM,
        "FalconForCausalLM": FALCON,
        "MptForCausalLM": MPT,
        "Starcoder2ForCausalLM": STARCODER_2,
        "NemotronForCausalLM": Architecture("Nemotron", UNGATED, LAYER_OFFSET),
        "ArceeForCausalLM": Architecture("Arcee", UNGATED, RMS),
        "LlamaForCausalLM": LLAMA,
        "MistralForCausalLM": replace(LLAMA, title="Mistral"),
        "Qwen2ForCausalLM": replace(LLAMA, title="Qwen 2", prepend_bos=False),
        "Qwen3ForCausalLM": replace(LLAMA, title="Qwen 3", prepend_bos=False),
        "SmolLM3ForCausalLM": replace(LLAMA, title="SmolLM 3", prepend_bos=False),
        "Phi3ForCausalLM": PHI_3,
        "GlmForCausalLM": GLM,
        "Glm4ForCausalLM": GLM_4,
        "GemmaForCausalLM": Architecture("Gemma", LLAMA_PATHS, RMS_OFFSET, activation="hidden_act"),
        "Gemma2ForCausalLM": GEMMA_2,
        "Gemma3ForCausalLM": replace(GEMMA_2, title="Gemma 3"),
        "StableLmForCausalLM": replace(LLAMA, title="StableLM", norm_kind=LAYER, parallel="use_parallel_residual"),
        "GraniteForCausalLM": replace(
            LLAMA,
            title="Granite",
            write_scale="residual_multiplier",
            logit_divisor="logits_scaling",
            prepend_bos=False,
        ),
        "OlmoForCausalLM": replace(LLAMA, title="OLMo", norm_kind=LAYER, clip="clip_qkv"),
        "Olmo2ForCausalLM": OLMO_2,
        "Olmo3ForCausalLM": replace(OLMO_2, title="OLMo 3"),
        "CohereForCausalLM": COHERE,
        "MixtralForCausalLM": MIXTRAL,
        "Qwen2MoeForCausalLM": replace(MIXTRAL, title="Qwen 2 MoE", prepend_bos=False),
        "Qwen3MoeForCausalLM": replace(MIXTRAL, title="Qwen 3 MoE", prepend_bos=False),
        "DeepseekV2ForCausalLM": replace(MIXTRAL, title="DeepSeek V2"),
        "DeepseekV3ForCausalLM": replace(MIXTRAL, title="DeepSeek V3"),
        "OlmoeForCausalLM": replace(MIXTRAL, title="OLMoE", clip="clip_qkv", prepend_bos=False),
        "Llama4ForCausalLM": LLAMA_4,
        "GptOssForCausalLM": replace(
            LLAMA,
            title="GPT-OSS",
            prepend_bos=False,
            experts=ExpertForm("router", columns=True, in_pair=True, clamped=True),
        ),
        "Cohere2ForCausalLM": replace(COHERE, title="Cohere 2"),
    }
)
"""By the class of the Hugging Face model."""


def derive_architecture(kind: NormKind, config: Any, joint: str | None = None) -> Architecture:
    """A description of an architecture that has none here, from its config; to be checked by running.

    Args:
        kind: of its final norm. config: the Hugging Face model's.
        joint: the name of the projection that holds gates and keys, if one does.
    """

    def known(field: str) -> str:
        return field if isinstance(getattr(config, field, None), int | float) else ""

    fields = [name for name in ACTIVATION_FIELDS if isinstance(getattr(config, name, None), str)]
    return Architecture(
        str(getattr(config, "model_type", "unknown")),
        norm_kind=kind,
        joint=joint,
        clip="clip_qkv",
        activation=fields[0] if fields else "",
        write_scale=known("residual_multiplier"),
        logit_scale=known("logit_scale"),
        logit_divisor=known("logits_scaling"),
        soft_cap=known("final_logit_softcapping"),
    )
