"""The width at which a gated FFN has the weights of a classic one."""

from __future__ import annotations

import json

import pytest

from ffnmem.core.errors import InputError
from ffnmem.ffn import parity, parity_width

from ..helpers import refuses


def test_llamas_width_is_the_parity_width() -> None:
    """The rule 8d/3, rounded up, would not give the published widths."""
    assert parity_width(4096) == 11008
    assert parity_width(5120) == 13824  # Llama 13B
    assert parity_width(8192) == 22016  # Llama 65B
    assert parity_width(768, multiple=1) == 2048
    assert parity_width(768, multiple=1, d_mlp=3073) == 2049
    assert parity_width(4096, d_mlp=12288) == 8192


def test_parity_of_llama_7b() -> None:
    """The price of gating would be told wrong."""
    found = parity(4096, 11008)
    assert (found.gated, found.classic, found.difference) == (135_266_304, 134_217_728, 1_048_576)
    assert round(100 * found.relative, 1) == 0.8
    assert found == parity(4096)
    assert parity(4096, 14336).relative > 0.3  # Mistral and Llama 3 spend more
    assert parity(768, d_mlp=3072, h=2048).difference == 0
    assert "+0.8%" in repr(found)
    assert json.loads(json.dumps(found.to_dict()))["difference"] == 1_048_576


def test_parity_refuses_no_width() -> None:
    """A width of 0 would be called equal."""
    for wrong in ({"d_model": 0}, {"d_model": 8, "multiple": 0}, {"d_model": 8, "d_mlp": 0}):
        with pytest.raises(InputError):
            parity_width(**wrong)
    with refuses(InputError, ValueError, "h must", "0"):
        parity(8, 0)
