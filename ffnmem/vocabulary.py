"""``project``: what a memory writes, and what excites it, in tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

import pandas as pd
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from .errors import InputError, check_choice, check_count
from .models import Model
from .models.final_norm import FinalNorm, at_least_float32
from .models.layout import inner

SIDES = ("value", "key")
BASES = ("folded", "raw")
BLOCK = 256  # neurons scored at once: [256, 50257] in float32 is 51 MB


@dataclass(frozen=True, eq=False)
class Extremes:
    """The highest and the lowest scored tokens of each row, best first; ties in the order of the token ids."""

    promoted: Int[Tensor, "rows k"]
    promoted_scores: Float[Tensor, "rows k"]
    suppressed: Int[Tensor, "rows k"]
    suppressed_scores: Float[Tensor, "rows k"]


def folded(vectors: Float[Tensor, "rows d_model"], gain: Float[Tensor, " d_model"]) -> Float[Tensor, "rows d_model"]:
    """(v − mean v) ⊙ γ: a write as the final LayerNorm passes it on."""
    return (vectors - vectors.mean(dim=-1, keepdim=True)) * gain


def value_vectors(model: Model, layer: int, neurons: Sequence[int], basis: str) -> Float[Tensor, "rows d_model"]:
    """Values ready for W_U: ``(v − mean v) ⊙ γ_f`` if folded, ``v`` if raw."""
    values = at_least_float32(model.ffn[layer].values.detach()[list(neurons)])
    return folded(values, FinalNorm(model).gain) if basis == "folded" else values


def key_vectors(model: Model, layer: int, neurons: Sequence[int], basis: str) -> Float[Tensor, "rows d_model"]:
    """Keys ready for W_E. Folded: k·LN(x) grows with x along ``k ⊙ γ``, less its mean, as LayerNorm removes it."""
    keys = at_least_float32(model.ffn[layer].keys.detach()[list(neurons)])
    if basis == "raw":
        return keys
    norm = inner(model.layout.blocks[layer].norm)
    assert isinstance(norm, nn.LayerNorm)
    gained = keys * at_least_float32(norm.weight.detach())
    return gained - gained.mean(dim=-1, keepdim=True)


def extremes(vectors: Float[Tensor, "rows d_model"], tokens: Float[Tensor, "vocab d_model"], k: int) -> Extremes:
    """The k highest and k lowest of ``vectors @ tokensᵀ``, exact in the vectors' dtype, for at most BLOCK rows."""
    scores = vectors @ tokens.to(vectors.dtype).T

    def best(signed: Float[Tensor, "rows vocab"]) -> Int[Tensor, "rows k"]:
        # topk alone does not say which of equal scores it takes: take all that reach the k-th, then order by id.
        kth = signed.topk(k, dim=-1).values[:, -1:]
        rows = []
        for row, threshold in zip(signed, kth, strict=True):
            ids = (row >= threshold).nonzero().squeeze(-1)
            rows.append(ids[row[ids].argsort(descending=True, stable=True)][:k])
        return torch.stack(rows)

    promoted, suppressed = best(scores), best(-scores)
    return Extremes(promoted, scores.gather(-1, promoted), suppressed, scores.gather(-1, suppressed))


def project(
    model: Model,
    layer: SupportsIndex,
    neuron: SupportsIndex | Iterable[SupportsIndex] | None = None,
    *,
    k: int = 10,
    basis: str = "folded",
    side: str | Sequence[str] = SIDES,
) -> pd.DataFrame:
    """What neurons write (values) and what excites them (keys), in tokens.

    Args:
        model: from :func:`ffnmem.load`.
        layer: one layer. neuron: one or several neurons of it; None for all.
        k: tokens a side and sign.
        basis: ``"folded"`` (default) scores values by ``((v − mean v) ⊙ γ_f)·W_U``, the final norm's gain folded in,
            and keys by the gain of the norm before the FFN and W_E; ``"raw"`` by ``v·W_U`` and ``k·W_E``. They rank
            tokens differently, so the basis is a column.
        side: ``"value"``, ``"key"`` or both.

    Returns:
        Columns layer, neuron, side, sign ("promoted"/"suppressed"), rank (from 1), token, token_id, score, basis;
        scores exact in float32 (float64 for a float64 model), ties by token id. A key's score tells how a token's
        embedding moves the pre-activation; it says nothing about context, which grows with depth.

    Raises:
        OutOfRangeError: no such layer or neuron. InputError: unknown basis or side.

    Source: Geva et al. 2022 (2203.14680), §4, for values; Dar et al. 2023 (2209.02535) for keys.
    """
    index = model.layer(layer)
    check_choice("basis", basis, BASES)
    sides = [side] if isinstance(side, str) else list(side)
    for name in sides:
        check_choice("side", name, SIDES)
    if not sides:
        raise InputError("no side given: choose 'value', 'key' or both")
    if neuron is None:
        neurons = list(range(model.ffn[index].d_mlp))
    else:
        neurons = [model.neuron(index, n) for n in (neuron if isinstance(neuron, Iterable) else [neuron])]
    if not neurons:
        raise InputError("no neuron given")
    k = min(check_count("k", k), model.d_vocab)
    frames = [
        frame
        for start in range(0, len(neurons), BLOCK)
        for frame in block_frames(model, index, neurons[start : start + BLOCK], sides, basis, k)
    ]
    result = pd.concat(frames, ignore_index=True)
    if len(neurons) > 1:
        result["_order"] = result["neuron"].map({n: i for i, n in enumerate(neurons)})
        result = result.sort_values("_order", kind="stable", ignore_index=True).drop(columns="_order")
    result.attrs = {"provenance": model.provenance(basis=basis).as_dict()}
    return result


def block_frames(
    model: Model, layer: int, neurons: list[int], sides: list[str], basis: str, k: int
) -> Iterator[pd.DataFrame]:
    """The rows of one block of neurons, side by side and sign by sign."""
    for side in sides:
        if side == "value":
            found = extremes(value_vectors(model, layer, neurons, basis), model.unembedding.detach(), k)
        else:
            found = extremes(key_vectors(model, layer, neurons, basis), model.embedding.detach(), k)
        for sign, ids, scores in (
            ("promoted", found.promoted, found.promoted_scores),
            ("suppressed", found.suppressed, found.suppressed_scores),
        ):
            flat = rearrange(ids, "rows k -> (rows k)").tolist()
            yield pd.DataFrame(
                {
                    "layer": layer,
                    "neuron": [n for n in neurons for _ in range(k)],
                    "side": side,
                    "sign": sign,
                    "rank": list(range(1, k + 1)) * len(neurons),
                    "token": model.token_strings(flat),
                    "token_id": flat,
                    "score": rearrange(scores, "rows k -> (rows k)").tolist(),
                    "basis": basis,
                }
            )
