"""Attention as a frozen linear map."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack

import ffnmem as fm
from ffnmem.core.errors import HookError
from ffnmem.models import Model
from ffnmem.models import attention as attention_view
from ffnmem.models.attention import KnownFFNs, Passed, frozen_attention
from ffnmem.prompts.firings import PromptQuestion

from ..helpers import added

PROMPTS = ["The Eiffel Tower is in Paris", "Rome is"]


def test_pull_accounts_for_the_whole_attention_output(architecture: Model) -> None:
    # if it failed, weights, norm or biases would be read wrongly for that architecture
    model = architecture
    capture = fm.capture(model, "The Eiffel Tower is in Paris")
    attentions = frozen_attention(model, capture.tokens[0])
    x = capture.residual.embedding[0].clone()
    if capture.residual.position is not None:
        x = x + capture.residual.position[0]
    directions = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    for layer, attention in enumerate(attentions):
        pulled, constant = attention.pull(directions)
        wanted = (capture.residual.attention[layer][0] * directions).sum()
        assert float((x * pulled).sum() + constant) == pytest.approx(float(wanted), abs=1e-4)
        x = x + capture.residual.attention[layer][0]
        x = x + added(model, layer, "ffn", capture.ffn_out[layer][0])


def test_a_silent_pattern_is_an_error(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    block = tiny.layout.blocks[0]
    mute = nn.Identity()
    blocks = (replace(block, attention=mute), *tiny.layout.blocks[1:])
    monkeypatch.setattr(tiny, "layout", replace(tiny.layout, blocks=blocks))
    with pytest.raises(HookError, match="layers 0 "):
        frozen_attention(tiny, torch.tensor([0, 1, 2]))


def known_and_tokens(model: Model, prompt: int = 0, position: int = -1) -> tuple[KnownFFNs, torch.Tensor]:
    asked = PromptQuestion.of(fm.capture(model, PROMPTS), None, None, position, prompt, False)
    return asked.known_ffns(), asked.tokens


def test_a_pass_without_its_ffns_is_the_pass(architecture: Model) -> None:
    # if it failed, patterns or norms' scales would be those of another stream
    for prompt, position in ((0, -1), (0, 2), (1, -1)):
        known, tokens = known_and_tokens(architecture, prompt, position)
        full, products = Passed.of(architecture, tokens), known.products(architecture)
        if products is None:
            assert architecture.architecture == "FalconForCausalLM"  # its projections are none of torch's
            continue
        quick = Passed.of(architecture, tokens, products)
        assert known.led_to(quick.final[0])
        for layer in range(architecture.n_layers):
            for name in ("inputs", "written"):
                found, expected = getattr(quick, name)[layer], getattr(full, name)[layer]
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            patterns = quick.calls.patterns[layer], full.calls.patterns[layer]
            torch.testing.assert_close(*patterns, rtol=1e-4, atol=1e-6)


def test_what_is_known_is_not_computed(tiny: Model) -> None:
    # if it failed, the FFNs would run a second time after all
    known, tokens = known_and_tokens(tiny)
    moved = replace(known, out={layer: written + 1 for layer, written in known.out.items()})
    products = moved.products(tiny)
    assert products is not None
    final = Passed.of(tiny, tokens, products).final[0]
    torch.testing.assert_close(
        final.mean() - known.final_in.mean(), torch.tensor(float(tiny.n_layers)), atol=0.1, rtol=0
    )
    assert not known.led_to(final)
    found, expected = frozen_attention(tiny, tokens, moved), frozen_attention(tiny, tokens)  # so it is run in full
    assert all(torch.equal(a.pattern, b.pattern) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("part", ["project_in", "project_out"])
def test_hooks_on_ffns_act_once(tiny: Model, part: str) -> None:
    # if it failed, a change that a user's hook makes would be made twice, and too small to be seen by the sum
    module = getattr(tiny.layout.blocks[0], part)
    handle = module.register_forward_hook(lambda _m, _args, out: out + 0.01)
    try:
        known, tokens = known_and_tokens(tiny)
        assert known.products(tiny) is None
        capture = fm.capture(tiny, PROMPTS)
        assert fm.attribute_paths(capture, " Paris", prompt=0).error < 1e-5
        expected = frozen_attention(tiny, tokens)
        found = PromptQuestion.of(capture, None, None, -1, 0, False).attentions()
        assert all(torch.equal(a.pattern, b.pattern) for a, b in zip(found, expected, strict=True))
    finally:
        handle.remove()


def test_a_projection_that_is_more_than_a_product_runs(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    class Adapted(nn.Linear):  # as an adapter is
        pass

    known, _ = known_and_tokens(tiny)
    block = replace(tiny.layout.blocks[0], project_out=Adapted(tiny.d_mlp, tiny.d_model))
    monkeypatch.setattr(tiny, "layout", replace(tiny.layout, blocks=(block, *tiny.layout.blocks[1:])))
    assert known.products(tiny) is None


def test_products_of_nothing_are_their_biases(architecture: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    # if it failed, what attention's biases add, or the gradient through values, would differ from the module's own
    attentions = frozen_attention(architecture, torch.tensor([3, 5, 7]))
    directions = torch.randn(2, 3, architecture.d_model, generator=torch.Generator().manual_seed(0))
    found = [attention.pull(directions) for attention in attentions]
    monkeypatch.setattr(attention_view, "OfNothing", nullcontext)
    for attention, (carried, constant) in zip(attentions, found, strict=True):
        expected, bias = attention.pull(directions)
        torch.testing.assert_close(carried, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(constant, bias, rtol=1e-5, atol=1e-5)


def test_an_interrupt_leaves_no_mode_behind(tiny: fm.Model) -> None:
    """Modules tell their hooks of errors, not of Ctrl-C: every later softmax of the thread would be kept."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    handle = tiny.layout.blocks[1].attention_out.register_forward_hook(interrupted)
    before = len(_get_current_function_mode_stack())
    try:
        with pytest.raises(KeyboardInterrupt):
            fm.capture(tiny, "The Eiffel Tower")
    finally:
        handle.remove()
    assert len(_get_current_function_mode_stack()) == before
    assert fm.capture(tiny, "The Eiffel Tower").attended is not None
