"""Values and keys as vectors that are ready to be scored against the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from ..errors import InputError, check_choice
from ..models import Model
from ..models.final_norm import FinalNorm, at_least_float32
from ..models.layout import inner

SIDES = ("value", "key")
BASES = ("folded", "raw")
SIGNS = ("promoted", "suppressed")


def check_sides(side: str | Sequence[str]) -> list[str]:
    """One side or several as a list, each once; raises InputError."""
    sides = [side] if isinstance(side, str) else list(dict.fromkeys(side))
    for name in sides:
        check_choice("side", name, SIDES)
    if not sides:
        raise InputError("no side given: choose 'value', 'key' or both")
    return sides


def folded(vectors: Float[Tensor, "rows d_model"], gain: Float[Tensor, " d_model"]) -> Float[Tensor, "rows d_model"]:
    """(v − mean v) ⊙ γ: a write as the final LayerNorm passes it on."""
    return (vectors - vectors.mean(dim=-1, keepdim=True)) * gain


def value_vectors(model: Model, layer: int, neurons: Sequence[int], basis: str) -> Float[Tensor, "rows d_model"]:
    """Values ready for W_U: ``(v − mean v) ⊙ γ_f`` if folded, ``v`` if raw."""
    return ready(model, layer, "value", rows_of(model.ffn[layer].values, neurons), basis)


def key_vectors(model: Model, layer: int, neurons: Sequence[int], basis: str) -> Float[Tensor, "rows d_model"]:
    """Keys ready for W_E. Folded: k·LN(x) grows with x along ``k ⊙ γ``, less its mean, as LayerNorm removes it."""
    return ready(model, layer, "key", rows_of(model.ffn[layer].keys, neurons), basis)


def side_vectors(
    model: Model, layer: int, neurons: Sequence[int], side: str, basis: str
) -> Float[Tensor, "rows d_model"]:
    """Values or keys, ready for :func:`side_tokens`."""
    return (value_vectors if side == "value" else key_vectors)(model, layer, neurons, basis)


def side_tokens(model: Model, side: str) -> Float[Tensor, "vocab d_model"]:
    """What a side is scored against: values against W_U, keys against W_E."""
    return (model.unembedding if side == "value" else model.embedding).detach()


def rows_of(matrix: Float[Tensor, "neurons d_model"], neurons: Sequence[int]) -> Float[Tensor, "rows d_model"]:
    """Some rows, laid out row by row: the order of a row's sum, and so its last bit, follows the layout."""
    return at_least_float32(matrix.detach()[list(neurons)]).contiguous()


def ready(
    model: Model, layer: int, side: str, vectors: Float[Tensor, "rows d_model"], basis: str
) -> Float[Tensor, "rows d_model"]:
    """Vectors that stand where values or keys stand, in a basis; for the neurons' own and for random ones alike."""
    if basis == "raw":
        return vectors
    if side == "value":
        return folded(vectors, FinalNorm(model).gain)
    norm = inner(model.layout.blocks[layer].norm)
    assert isinstance(norm, nn.LayerNorm)
    gained = vectors * at_least_float32(norm.weight.detach())
    return gained - gained.mean(dim=-1, keepdim=True)


def everything(model: Model, layer: int) -> list[int]:
    """All neurons of a layer."""
    return list(range(model.ffn[layer].d_mlp))
