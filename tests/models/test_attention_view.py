"""Attention as a frozen linear map."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack

import ffnmem as fm
from ffnmem.core.errors import HookError
from ffnmem.models import attention as attention_view
from ffnmem.models.attention import frozen_attention

from ..helpers import added, allclose, refuses


def test_pull_accounts_for_the_whole_attention_output(architecture: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of short prompts, whose pass is kept, and of long ones, which are run again; the constant is that of nothing."""
    model, capture = architecture, fm.capture(architecture, "The Eiffel Tower is in Paris")
    short = frozen_attention(model, capture.tokens[0])
    monkeypatch.setattr(attention_view, "KEPT", 2)
    long = frozen_attention(model, capture.tokens[0])
    x = capture.residual.embedding[0].clone()
    if capture.residual.position is not None:
        x = x + capture.residual.position[0]
    directions = torch.randn(2, *x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    for layer, (kept, again) in enumerate(zip(short, long, strict=True)):
        assert (kept.kept is None, again.kept is None) == (False, True)
        pulled, constant = kept.pull(directions)
        written = capture.residual.attention[layer][0]
        assert allclose((x * pulled).sum((-2, -1)) + constant, (written * directions).sum((-2, -1)), 1e-4)
        for one, other in zip(again.pull(directions), (pulled, constant), strict=True):
            assert allclose(one, other, 1e-5)
        plain = replace(kept, norm=None, post=None, factor=1.0)
        nothing = replace(plain, normed=torch.zeros_like(plain.normed), kept=None)
        assert allclose(plain.pull(directions)[1], (directions * nothing.writes()).sum((-2, -1)), 1e-5)
        x = x + written + added(model, layer, "ffn", capture.ffn_out[layer][0])


def test_a_silent_pattern_is_an_error(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = (replace(tiny.layout.blocks[0], attention=nn.Identity()), *tiny.layout.blocks[1:])
    monkeypatch.setattr(tiny, "layout", replace(tiny.layout, blocks=blocks))
    with refuses(HookError, RuntimeError, "layers 0 "):
        frozen_attention(tiny, torch.tensor([0, 1, 2]))


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
