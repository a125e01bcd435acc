"""TransformerLens' ActivationCache in and out, and its names, against TransformerLens itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformer_lens import ActivationCache

import ffnmem as fm
from ffnmem.core.errors import InputError, InputTypeError, OutOfRangeError
from ffnmem.core.neuron_names import PARTS

from ..helpers import PROMPT, Pair, allclose, build_gpt2, refuses


@pytest.fixture(scope="module")
def bridged(pair: Pair) -> tuple[fm.Model, Any, torch.Tensor]:
    """A model of each kind with the bridge that it runs by, and TransformerLens' cache of a prompt."""
    model = fm.load(pair.hf, tokenizer=pair.model.tokenizer)
    tokens = torch.tensor([model.tokenize(PROMPT)])
    _, cache = model.to_bridge().run_with_cache(tokens)
    return model, cache, tokens


def test_a_cache_is_taken_for_a_capture(bridged: tuple[fm.Model, Any, torch.Tensor]) -> None:
    """A tensor of another place would be attributed to neurons that did not write it."""
    model, cache, tokens = bridged
    ours, theirs = fm.capture(model, tokens, logits=True), fm.capture(model, tokens, logits=True, cache=cache)
    for place, tensor in ours.by_place().items():
        assert allclose(theirs.by_place()[place], tensor, 1e-5), place
    assert allclose(theirs.logits, ours.logits, 1e-5)
    found, expected = fm.attribute(theirs, 5), fm.attribute(ours, 5)
    assert found.logit == pytest.approx(expected.logit, abs=1e-5)
    assert found.error < 1e-5


def test_a_capture_is_given_as_a_cache(bridged: tuple[fm.Model, Any, torch.Tensor]) -> None:
    """Who goes on with TransformerLens would work with other numbers under the same names."""
    model, cache, tokens = bridged
    given = fm.capture(model, tokens).to_cache()
    assert isinstance(given, ActivationCache)
    for name in given:
        assert allclose(given[name], cache[name], 1e-5), name
    labels = given.decompose_resid(return_labels=True, mode="mlp")[1]
    assert "1_mlp_out" in labels


def test_every_name_is_of_the_tensor_that_transformer_lens_has_under_it(
    bridged: tuple[fm.Model, Any, torch.Tensor],
) -> None:
    """One of several names of a place would give another tensor, or none."""
    model, cache, tokens = bridged
    capture = fm.capture(model, tokens)
    beside = {"mlp.hook_out", "mlp.gate.hook_out", "mlp.hook_pre_linear"}  # of some models something else, or not there
    for hook in PARTS:
        name = f"blocks.1.{hook}"
        if name in cache or hook not in beside:
            assert allclose(capture[name], cache[name].reshape(capture[name].shape), 1e-5), name


def test_there_and_back(tiny: fm.Model) -> None:
    """Something would be lost on the way."""
    model = fm.load(build_gpt2(), tokenizer=tiny.tokenizer)
    capture = fm.capture(model, PROMPT, logits=True)
    again = fm.capture(model, PROMPT, logits=True, cache=capture.to_cache())
    assert torch.equal(again.logits, capture.logits)
    for place, tensor in capture.by_place().items():
        assert torch.equal(again.by_place()[place], tensor), place


def test_places_by_their_names(tiny: fm.Model) -> None:
    """A misspelt hook name would be ignored in silence, as in most tools."""
    capture = fm.capture(tiny, PROMPT, layers="blocks.1.mlp.hook_post")
    assert capture.layers == (1,)
    assert capture["blocks.1.mlp.hook_post"] is capture.coefficients[1]
    assert capture["blocks.1.mlp.out.hook_in"] is capture.coefficients[1]
    assert capture["blocks.1.mlp.in.hook_out"] is capture.pre[1]
    assert capture["blocks.1.hook_mlp_out"] is capture.ffn_out[1]
    with refuses(InputError, ValueError, "perhaps blocks.1.hook_mlp_out"):
        capture["blocks.1.hook_mlp_ot"]
    with refuses(InputError, ValueError, "hook_pots", "blocks.0.mlp.hook_post", "ln_final.hook_in"):
        capture["blocks.1.mlp.hook_pots"]
    with refuses(OutOfRangeError, IndexError, "layer 0"):
        capture["blocks.0.mlp.hook_post"]
    with refuses(OutOfRangeError, IndexError, "every layer"):
        capture["blocks.1.hook_resid_post"]
    with refuses(InputError, ValueError, "blocks.9.mlp.hook_post", "blocks.1"):
        fm.capture(tiny, PROMPT, layers=["blocks.9.mlp.hook_post"])
    with refuses(InputError, ValueError, "blocks.1.attn.hook_z", "blocks.1.mlp.hook_post"):
        fm.capture(tiny, PROMPT, layers=["blocks.1.attn.hook_z"])
    with refuses(InputTypeError, TypeError, "blocks.3.mlp.hook_post", "int"):
        capture[3]
    with refuses(InputError, ValueError, "not gated", "hook_pre_linear"):
        capture["blocks.1.mlp.hook_pre_linear"]


def test_caches_that_do_not_fit(tiny: fm.Model) -> None:
    """Numbers of another prompt or another model would be shown as this one's."""
    cache = {name: tensor.clone() for name, tensor in fm.capture(copied(tiny), PROMPT).to_cache().items()}
    assert fm.attribute(fm.capture(tiny, PROMPT, cache=cache), 5).error < 1e-5
    some = {name: tensor for name, tensor in cache.items() if "hook_p" not in name}
    with refuses(InputError, ValueError, "blocks.0.mlp.hook_pre", "blocks.1.mlp.hook_post", "names_filter"):
        fm.capture(tiny, PROMPT, cache=some)
    with refuses(InputError, ValueError, "[1, 9, 64]", "[1, 3]"):
        fm.capture(tiny, torch.tensor([[1, 2, 3]]), cache=cache)
    for layers in (None, [0]):
        with refuses(InputError, ValueError, "other tokens"):
            fm.capture(tiny, torch.arange(9), cache=cache, layers=layers)
    with refuses(InputError, ValueError, "float64", "float32"):
        fm.capture(tiny, PROMPT, cache={k: v.double() if v.is_floating_point() else v for k, v in cache.items()})
    with fm.intervene(tiny, {"1.3": 5.0}), refuses(InputError, ValueError, "1.3 = 5", "without cache="):
        fm.capture(tiny, PROMPT, cache=cache)
    with refuses(InputTypeError, TypeError, "ActivationCache", "int"):
        fm.capture(tiny, PROMPT, cache=3)
    other = copied(tiny)
    with torch.no_grad():
        other.ffn[1].values[:] *= 2
    with refuses(InputError, ValueError, "blocks.1.mlp.out.hook_out", "another model"):
        fm.capture(other, PROMPT, cache=cache)


def copied(model: fm.Model) -> fm.Model:
    return fm.load(model.hf_model, tokenizer=model.tokenizer)
