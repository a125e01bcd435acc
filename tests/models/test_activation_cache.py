"""TransformerLens' ActivationCache in and out, and its names, against TransformerLens itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformer_lens import ActivationCache

import ffnmem as fm
from ffnmem.core.errors import FfnmemError, InputError, InputTypeError, OutOfRangeError
from ffnmem.core.neuron_names import PARTS

from ..helpers import PROMPT, Pair, allclose, refuses


def test_a_cache_is_taken_and_given(pair: Pair) -> None:
    """A cache gives the same capture, a capture the same cache, and every name the same tensor."""
    model = fm.load(pair.hf, tokenizer=pair.model.tokenizer)
    tokens = torch.tensor([model.tokenize(PROMPT)])
    _, cache = model.to_bridge().run_with_cache(tokens)
    ours, theirs = fm.capture(model, tokens, logits=True), fm.capture(model, tokens, logits=True, cache=cache)
    for place, tensor in ours.by_place().items():
        assert allclose(theirs.by_place()[place], tensor, 1e-5), place
    assert allclose(theirs.logits, ours.logits, 1e-5)
    assert fm.attribute(theirs, 5).error < 1e-5
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
    again = fm.capture(model, tokens, logits=True, cache=given)  # nothing is lost on the way
    assert torch.equal(again.logits, ours.logits)
    for place, tensor in ours.by_place().items():
        assert torch.equal(again.by_place()[place], tensor), place


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


def test_caches_that_do_not_fit(tiny: fm.Model) -> None:
    """Numbers of another prompt or another model would be shown as this one's."""
    other = fm.load(tiny.hf_model, tokenizer=tiny.tokenizer)
    cache = {name: tensor.clone() for name, tensor in fm.capture(other, PROMPT).to_cache().items()}
    assert fm.attribute(fm.capture(tiny, PROMPT, cache=cache), 5).error < 1e-5
    some = {name: tensor for name, tensor in cache.items() if "hook_p" not in name}
    double = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in cache.items()}
    wrong: list[tuple[Any, Any, dict[str, Any], type[FfnmemError], tuple[str, ...]]] = [
        (some, PROMPT, {}, InputError, ("blocks.0.mlp.hook_pre", "blocks.1.mlp.hook_post", "names_filter")),
        (cache, torch.tensor([[1, 2, 3]]), {}, InputError, ("[1, 9, 64]", "[1, 3]")),
        (cache, torch.arange(9), {}, InputError, ("other tokens",)),
        (double, PROMPT, {}, InputError, ("float64", "float32")),
        (3, PROMPT, {}, InputTypeError, ("ActivationCache", "int")),
    ]
    for given, prompt, options, kind, says in wrong:
        with refuses(kind, Exception, *says):
            fm.capture(tiny, prompt, cache=given, **options)
    with fm.intervene(tiny, {"1.3": 5.0}), refuses(InputError, ValueError, "1.3 = 5", "without cache="):
        fm.capture(tiny, PROMPT, cache=cache)
    with torch.no_grad():
        other.ffn[1].values[:] *= 2
    with refuses(InputError, ValueError, "blocks.1.mlp.out.hook_out", "another model"):
        fm.capture(other, PROMPT, cache=cache)
