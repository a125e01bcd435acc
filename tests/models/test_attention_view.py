"""Attention as a frozen linear map."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import ffnmem as fm
from ffnmem.core.errors import HookError
from ffnmem.models import Model
from ffnmem.models.attention import frozen_attention

from ..helpers import added


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
