"""``attribute_paths``: the logit as a sum over memories at all positions, through attention."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

import ffnmem as fm
from ffnmem.models import Model

from ..helpers import allclose

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


def test_what_the_capture_keeps_of_attention_is_the_second_pass(architecture: Model) -> None:
    # if it failed, a short prompt by itself would be explained otherwise than one among others
    capture = fm.capture(architecture, "The Eiffel Tower is in Paris")
    again = replace(capture, attended=None)
    for position in (-1, 2):
        found, expected = (fm.attribute_paths(one, " Paris", position=position) for one in (capture, again))
        assert found.error < 1e-4
        torch.testing.assert_close(found.scores, expected.scores, rtol=1e-4, atol=1e-5)
    assert capture.attended is not None
    assert fm.capture(architecture, ["The Eiffel Tower", "Rome is"]).attended is None
    assert fm.capture(architecture, "The Eiffel Tower", layers=[0]).attended is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_components_sum_to_the_logit_in_half_precision(tiny_folder: Path, dtype: str) -> None:
    # the pass itself rounds to three digits; sums of its parts may lose no more
    model = fm.load(str(tiny_folder), dtype=dtype)
    capture = fm.capture(model, ["The Eiffel Tower is in Paris", "Rome is"])
    for prompt in (0, 1):
        paths = fm.attribute_paths(capture, " Paris", prompt=prompt)
        assert paths.error < 0.02 * float(paths.components["logit"].abs().sum())
        assert paths.scores.dtype == torch.float32


def test_weights_that_were_changed_and_put_back(architecture: Model) -> None:
    """What a capture keeps of attention would be used though torch no longer lets it, and raise a RuntimeError."""
    capture = fm.capture(architecture, PROMPT)
    before = fm.attribute_paths(capture, " Paris")
    with torch.no_grad():
        for parameter in architecture.hf_model.parameters():
            saved = parameter.clone()
            parameter.mul_(2).copy_(saved)
    again = fm.attribute_paths(capture, " Paris")
    assert allclose(again.scores, before.scores, 1e-6)
    assert allclose(again.components["logit"], before.components["logit"], 1e-6)


def test_equals_gradients_of_the_written_out_forward_pass(tiny_folder: Path) -> None:
    # if it failed, a neuron would be credited along the wrong direction
    model = fm.load(str(tiny_folder), dtype="float64")
    capture = fm.capture(model, "The Eiffel Tower is in Paris")
    target = model.token_id(" Rome")
    paths = fm.attribute_paths(capture, target)
    torch.testing.assert_close(paths.scores, naive_paths(model, capture, target).detach(), rtol=1e-9, atol=1e-11)
    assert paths.error < 1e-10


def test_the_last_layer_at_the_answer_is_the_direct_attribution(tiny: Model) -> None:
    # nothing stands between the last FFN and the logit, so both ways must agree there, and elsewhere it reaches nothing
    capture = fm.capture(tiny, "The Eiffel Tower is in Paris")
    paths, direct = fm.attribute_paths(capture, " Paris"), fm.attribute(capture, " Paris")
    torch.testing.assert_close(paths.scores[-1, -1], direct.neuron_logits[0, -1], rtol=1e-4, atol=1e-6)
    assert float(paths.scores[-1, :-1].abs().max()) == 0.0


def test_an_earlier_position_uses_only_what_stands_before_it(tiny: Model) -> None:
    long = fm.attribute_paths(fm.capture(tiny, "The Eiffel Tower is in Paris"), " Paris", position=2)
    assert len(long.tokens) == 3
    assert long.scores.shape[1] == 3
    assert long.error < 1e-4


def test_tables(tiny: Model) -> None:
    paths = fm.attribute_paths(fm.capture(tiny, "The Eiffel Tower is in Paris"), " Paris")
    top = paths.top(7)
    assert list(top.columns) == ["layer", "neuron", "position", "token", "coefficient", "logit", "share"]
    assert top["logit"].abs().is_monotonic_decreasing
    first = top.iloc[0]
    assert first["logit"] == pytest.approx(float(paths.scores[first["layer"], first["position"], first["neuron"]]))
    assert first["coefficient"] == pytest.approx(
        float(paths.coefficients[first["layer"], first["position"], first["neuron"]])
    )
    assert len(paths.neurons) == tiny.n_layers * tiny.d_mlp
    ffn = paths.components.query("component == 'ffn'").set_index("layer")["logit"]
    for layer in range(tiny.n_layers):
        assert float(paths.map[layer].sum()) == pytest.approx(ffn[layer], abs=1e-6)
        of_layer = paths.neurons.query(f"layer == {layer}")["logit"].sum()
        assert of_layer == pytest.approx(ffn[layer], abs=1e-6)
    pd.testing.assert_series_equal(top["share"], top["logit"] / paths.logit, check_names=False)


def test_atlas_finds_the_subject(atlas: Model) -> None:
    # the recall site that training put there: the memories at the subject's last token outweigh every other
    # position before the answer's own
    capture = fm.capture(atlas, PROMPT)
    paths = fm.attribute_paths(capture, " Paris", " Rome")
    by_position = paths.map.sum(0)[:-1]
    assert paths.tokens[int(by_position.argmax())] == " Tower"
    assert float(by_position.max()) > 0.25 * paths.logit
