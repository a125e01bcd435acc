"""``attribute_paths``: the logit as a sum over memories at all positions, through attention."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import ffnmem as fm
from ffnmem.models import Model

from ..helpers import Pair, allclose

PROMPT = "The Eiffel Tower is located in the city of"


def naive_paths(model: Model, capture: fm.prompts.Capture, target: int) -> torch.Tensor:
    """The same sum from gradients: with patterns, scales and FFN outputs held constant, the logit is linear in every
    FFN output, so its gradient there is the direction. A forward pass written out, nothing shared with the package."""
    blocks, tokens = model.to_bridge().blocks, capture.tokens
    n, pos = model.n_layers, tokens.shape[1]
    patterns, scales = {}, {}
    hooks = []
    for layer in range(n):
        hooks.append(
            blocks[layer].attn.hook_pattern.register_forward_hook(
                lambda _m, _i, out, layer=layer: patterns.__setitem__(layer, out[0].detach())
            )
        )
        hooks.append(
            blocks[layer].ln1.register_forward_pre_hook(
                lambda _m, args, layer=layer: scales.__setitem__(
                    layer, (args[0][0].var(-1, unbiased=False) + 1e-5).sqrt().detach()
                )
            )
        )
    model.to_bridge()(tokens)
    for hook in hooks:
        hook.remove()
    writes = [capture.ffn_out[layer][0].detach().clone().requires_grad_() for layer in range(n)]
    x = capture.residual.embedding[0] + capture.residual.position[0]
    for layer in range(n):
        attention, norm = blocks[layer].attn, blocks[layer].ln1.original_component
        normed = (x - x.mean(-1, keepdim=True)) / scales[layer][:, None] * norm.weight + norm.bias
        values = torch.einsum("pd,hde->hpe", normed, attention.W_V) + attention.b_V[:, None]
        mixed = torch.einsum("htp,hpe,hed->td", patterns[layer], values, attention.W_O) + attention.b_O
        x = x + mixed + writes[layer]
    final = model.to_bridge().ln_final.original_component
    last = capture.residual.final_in[0, -1]
    scale = (last.var(unbiased=False) + final.eps).sqrt()
    out = (x[-1] - x[-1].mean()) / scale * final.weight + final.bias
    (out @ model.unembedding[target]).backward()
    values = torch.stack([model.ffn[layer].values for layer in range(n)])
    directions = torch.stack([write.grad for write in writes])
    coefficients = torch.stack([capture.coefficients[layer][0] for layer in range(n)])
    assert coefficients.shape[1] == pos
    return coefficients * torch.einsum("lpd,lmd->lpm", directions, values)


def test_what_the_capture_keeps_of_attention_is_the_second_pass(pair: Pair) -> None:
    """A short prompt by itself would be explained otherwise than one among others, or than before its weights were
    changed and put back."""
    model = pair.model
    capture = fm.capture(model, "The Eiffel Tower is in Paris")
    again = replace(capture, attended=None)
    assert capture.attended is not None
    found = {position: fm.attribute_paths(capture, " Paris", position=position) for position in (-1, 2)}
    for position, one in found.items():
        other = fm.attribute_paths(again, " Paris", position=position)
        assert one.error < 1e-4
        assert one.scores.shape[1] == len(one.tokens) == capture.position(position) + 1
        assert allclose(one.scores, other.scores, 1e-5)
    with torch.no_grad():
        for parameter in model.hf_model.parameters():
            saved = parameter.clone()
            parameter.mul_(2).copy_(saved)
    assert allclose(fm.attribute_paths(capture, " Paris").scores, found[-1].scores, 1e-6)


def test_tables(tiny: Model) -> None:
    paths = fm.attribute_paths(fm.capture(tiny, "The Eiffel Tower is in Paris"), " Paris")
    top = paths.top(7)
    assert list(top.columns) == ["layer", "neuron", "position", "token", "coefficient", "logit", "share"]
    strongest = paths.scores.abs().flatten().sort(descending=True).values[:7]
    assert allclose(top["logit"].abs(), strongest)
    for row in top.itertuples():
        at = row.layer, row.position, row.neuron
        assert (row.logit, row.coefficient) == pytest.approx((float(paths.scores[at]), float(paths.coefficients[at])))
        assert (row.token, row.share) == (paths.tokens[row.position], pytest.approx(row.logit / paths.logit))
    assert len(paths.neurons) == tiny.n_layers * tiny.d_mlp
    ffn = paths.components.query("component == 'ffn'")["logit"]
    assert allclose(paths.map.sum(1), ffn)
    assert allclose(paths.neurons.groupby("layer")["logit"].sum(), ffn)


def test_equals_gradients_of_the_written_out_forward_pass(tiny64: Model) -> None:
    # if it failed, a neuron would be credited along the wrong direction
    capture = fm.capture(tiny64, "The Eiffel Tower is in Paris")
    target = tiny64.token_id(" Rome")
    paths = fm.attribute_paths(capture, target)
    torch.testing.assert_close(paths.scores, naive_paths(tiny64, capture, target).detach(), rtol=1e-9, atol=1e-11)
    assert paths.error < 1e-10


def test_atlas_finds_the_subject(atlas: Model) -> None:
    # the recall site that training put there: the memories at the subject's last token outweigh every other
    # position before the answer's own
    capture = fm.capture(atlas, PROMPT)
    paths = fm.attribute_paths(capture, " Paris", " Rome")
    by_position = paths.map.sum(0)[:-1]
    assert paths.tokens[int(by_position.argmax())] == " Tower"
    assert float(by_position.max()) > 0.25 * paths.logit
