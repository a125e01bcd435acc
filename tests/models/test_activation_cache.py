"""TransformerLens' ActivationCache of a capture, and its names, against TransformerLens itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformer_lens import ActivationCache

import ffnmem as fm
from ffnmem.core.errors import FfnmemError, InputError, InputTypeError, OutOfRangeError
from ffnmem.core.neuron_names import PARTS

from ..helpers import PROMPT, Pair, allclose, refuses


def test_a_cache_is_given(pair: Pair) -> None:
    """A capture gives the cache that TransformerLens gives, and every name the same tensor."""
    model = fm.load(pair.hf, tokenizer=pair.model.tokenizer)
    tokens = torch.tensor([model.tokenize(PROMPT)])
    _, cache = model.to_bridge().run_with_cache(tokens)
    ours = fm.capture(model, tokens)
    given = ours.to_cache()
    assert isinstance(given, ActivationCache)
    for name in given:
        assert allclose(given[name], cache[name], 1e-5), name
    assert "1_mlp_out" in given.decompose_resid(return_labels=True, mode="mlp")[1]
    beside = {"mlp.hook_out", "mlp.gate.hook_out", "mlp.hook_pre_linear"}  # of some models something else, or not there
    for hook in PARTS:
        name = f"blocks.1.{hook}"
        if name in cache or hook not in beside:
            assert allclose(ours[name], cache[name].reshape(ours[name].shape), 1e-5), name


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("blocks.1.hook_mlp_ot", InputError, ("perhaps blocks.1.hook_mlp_out",)),
        ("blocks.1.mlp.hook_pots", InputError, ("hook_pots", "blocks.0.mlp.hook_post", "ln_final.hook_in")),
        ("blocks.1.hook_resid_post", OutOfRangeError, ("every layer",)),
        ("blocks.1.mlp.hook_pre_linear", InputError, ("not gated", "hook_pre_linear")),
        (3, InputTypeError, ("blocks.3.mlp.hook_post", "int")),
    ],
)
def test_places_by_their_names(name: Any, kind: type[FfnmemError], says: tuple[str, ...], tiny: fm.Model) -> None:
    """A misspelt hook name would be ignored in silence, as in most tools."""
    capture = fm.capture(tiny, PROMPT, layers="blocks.1.mlp.hook_post")
    assert capture.layers == (1,)
    assert capture["blocks.1.mlp.hook_post"] is capture["blocks.1.mlp.out.hook_in"] is capture.coefficients[1]
    assert capture["blocks.1.hook_mlp_out"] is capture.ffn_out[1]
    with refuses(kind, Exception, *says):
        capture[name]
    for layers in (["blocks.9.mlp.hook_post"], ["blocks.1.attn.hook_z"]):
        with refuses(InputError, ValueError, *layers, "blocks.1.mlp.hook_post"):
            fm.capture(tiny, PROMPT, layers=layers)
