"""The empty Mixtral that meanings are planted into by expert, and a router that reads the group of a word."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

# Nothing in a Mixtral has a bias. RMSNorm keeps what LayerNorm removes, the mean of the residual stream: all tokens
# have the same one, and keys and gates read it where others would have a bias. Positions turn queries and keys, so the
# head that looks one word back reads nothing else.

USED = 2  # experts that a token goes to, as in Mixtral 8x7B
CONSTANT = 0.5  # the size of what all embeddings share, beside a concept's, which is 1
THETA = 10.0  # of the rotary embedding: its slowest plane turns once in 63 positions
SHARP = 150.0  # the attention score of the previous token; one more or less is some 15 nats below
GROUP = 0.1  # the size in an embedding of a router's logit of 1
FIRST, SECOND = 5.0, 4.6  # router's logits of a concept's two groups, against 0: weights of 60% and 40%
SHUT = 110.0  # below which SiLU is exactly 0 in float32


def empty_mixtral(d_vocab: int, *, n_layers: int, d_model: int, d_expert: int, experts: int, n_ctx: int) -> Any:
    """A Mixtral of Hugging Face's whose weights are all 0 and whose norms only normalise (float32)."""
    import transformers

    config = transformers.MixtralConfig(
        vocab_size=d_vocab,
        max_position_embeddings=n_ctx,
        hidden_size=d_model,
        num_hidden_layers=n_layers,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=d_model + d_model % 2,
        intermediate_size=d_expert,
        num_local_experts=experts,
        num_experts_per_tok=USED,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        sliding_window=None,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    hf = transformers.MixtralForCausalLM(config).eval()
    hf.set_experts_implementation("eager")  # others take no width that is not a multiple of 16 bytes
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
    return hf


@torch.no_grad()
def write_tokens(hf: Any, tokens: Tensor) -> None:
    """Token (and, being tied, output) embeddings, with what all of them share."""
    hf.model.embed_tokens.weight.copy_(tokens + CONSTANT / tokens.shape[1] ** 0.5)


@torch.no_grad()
def write_look_back(hf: Any, layer: int, value: Tensor, out: Tensor) -> None:
    """A head that looks at the previous token and copies some of it; nothing that it reads decides where it looks."""
    attention, d_model = hf.model.layers[layer].self_attn, len(value)
    planes = attention.head_dim // 2
    omega = hf.model.rotary_emb.inv_freq.double()
    turned = torch.cat([omega.cos(), -omega.sin()])  # by one position, so that cos ω(δ − 1) is summed
    straight = torch.cat([torch.ones(planes), torch.zeros(planes)]).double()
    level = constant_level(hf)
    gain = (SHARP * attention.head_dim**0.5 / planes) ** 0.5 / level
    ones = torch.full((d_model,), d_model**-0.5, dtype=torch.float64)
    attention.q_proj.weight.copy_(gain * torch.outer(turned, ones))
    attention.k_proj.weight.copy_(gain * torch.outer(straight, ones))
    attention.v_proj.weight[: value.shape[1]] = value.T.float()
    attention.o_proj.weight[:, : len(out)] = out.T.float()


def constant_level(hf: Any) -> float:
    """What a norm of embeddings gives along the direction that all of them share."""
    embeddings = hf.model.embed_tokens.weight.detach().double()
    return float((embeddings.sum(-1) / embeddings.norm(dim=-1)).median())


def with_bias(rows: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """Rows that add a bias where they read inputs like ``x``."""
    return rows + (bias / x.sum(-1).mean())[:, None]


def draw_groups(rng: np.random.Generator, n_concepts: int, experts: int) -> Tensor:
    """The router's logits for the words of each concept: of as many groups as there are experts each is of two, of one
    more than of the other. All groups have as many concepts of the first kind, or one more."""
    if not experts:
        return torch.zeros(n_concepts, 0, dtype=torch.float64)
    first = rng.permutation(n_concepts) % experts
    second = (first + rng.integers(1, experts, n_concepts)) % experts
    found = torch.zeros(n_concepts, experts, dtype=torch.float64)
    found[torch.arange(n_concepts), first], found[torch.arange(n_concepts), second] = FIRST, SECOND
    return found


@torch.no_grad()
def write_router(
    hf: Any,
    layer: int,
    read: Tensor,
    x: Tensor,
    logits: Tensor,
) -> Tensor:
    """A router that reads a direction for each expert, scaled to give these logits on average; returns where it sends
    the inputs."""
    hf.model.layers[layer].mlp.gate.weight.copy_(read * (logits.sum() / (x @ read.T).sum()))
    return route(hf, layer, x.float()) > 0


@torch.no_grad()
def write_expert(
    hf: Any,
    layer: int,
    expert: int,
    gates: Tensor,
    keys: Tensor,
    values: Tensor,
) -> None:
    """One expert's memories."""
    experts = hf.model.layers[layer].mlp.experts
    experts.gate_up_proj[expert] = torch.cat([gates, keys]).float()
    experts.down_proj[expert] = values.T.float()


def route(hf: Any, layer: int, x: Tensor) -> Tensor:
    """What the router gives each expert, 0 where it is not chosen."""
    _, weights, chosen = hf.model.layers[layer].mlp.gate(x)
    return x.new_zeros(len(x), hf.config.num_local_experts).scatter(1, chosen, weights)
