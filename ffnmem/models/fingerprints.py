"""The parameters that a fingerprint is taken of, in the order and under the names that it is taken in."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

JOINT = ".c_attn"


def hashed_parameters(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Of a Hugging Face model by itself, or inside a bridge: queries, keys and values that GPT-2 keeps in one
    projection come apart before the projection, as a TransformerBridge shows them."""
    from transformers.pytorch_utils import Conv1D

    for name, parameter in network.named_parameters():
        attention, joint, leaf = name.partition(f"{JOINT}.")
        before, behind, last = name.partition(".attn.c_proj.")
        if joint and isinstance(whole := network.get_submodule(attention + JOINT), Conv1D):
            if leaf == "weight":
                for part, weight, bias in zip("qkv", whole.weight.T.chunk(3), whole.bias.chunk(3), strict=True):
                    yield f"{attention}.{part}.weight", weight
                    yield f"{attention}.{part}.bias", bias
            yield f"{attention}.qkv.{leaf}", parameter
        elif behind and isinstance(network.get_submodule(f"{before}.attn.c_proj"), Conv1D):
            yield f"{before}.attn.o.{last}", parameter
        else:
            yield name.replace("_original_component.", ""), parameter
