"""The mathematics of one FFN in plain tensors: activations, both kinds of FFN, its memories, where parameters are."""

from .activations import ACTIVATIONS, Activation, activation, swish
from .block import Block
from .families import FAMILIES
from .layers import GATED, classic_coefficients, classic_ffn, gated_coefficients, gated_ffn
from .ledgers import Ledger, Parity, ledger, parity, parity_width
from .memory import Affine, Memory, as_memory, collapse, position_leak
from .shapes import Shape

__all__ = [
    "ACTIVATIONS",
    "FAMILIES",
    "GATED",
    "Activation",
    "Affine",
    "Block",
    "Ledger",
    "Memory",
    "Parity",
    "Shape",
    "activation",
    "as_memory",
    "classic_coefficients",
    "classic_ffn",
    "collapse",
    "gated_coefficients",
    "gated_ffn",
    "ledger",
    "parity",
    "parity_width",
    "position_leak",
    "swish",
]
