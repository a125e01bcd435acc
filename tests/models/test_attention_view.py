"""Attention as a frozen linear map."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack

import ffnmem as fm
from ffnmem.core.errors import HookError, UnsupportedModelError
from ffnmem.models import Model
from ffnmem.models import attention as attention_view
from ffnmem.models.attention import frozen_attention

from ..helpers import added, build, refuses


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


def test_the_constant_is_what_attention_writes_of_nothing(architecture: Model) -> None:
    # if it failed, attention would not be linear once its pattern is constant, and its biases would hide the rest
    for attention in frozen_attention(architecture, torch.tensor([3, 5, 7])):
        directions = torch.randn(2, 3, architecture.d_model, generator=torch.Generator().manual_seed(0))
        plain = replace(attention, norm=None, post=None, factor=1.0)
        nothing = replace(plain, normed=torch.zeros_like(plain.normed), kept=None)
        _, constant = plain.pull(directions)
        torch.testing.assert_close(constant, (directions * nothing.writes()).sum((-2, -1)), rtol=1e-5, atol=1e-5)


def test_a_long_prompt_is_run_again_layer_by_layer(architecture: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    # if it failed, what is kept of short prompts would be of another pass than what is made again of long ones
    tokens = torch.tensor([3, 5, 7])
    short = frozen_attention(architecture, tokens)
    monkeypatch.setattr(attention_view, "KEPT", 2)
    directions = torch.randn(3, architecture.d_model, generator=torch.Generator().manual_seed(0))
    for kept, again in zip(short, frozen_attention(architecture, tokens), strict=True):
        assert kept.kept is not None
        assert again.kept is None
        for found, expected in zip(again.pull(directions), kept.pull(directions), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_attention_that_nobody_described_is_tried(tokenizer: Any) -> None:
    # if it failed, what is not linear in it would count as its biases
    model = fm.load(build("SeedOss", head_dim=8), tokenizer=tokenizer)
    capture = fm.capture(model, "The Eiffel Tower")
    assert fm.attribute_paths(capture, " Paris").error < 1e-5
    model.layout.blocks[1].attention_out.register_forward_hook(lambda _m, _args, out: (out[0] ** 2, *out[1:]))
    capture = fm.capture(model, "The Eiffel Tower")
    with refuses(UnsupportedModelError, ValueError, "layer 1 is not linear"):
        fm.attribute_paths(capture, " Paris")


def test_an_interrupt_leaves_no_mode_behind(tiny: fm.Model) -> None:
    """Modules tell their hooks of errors, not of Ctrl-C: every later softmax would be kept, or gradients left on."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    handle = tiny.layout.blocks[1].attention_out.register_forward_hook(interrupted)
    before = len(_get_current_function_mode_stack())
    try:
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                with pytest.raises(KeyboardInterrupt):
                    fm.capture(tiny, "The Eiffel Tower")
                assert torch.is_grad_enabled() is grad
    finally:
        handle.remove()
    assert len(_get_current_function_mode_stack()) == before
    assert fm.capture(tiny, "The Eiffel Tower").attended is not None
