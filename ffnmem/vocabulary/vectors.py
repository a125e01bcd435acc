"""Values and keys as vectors that are ready to be scored against the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from ..core.errors import InputError, check_choice, listed
from ..models.model import Model
from ..models.norms import at_least_float32
from ..models.residual import FinalNorm, passed_on
from .lenses import JacobianLens

SIDES = ("value", "key", "gate")
BASES = ("folded", "raw")
SIGNS = ("promoted", "suppressed")


def sides_of(model: Model) -> tuple[str, ...]:
    """What a neuron of a model has: a value and a key, and a gate if the model is gated."""
    return SIDES if model.gated else SIDES[:2]


def check_sides(side: str | Sequence[str] | None, model: Model, lens: JacobianLens | None = None) -> list[str]:
    """One side or several as a list, each once, None for all; raises InputError.

    Through a Jacobian lens there are only values, so that all means these.
    """
    given = (sides_of(model) if lens is None else SIDES[0]) if side is None else side
    sides = [given] if isinstance(given, str) else list(dict.fromkeys(given))
    for name in sides:
        check_choice("side", name, SIDES)
    if not sides:
        raise InputError(f"no side given: choose among {listed(SIDES)}")
    if lens is not None and sides != ["value"]:
        raise InputError("the Jacobian lens is for values, which are written to the stream: use side 'value' with it")
    return sides


def matrix_of(model: Model, layer: int, side: str) -> Float[Tensor, "d_mlp d_model"]:
    """Values, keys or gates of a layer. Raises InputError for the gates of a model that has none."""
    ffn = model.ffn[layer]
    if side == "gate" and ffn.gates is None:
        raise InputError(f"{model.name} has no gates: its FFNs are not gated, so a neuron has one key (side 'key')")
    found = {"value": ffn.values, "key": ffn.keys, "gate": ffn.gates}[side]
    assert found is not None
    return found


def side_vectors(
    model: Model, layer: int, neurons: Sequence[int], side: str, basis: str, lens: JacobianLens | None = None
) -> Float[Tensor, "rows d_model"]:
    """Values, keys or gates, ready for :func:`side_tokens`."""
    return ready(model, layer, side, rows_of(matrix_of(model, layer, side), neurons), basis, lens)


def side_tokens(model: Model, side: str) -> Float[Tensor, "vocab d_model"]:
    """What a side is scored against: values against W_U, keys and gates against W_E."""
    return (model.unembedding if side == "value" else model.embedding).detach()


def rows_of(matrix: Float[Tensor, "neurons d_model"], neurons: Sequence[int]) -> Float[Tensor, "rows d_model"]:
    """Some rows, laid out row by row: the order of a row's sum, and so its last bit, follows the layout."""
    return at_least_float32(matrix.detach()[list(neurons)]).contiguous()


def ready(
    model: Model,
    layer: int,
    side: str,
    vectors: Float[Tensor, "rows d_model"],
    basis: str,
    lens: JacobianLens | None = None,
) -> Float[Tensor, "rows d_model"]:
    """Vectors that stand where values, keys or gates stand, in a basis; for neurons' own and for random ones alike.

    Folded values are (v − mean v) ⊙ γ_f, as the final LayerNorm passes writes on, or v ⊙ γ_f by an RMSNorm; a norm
    behind the FFN (Gemma 2) has passed them on before: v ⊙ γ_post ⊙ γ_f. Folded keys and gates are k ⊙ γ, along which
    k·Norm(x) grows with x, less its mean for a LayerNorm. Through a Jacobian lens, values are taken as the stream gets
    them, then as they arrive at the final norm, and only then folded.
    """
    if side == "value" and lens is not None:
        vectors = lens.apply(passed_on(model, layer, vectors), layer)
        return vectors if basis == "raw" else FinalNorm(model).norm.passed(vectors)
    if basis == "raw":
        return vectors
    if side == "value":
        return FinalNorm(model).norm.passed(passed_on(model, layer, vectors))
    norm = model.norm_before(layer)
    return vectors if norm is None else norm.pull(vectors)


def everything(model: Model, layer: int) -> list[int]:
    """All neurons of a layer."""
    return list(range(model.ffn[layer].d_mlp))
