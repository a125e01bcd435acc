"""Why a router chose an expert: the sum is its own logit, of every mixture, and what is asked wrongly is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError
from ffnmem.models.norms import at_least_float32

from ..architectures import DECODERS, MIXTURES
from ..helpers import PROMPT, refuses

Model = fm.Model


FEW = ("Qwen 2 MoE", "GPT-OSS")


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.exhaustive) for name in MIXTURES]
)
def test_the_sum_is_the_routers_logit(name: str, tokenizer: Any) -> None:
    """Memories would be told to have chosen what they did not, or a part of the stream be left out."""
    model = fm.load(DECODERS[name](), tokenizer=tokenizer, dtype="float64")
    capture = fm.capture(model, [PROMPT, "The city of Paris"])
    layer = model.n_layers - 1
    router = model.ffn[layer].mixture.router
    for expert, against, position in ((0, None, 2), (3, 1, -1)):
        found = fm.prompts.attribute_router(capture, layer, expert, against, position, prompt=0)
        logits = capture.ffn_in[layer][0, found.position] @ router.weight.detach().T
        logits = logits if getattr(router, "bias", None) is None else logits + router.bias.detach()  # GPT-OSS
        expected = float(logits[expert]) - (0.0 if against is None else float(logits[against]))
        assert abs(found.logit - expected) < 1e-10
        # Most routers round weights to float32, and Llama 4 its queries: a last bit before it decides which way.
        assert found.error < 1e-7
        memories = found.components.query("component == 'ffn'")["logit"].sum()
        assert abs(float(found.map.sum()) - memories) < 1e-10
        routed = capture.routing().query(f"layer == {layer} and prompt == 0 and position == {found.position}")
        assert set(found.chosen["expert"]) == set(routed["expert"])


def test_without_a_memory_the_logit_is_less_by_what_it_added(tokenizer: Any) -> None:
    """What a memory of the layer before adds at the position goes through one norm alone."""
    model = fm.load(DECODERS["Mixtral"](), tokenizer=tokenizer, dtype="float64")
    capture = fm.capture(model, PROMPT)
    found = fm.prompts.attribute_router(capture, 1, 3, 1)
    ffn, norm = model.ffn[1], model.norm_before(1)
    assert norm is not None
    assert capture.residual is not None
    stream = capture.residual.embedding[0] + capture.residual.attention[0][0] + capture.ffn_out[0][0]
    stream = at_least_float32(stream + capture.residual.attention[1][0])[-1:]
    weight = ffn.mixture.router.weight.detach()
    row = found.top(None).query(f"position == {found.position}").iloc[0]
    direction = norm.pull((weight[3] - weight[1])[None]) / norm.scale(stream)
    direct = float(row["coefficient"] * (model.ffn[0].values[int(row["neuron"])] @ direction[0]).detach())
    carried = float(row["logit"]) - direct  # by the attention of the router's own layer
    assert abs(direct) > 1e-4
    with torch.no_grad():
        along = torch.zeros(found.position + 1, model.d_model, dtype=torch.float64)
        along[-1] = direction[0]
        pulled, _ = fm.models.attention.frozen_attention(model, capture.tokens[0])[1].pull(along)
    value = model.ffn[0].values[int(row["neuron"])].detach()
    assert abs(carried - float(row["coefficient"] * (value @ pulled[-1]))) < 1e-10


def test_every_layer_of_a_mixture_is_its_own(tokenizer: Any) -> None:
    """A layer read after another would be the other's, which was laid out last."""
    capture = fm.capture(fm.load(DECODERS["Mixtral"](), tokenizer=tokenizer), PROMPT)
    for layer in (0, 1, 0):
        alone = fm.capture(capture.model, PROMPT, layers=layer)
        assert torch.equal(capture.coefficients[layer], alone.coefficients[layer])
    assert fm.circuit(capture, " Paris", nodes=20).error < 1e-4  # edges take what the router gives as it is


REFUSED = [
    (OutOfRangeError, (1, 4), ("expert 4", "0 to 3")),
    (OutOfRangeError, (1, 0, 9), ("against 9",)),
    (InputError, (1, 0, 0), ("against", "0")),
    (OutOfRangeError, (2, 0), ("layer 2",)),
    (OutOfRangeError, (1, 0, None, 99), ("position 99",)),
]


def test_refused(tiny: Model, tokenizer: Any) -> None:
    capture = fm.capture(fm.load(DECODERS["Mixtral"](), tokenizer=tokenizer), PROMPT)
    for error, asked, words in REFUSED:
        with refuses(error, IndexError if error is OutOfRangeError else ValueError, *words):
            fm.prompts.attribute_router(capture, *asked)
    dense = fm.load(DECODERS["Qwen 3 MoE with a dense layer"](), tokenizer=tokenizer)
    cells = fm.causal_scores(fm.capture(dense, PROMPT), " Paris").top(None)  # of the narrower layer, what it has
    assert len(cells) == sum(dense.widths) * cells["position"].nunique()
    for model in (tiny, dense):
        with refuses(InputError, ValueError, "layer 0", "no experts"):
            fm.prompts.attribute_router(fm.capture(model, PROMPT), 0, 0)
