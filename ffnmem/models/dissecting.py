"""``anatomy``: a model, a name or a config becomes an Anatomy; of a name nothing but the config is read."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..arguments import public
from ..errors import InputError, UnsupportedModelError, check_count
from ..ffn.families import N_CTX, N_HEADS, Reading
from ..ffn.ledgers import CONTEXT, Ledger, ledger
from ..ffn.shapes import Shape
from .anatomy import Anatomy, Matrix
from .architectures import DESCRIBED, Architecture
from .configs import described, read_config, stated_activation
from .counting import Counted, build_empty, count_loaded, count_module
from .model import Model
from .turns import in_turn


@public
@in_turn
def anatomy(source: Any, *, context: int | None = None) -> Anatomy:
    """Where the parameters and the arithmetic of a model are, and what its FFNs are as memories.

    Args:
        source: a :class:`Model`; a Hugging Face model; a name as :func:`load` takes it (an embedded model, a folder, of
            which ``config.json`` is enough, a Hugging Face id); a Hugging Face config, or a dict as in
            ``config.json``. Of a name or config nothing but the config is read, so that its size does not matter.
        context: positions that a token attends over, itself among them, for the FLOPs; default 1024, or the model's
            whole context where that is shorter.

    Returns:
        An :class:`Anatomy`. Of a model that is there every parameter is counted, and the formula for its config
        compared.

    Raises:
        ModelNotFoundError: no such name, folder or hub id. ModelError: a config that cannot be read.
        UnsupportedModelError: a mixture of experts, an encoder-decoder, or an architecture that is not described.
        InputError: a context below 1 or beyond the model's, or no source.

    Source: the accounting is that of Kaplan et al. 2020 (2001.08361), table 1, with every bias and norm.
    """
    if isinstance(source, Model):
        return of_model(source, context)
    if isinstance(source, nn.Module):
        name, config = read_config(getattr(source, "config", source))
        return of_module(name, config, checked_architecture(name, config), source, context)
    name, config = read_config(source)
    found = checked_architecture(name, config)
    seen = context_for(name, config, context)
    by_formula = formula_of(config, seen)
    if by_formula is None:
        return of_module(name, config, found, build_empty(config, name), context, there=False)
    shape = Shape.from_config(config)
    return Anatomy(
        ledger=by_formula,
        counted="formula",
        d_model=shape.d_model,
        d_mlp=shape.d_mlp,
        d_vocab=shape.d_vocab,
        biases=biases_of(shape),
        tied=shape.tied,
        matrices=matrices_of(
            shape.d_model, shape.d_mlp, shape.gated, shape.n_heads * shape.d_head, shape.n_kv_heads * shape.d_head
        ),
        **traits(name, config, found),
    )


def of_model(model: Model, context: int | None) -> Anatomy:
    """The anatomy of a loaded model."""
    config, numbers = model.hf_model.config, model.numbers
    seen, queries = context_for(model.name, config, context), int(numbers.n_heads * numbers.d_head)
    counted = count_loaded(model)
    found = traits(model.name, config, model.layout.architecture, model.ffn[0].activation)
    return Anatomy(
        ledger=counted.ledger(model.name, seen, queries),
        counted="weights",
        formula=formula_of(config, seen),
        provenance=model.provenance(context=seen),
        **sizes(counted, found["gated"], queries),
        **found,
    )


def of_module(
    name: str, config: Any, architecture: Architecture, hf_model: Any, context: int | None, there: bool = True
) -> Anatomy:
    """The anatomy of a Hugging Face model, or of one without weights, which is not ``there``."""
    seen, counted = context_for(name, config, context), count_module(hf_model)
    read, found = Reading(config), traits(name, config, architecture)
    n_heads = read.size("n_heads", N_HEADS)
    queries = n_heads * (read("head_dim", default=None) or counted.d_model // n_heads)
    return Anatomy(
        ledger=counted.ledger(name, seen, queries),
        counted="weights" if there else "config",
        formula=formula_of(config, seen) if there else None,
        **sizes(counted, found["gated"], queries),
        **found,
    )


def checked_architecture(name: str, config: Any) -> Architecture:
    """The description of what a config is of; raises UnsupportedModelError, with the reason, if there is none."""
    found = described(config)
    if found is not None:
        return found
    reason = "no decoder"
    try:
        Shape.from_config(config)
    except UnsupportedModelError as error:
        reason = str(error).partition(": there are ")[0]  # only those with a formula
    read = ", ".join(dict.fromkeys(one.title for one in DESCRIBED.values()))
    raise UnsupportedModelError(f"{name}: {reason}; models read are {read}")


def formula_of(config: Any, context: int) -> Ledger | None:
    """The ledger by formula, or None where there is none for the family."""
    try:
        return ledger(config, context=context)
    except UnsupportedModelError:
        return None


def context_for(name: str, config: Any, context: int | None) -> int:
    """The context to count attention at."""
    longest = n_ctx_of(config)
    if context is None:
        return min(CONTEXT, longest or CONTEXT)
    if longest is not None and check_count("context", context) > longest:
        raise InputError(f"context {context} is beyond the {longest} positions of {name}")
    return check_count("context", context)


def n_ctx_of(config: Any) -> int | None:
    """The positions that a model was made for; None where its config names none."""
    found = Reading(config)(*N_CTX, "max_seq_len", default=None)
    return found if isinstance(found, int) else None


def traits(name: str, config: Any, found: Architecture, activation: str | None = None) -> dict[str, Any]:
    """What the architecture and the config say."""
    return {
        "name": name,
        "architecture": found.title,
        "n_ctx": n_ctx_of(config),
        "gated": found.gate is not None or found.joint is not None,
        "activation": stated_activation(config, found) if activation is None else activation,
        "norm": "LayerNorm" if found.norm_kind.centred else "RMSNorm",
    }


def sizes(counted: Counted, gated: bool, queries: int) -> dict[str, Any]:
    """What the parameters say; ``queries`` is the width of all heads together."""
    d_model, d_mlp = counted.d_model, counted.ffn // ((3 if gated else 2) * counted.d_model)
    return {
        "d_model": d_model,
        "d_mlp": d_mlp,
        "d_vocab": counted.d_vocab,
        "biases": counted.biases,
        "tied": counted.tied,
        "matrices": matrices_of(d_model, d_mlp, gated, queries, counted.attention // (2 * d_model) - queries),
    }


def biases_of(shape: Shape) -> tuple[str, ...]:
    """The components of a shape that have biases."""
    has = {
        "attention": shape.qkv_bias or shape.attention_out_bias,
        "FFN": shape.ffn_bias,
        "norms": shape.norm_bias or (shape.qk_norm != "none" and shape.qk_norm_bias),
        "unembedding": shape.unembedding_bias,
    }
    return tuple(name for name, found in has.items() if found)


def matrices_of(d_model: int, d_mlp: int, gated: bool, queries: int, shared: int) -> tuple[Matrix, ...]:
    """The matrices of one layer; ``shared`` is the width of all heads of attention's keys and values together."""
    attention = {"Q": queries, "O": queries, "K": shared, "V": shared}
    ffn = ("keys", "gates", "values") if gated else ("keys", "values")
    return (
        *(Matrix("attention", name, rows, d_model) for name, rows in attention.items()),
        *(Matrix("FFN", name, d_mlp, d_model) for name in ffn),
    )
