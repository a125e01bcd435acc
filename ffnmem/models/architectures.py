"""One description an architecture: where the projections of an FFN are, which activation, which norms.

Paths are the names of TransformerLens' bridge, which are the same for every architecture: ``ln1`` and ``ln2`` before
attention and FFN, ``ln1_post`` and ``ln2_post`` behind them, ``in``, ``gate`` and ``out`` inside an FFN. All that an
architecture does otherwise than GPT-2 is said here; the rest of the package asks the description.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from torch import nn

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


@dataclass(frozen=True)
class Architecture:
    """How a decoder of a family is put together.

    Attributes:
        title: what people call it.
        norm_kind: of every norm of the residual stream.
        attention_norm, norm: the norms before attention and FFN. A block without the second has one norm for both; None
            for both: it reads the residual stream as it is.
        attention_post, post: norms of what attention and FFN write, before it is added.
        gate: the projection of the gates, in a gated FFN.
        joint: the Hugging Face name of one projection that holds gates and keys, in this order.
        activation: the field of the config that names it; or, where no field does, ``"= name"``.
        attention_out: the part of attention whose output it writes; empty for its own.
        adds_residual: attention is given the residual stream too and adds it to its output.
        mask_leaves_out: attention's mask is True where nothing may be looked at.
        clip: the field of the config that clips queries, keys and values, which is not linear.
        write_scale: the field of the config with what attention's and FFN's writes are multiplied by.
        logit_scale, logit_divisor, soft_cap: fields of the config with what logits are multiplied by, divided by, and
            kept below, as c·tanh(logit/c).
        refused: settings with which a model cannot be read.
    """

    title: str
    norm_kind: NormKind = LAYER
    attention_norm: str | None = "ln1"
    norm: str | None = "ln2"
    attention_post: str | None = None
    post: str | None = None
    gate: str | None = None
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


GPT = Architecture("GPT-2", activation="activation_function")
LLAMA = Architecture("Llama", RMS, gate="gate")
GEMMA_2 = Architecture(
    "Gemma 2",
    RMS_OFFSET,
    attention_post="ln1_post",
    post="ln2_post",
    gate="gate",
    activation="hidden_activation",
    soft_cap="final_logit_softcapping",
)
OLMO_2 = replace(LLAMA, title="OLMo 2", attention_norm=None, norm=None, attention_post="ln1_post", post="ln2_post")
COHERE = replace(LLAMA, title="Cohere", norm_kind=LAYER, logit_scale="logit_scale")
PHI_3 = replace(LLAMA, title="Phi 3", joint="gate_up_proj")
GLM = replace(PHI_3, title="GLM")
FALCON = Architecture(
    "Falcon",
    activation="activation",
    refused=(Refusal("alibi", "Hugging Face rounds its ALiBi biases to bfloat16, TransformerLens does not"),),
)
OPT = replace(
    GPT,
    title="OPT",
    refused=(Refusal("do_layer_norm_before", "it normalises after its layers, not before", when=False),),
)
BLOOM = Architecture(
    "Bloom",
    activation="= gelu_pytorch_tanh",
    attention_out="o",
    adds_residual=True,
    refused=(
        Refusal("apply_residual_connection_post_layernorm", "its layers add to what their norms give"),
        Refusal("slow_but_exact", "it computes its projections slice by slice (slow_but_exact), without its modules"),
    ),
)

DESCRIBED: Mapping[str, Architecture] = MappingProxyType(
    {
        "GPT2LMHeadModel": GPT,
        "GPTNeoForCausalLM": replace(GPT, title="GPT-Neo"),
        "GPTJForCausalLM": replace(GPT, title="GPT-J"),
        "CodeGenForCausalLM": replace(GPT, title="CodeGen"),
        "GPTBigCodeForCausalLM": replace(GPT, title="StarCoder"),
        "GPTNeoXForCausalLM": Architecture("Pythia / GPT-NeoX"),
        "OPTForCausalLM": OPT,
        "PhiForCausalLM": Architecture("Phi 1 and 2"),
        "BloomForCausalLM": BLOOM,
        "FalconForCausalLM": FALCON,
        "MptForCausalLM": Architecture("MPT", activation="= gelu", mask_leaves_out=True, clip="attn_config.clip_qkv"),
        "Starcoder2ForCausalLM": Architecture("StarCoder 2"),
        "NemotronForCausalLM": Architecture("Nemotron", LAYER_OFFSET),
        "ArceeForCausalLM": Architecture("Arcee", RMS),
        "LlamaForCausalLM": LLAMA,
        "MistralForCausalLM": replace(LLAMA, title="Mistral"),
        "Qwen2ForCausalLM": replace(LLAMA, title="Qwen 2"),
        "Qwen3ForCausalLM": replace(LLAMA, title="Qwen 3"),
        "SmolLM3ForCausalLM": replace(LLAMA, title="SmolLM 3"),
        "Phi3ForCausalLM": PHI_3,
        "GlmForCausalLM": GLM,
        "Glm4ForCausalLM": replace(GLM, title="GLM 4", attention_post="ln1_post", post="ln2_post"),
        "GemmaForCausalLM": Architecture("Gemma", RMS_OFFSET, gate="gate", activation="hidden_act"),
        "Gemma2ForCausalLM": GEMMA_2,
        "Gemma3ForCausalLM": replace(GEMMA_2, title="Gemma 3"),
        "StableLmForCausalLM": replace(LLAMA, title="StableLM", norm_kind=LAYER),
        "GraniteForCausalLM": replace(
            LLAMA, title="Granite", write_scale="residual_multiplier", logit_divisor="logits_scaling"
        ),
        "OlmoForCausalLM": replace(LLAMA, title="OLMo", norm_kind=LAYER, clip="clip_qkv"),
        "Olmo2ForCausalLM": OLMO_2,
        "Olmo3ForCausalLM": replace(OLMO_2, title="OLMo 3"),
        "CohereForCausalLM": COHERE,
        "Cohere2ForCausalLM": replace(COHERE, title="Cohere 2"),
    }
)
"""By the class of the Hugging Face model."""


def derived(
    parts: Mapping[str, nn.Module], mlp: Mapping[str, nn.Module], kind: NormKind, config: Any, joint: str | None = None
) -> Architecture:
    """A description of an architecture that has none here, from what its first block has; to be checked by running.

    Args:
        parts: of the first block. mlp: of its FFN. kind: of its final norm. config: the Hugging Face model's.
        joint: the name of the projection that holds gates and keys, if one does.
    """

    def present(name: str, among: Mapping[str, nn.Module]) -> str | None:
        return name if name in among else None

    def known(field: str) -> str:
        return field if isinstance(getattr(config, field, None), int | float) else ""

    fields = [name for name in ACTIVATION_FIELDS if isinstance(getattr(config, name, None), str)]
    return Architecture(
        str(getattr(config, "model_type", "unknown")),
        kind,
        attention_norm=present("ln1", parts),
        norm=present("ln2", parts) or present("ln1", parts),
        attention_post=present("ln1_post", parts),
        post=present("ln2_post", parts),
        gate=present("gate", mlp),
        joint=joint,
        clip="clip_qkv",
        activation=fields[0] if fields else "",
        write_scale=known("residual_multiplier"),
        logit_scale=known("logit_scale"),
        logit_divisor=known("logits_scaling"),
        soft_cap=known("final_logit_softcapping"),
    )
