"""The parameters that a fingerprint is taken of, in the order and under the names that it is taken in.

They are those of a TransformerBridge, which shows attention's queries, keys and values apart where Hugging Face keeps
them in one projection. So a model has the same fingerprint with and without a bridge, and the one that stores and edits
of earlier versions, which ran every model under a bridge, hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from einops import rearrange
from torch import Tensor, nn

from .architectures import Architecture
from .configs import Hyperparameters

QUARTERS = 4  # CodeGen was trained on so many devices, and its rows are still kept by device

Named = tuple[str, Tensor]


def bridge_parameters(network: nn.Module) -> Iterator[Named]:
    """Of the Hugging Face model inside a bridge."""
    for name, parameter in network.named_parameters():
        yield name.replace("_original_component.", ""), parameter


def network_parameters(network: Any, found: Architecture, numbers: Hyperparameters) -> Iterator[Named]:
    """Of a Hugging Face model by itself, as a bridge around it would have them."""
    attention = f".{found.paths['attn']}."
    seen: set[str] = set()
    for name, parameter in network.named_parameters():
        holder, _, leaf = name.rpartition(".")
        before, here, _ = name.partition(attention)
        if found.fused is not None and here and name.startswith(found.paths["blocks"]):
            if before not in seen:
                seen.add(before)
                yield from attention_parameters(
                    network.get_submodule(before + attention[:-1]), before + here, found, numbers
                )
        elif found.joint is not None and holder.endswith(f".{found.joint}"):
            if leaf == "weight":
                yield from joint_parameters(network.get_submodule(holder), holder.removesuffix(found.joint))
            yield name, parameter
        else:
            yield name, parameter


def attention_parameters(
    attention: nn.Module, prefix: str, found: Architecture, numbers: Hyperparameters
) -> Iterator[Named]:
    """Of attention with one projection: queries, keys and values, then the projection itself and the output's."""
    assert found.fused is not None
    whole, out = (attention.get_submodule(name) for name in (found.fused.whole, found.fused.out))
    parts = {
        leaf: split_rows(rows, attention, found.fused.order, numbers) for leaf, rows in weights(whole, by_row=True)
    }
    for i, part in enumerate(("q", "k", "v")):
        for leaf, split in parts.items():
            yield f"{prefix}{part}.{leaf}", split[i]
    for part, module in (("qkv", whole), ("o", out)):
        for leaf, parameter in weights(module):
            yield f"{prefix}{part}.{leaf}", parameter


def joint_parameters(joint: nn.Module, prefix: str) -> Iterator[Named]:
    """Gates and keys of one projection apart."""
    for i, part in enumerate(("gate", "in")):
        for leaf, parameter in weights(joint):
            yield f"{prefix}{part}.{leaf}", parameter.chunk(2)[i]


def weights(module: nn.Module, by_row: bool = False) -> list[Named]:
    """Weight and bias of a projection; the weight with a row an output, however it is stored, if ``by_row``."""
    found = [(leaf, getattr(module, leaf, None)) for leaf in ("weight", "bias")]
    turned = by_row and not isinstance(module, nn.Linear)  # Conv1D has a column an output
    return [
        (leaf, tensor.T if turned and leaf == "weight" else tensor)
        for leaf, tensor in found
        if isinstance(tensor, Tensor)
    ]


def split_rows(
    rows: Tensor, attention: nn.Module, order: str, numbers: Hyperparameters
) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of queries, keys and values."""
    if order == "falcon":
        together = getattr(attention, "new_decoder_architecture", False) or getattr(attention, "multi_query", False)
        order = "parts" if together else "heads"
    if order == "parts":
        queries = numbers.n_heads * numbers.d_head
        shared = (len(rows) - queries) // 2
        return rows[:queries], rows[queries : queries + shared], rows[queries + shared :]
    groups = QUARTERS if order == "quarters" else numbers.n_heads
    one, two, three = rearrange(rows, "(group part row) ... -> part (group row) ...", group=groups, part=3)
    if order == "quarters":
        two, three = three, two  # queries, values, keys
    return one, two, three
