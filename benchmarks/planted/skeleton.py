"""The bare model that memories are planted into: a tokenizer of whole words, weights of zero, a room of directions.

Everything planted is written in random directions orthogonal to each other and to the all-ones vector, so that
LayerNorm's centring changes nothing and no neuron lies along an axis of the residual stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import ffnmem as fm

SPECIAL = BOS, UNKNOWN = ("<|bos|>", "<|unk|>")
CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"
SYLLABLES = [consonant + vowel for consonant in CONSONANTS for vowel in VOWELS]
CONTEXT = 64


@dataclass(frozen=True, eq=False)
class Planted:
    """A planted model.

    Attributes:
        model: a GPT-2 or a Mixtral. hf: the same as it was built; a GPT-2's ``model`` is a copy of it behind a bridge.
        truth: one row a neuron: layer, neuron, in mixtures its expert, and what it was made for.
        texts: a corpus that exercises it, one document each.
        facts: those that it was made to recall.
    """

    model: fm.Model
    hf: Any
    truth: pd.DataFrame
    texts: tuple[str, ...]
    facts: tuple[fm.Fact, ...] = ()


def load(hf: Any, tokenizer: Any, name: str) -> fm.Model:
    """The built model, loaded like any other."""
    hf.config._name_or_path = name
    return fm.load(hf, tokenizer=tokenizer)


def build_tokenizer(words: Sequence[str]) -> Any:
    """A tokenizer in which every word, with the space before it, is one token. Ids 0 and 1 are BOS and unknown."""
    import transformers
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *(f" {word}" for word in words)))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    # A text's first word gets the space too, so that a prompt reads the same with and without it; a line's end is one.
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Replace(Regex(r"^(?=[^\s<])"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?[^\s]+"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=BOS, unk_token=UNKNOWN, clean_up_tokenization_spaces=False
    )


def stems(count: int, rng: np.random.Generator) -> list[str]:
    """Different pronounceable stems of two syllables, three when these run out."""
    two = [a + b for a in SYLLABLES for b in SYLLABLES]
    pool = two if count <= len(two) else two + [a + b for a in two for b in SYLLABLES]
    return [pool[i] for i in rng.permutation(len(pool))[:count]]


def empty_gpt2(d_vocab: int, *, n_layers: int, d_model: int, d_mlp: int, n_ctx: int, n_heads: int = 1) -> Any:
    """A GPT-2 of Hugging Face's whose weights and biases are all 0 and whose norms only normalise (float32)."""
    import transformers

    sizes = {"n_layer": n_layers, "n_embd": d_model, "n_inner": d_mlp, "n_positions": n_ctx, "n_head": n_heads}
    config = transformers.GPT2Config(vocab_size=d_vocab, bos_token_id=0, eos_token_id=0, **sizes)
    hf = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            parameter.fill_(1.0 if ".ln_" in name and name.endswith("weight") else 0.0)
    return hf


class Room:
    """Orthonormal directions of a residual stream, handed out once each, all orthogonal to the all-ones vector."""

    def __init__(self, d_model: int, rng: np.random.Generator) -> None:
        start = np.concatenate([np.ones((d_model, 1)), rng.standard_normal((d_model, d_model - 1))], axis=1)
        self.free = torch.tensor(np.linalg.qr(start)[0].T[1:], dtype=torch.float64)

    def take(self, count: int) -> Tensor:
        """``count`` orthonormal rows nobody else gets."""
        if count > len(self.free):
            raise ValueError(f"d_model is too small: {count} directions are needed and {len(self.free)} are free")
        taken, self.free = self.free[:count], self.free[count:]
        return taken


def unit_rows(count: int, room: Tensor, rng: np.random.Generator) -> Tensor:
    """Random unit vectors in the span of some directions: more of them than directions are in superposition."""
    found = torch.tensor(rng.standard_normal((count, len(room)))) @ room
    return found / found.norm(dim=-1, keepdim=True)


# Writing weights.


@torch.no_grad()
def write_ffn(hf: Any, layer: int, keys: Tensor, key_bias: Tensor, values: Tensor) -> None:
    """One layer's memories."""
    mlp = hf.transformer.h[layer].mlp
    mlp.c_fc.weight.copy_(keys.T)
    mlp.c_fc.bias.copy_(key_bias)
    mlp.c_proj.weight.copy_(values)


@torch.no_grad()
def write_embeddings(hf: Any, tokens: Tensor, positions: Tensor) -> None:
    """Token (and, being tied, output) embeddings, and position embeddings."""
    hf.transformer.wte.weight.copy_(tokens)
    hf.transformer.wpe.weight.copy_(positions)


class Clock:
    """Position embeddings on which going one step back is a rotation, so that a head can look at the previous token.

    Position p is ``size`` · [cos ω₁p, sin ω₁p, …]/√n in the plane pairs of ``room``; its product with position p + δ
    depends on δ alone and is largest for δ = 0.
    """

    def __init__(self, room: Tensor, size: float, rng: np.random.Generator) -> None:
        self.room, self.size = room, size
        self.omega = torch.tensor(np.sort(rng.uniform(0.1, 3.0, len(room) // 2)))

    def positions(self, n_ctx: int) -> Tensor:
        angle = torch.arange(n_ctx, dtype=torch.float64).unsqueeze(-1) * self.omega
        code = torch.stack([angle.cos(), angle.sin()], dim=-1).flatten(1) / len(self.omega) ** 0.5
        return self.size * code @ self.room

    def step_back(self) -> Tensor:
        """R with code(p) @ R = code(p − 1)."""
        turn = torch.zeros(len(self.room), len(self.room), dtype=torch.float64)
        for j, omega in enumerate(self.omega.tolist()):
            c, s = np.cos(omega), np.sin(omega)
            turn[2 * j : 2 * j + 2, 2 * j : 2 * j + 2] = torch.tensor([[c, -s], [s, c]])
        return turn


@torch.no_grad()
def write_head(hf: Any, layer: int, *, query: Tensor, key: Tensor, value: Tensor, out: Tensor, head: int = 0) -> None:
    """One attention head by its four factors, each narrower than the head; what is not given is 0."""
    attention = hf.transformer.h[layer].attn
    d_model, width = attention.embed_dim, attention.head_dim
    for which, factor in enumerate((query, key, value)):
        start = which * d_model + head * width
        attention.c_attn.weight[:, start : start + factor.shape[1]] = factor.float()
    attention.c_proj.weight[head * width : head * width + out.shape[0]] = out.float()


SHARP = 30.0  # the attention score of the position that a head is to look at


def write_previous_token_head(hf: Any, layer: int, clock: Clock, *, scale: float, value: Tensor, out: Tensor) -> None:
    """A head that looks at the previous token. ``scale``: what LayerNorm multiplies the residual stream by."""
    gain = SHARP * hf.transformer.h[layer].attn.head_dim ** 0.5 / (clock.size * scale) ** 2
    query = gain * clock.room.T @ clock.step_back()
    write_head(hf, layer, query=query, key=clock.room.T, value=value, out=out)


@torch.no_grad()
def add_noise(hf: Any, noise: float, rng: np.random.Generator) -> None:
    """Noise on every weight matrix, of ``noise`` times the root mean square of each neuron's, token's or head's row."""
    matrices = []
    for block in hf.transformer.h:
        mlp, attention = block.mlp, block.attn
        matrices += [mlp.c_fc.weight.T, mlp.c_proj.weight, attention.c_attn.weight.T, attention.c_proj.weight]
    for rows in (*matrices, hf.transformer.wte.weight, hf.transformer.wpe.weight):
        drawn = torch.tensor(rng.standard_normal(tuple(rows.shape)), dtype=rows.dtype)
        rows += noise * rows.pow(2).mean(-1, keepdim=True).sqrt() * drawn


# Reading back.


@torch.no_grad()
def norm_outputs(hf: Any, layer: int, tokens: Tensor, norm: str = "ln_1") -> Tensor:
    """What one layer's attention (with ln_2, its FFN) reads on some texts, in float64, with all below as it is now."""
    found: list[Tensor] = []
    module = getattr(blocks(hf)[layer], norm)
    handle = module.register_forward_hook(lambda _m, _i, out: found.append(out.double()))
    try:
        hf.base_model(tokens, use_cache=False)
    finally:
        handle.remove()
    return found[0]


def blocks(hf: Any) -> Any:
    """The layers of a GPT-2 or a Mixtral."""
    return hf.transformer.h if hf.config.model_type == "gpt2" else hf.model.layers


def ffn_inputs(hf: Any, layer: int, tokens: Tensor) -> Tensor:
    """What one layer's FFN reads, as :func:`norm_outputs` has it for attention."""
    return norm_outputs(hf, layer, tokens, "ln_2" if hf.config.model_type == "gpt2" else "post_attention_layernorm")


def mean_by(features: Tensor, x: Tensor, n_features: int) -> Tensor:
    """The mean row where each feature is there; NaN for one that never is. ``features``: ``[n, kinds]``."""
    sums = torch.zeros(n_features, x.shape[1], dtype=x.dtype)
    counts = torch.zeros(n_features, dtype=x.dtype)
    for column in features.T:
        sums.index_add_(0, column, x)
        counts.index_add_(0, column, torch.ones(len(column), dtype=x.dtype))
    return sums / counts.unsqueeze(-1)


def solve_keys(means: Tensor, scatter: Tensor, targets: Tensor) -> Tensor:
    """Keys whose products with features' mean inputs come closest to the targets ``[features, d_mlp]``, in float64.

    Regularised by what inputs of one feature differ by (``scatter``), as Fisher's discriminant is. A target of 0 means
    that the neuron is not to react; where targets are not 0, keys are scaled so that they are met on average.
    """
    gram = means.T @ means + scatter
    gram += 1e-6 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    keys = torch.linalg.solve(gram, means.T @ targets).T
    met = torch.where(targets.T != 0, keys @ means.T, 0.0).sum(-1)
    scale = targets.T.sum(-1) / torch.where(met.abs() > 1e-12, met, 1.0)
    return keys * scale.unsqueeze(-1)


def solve_rows(x: Tensor, seen: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Keys that tell the features seen in some inputs, as :func:`solve_keys` has it, and biases with which they give 0
    for the mean input."""
    centre = x.mean(0)
    means = mean_by(seen, x - centre, len(targets))
    present = ~means.isnan().any(-1)
    scatter = (x - centre).T @ (x - centre) / len(x)
    keys = solve_keys(means[present], scatter, targets[present])
    return keys, -(keys @ centre)
