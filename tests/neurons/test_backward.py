"""The pass forward and back: gradients of every architecture against autograd through the Hugging Face model."""

from __future__ import annotations

from typing import Any

import torch

import ffnmem as fm
from ffnmem.core.errors import UnsupportedModelError
from ffnmem.ffn.activations import activation
from ffnmem.neurons.health import Passes, answering, scored_places

from ..helpers import Pair, allclose, hook_count, refuses

TOKENS = torch.tensor([[0, 5, 9, 40, 7, 3], [0, 8, 2, 6, 0, 0]])
CONTENT = torch.tensor([[0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 0, 0]]).bool()


def brute(
    pair: Pair, tokens: torch.Tensor, scored: torch.Tensor
) -> tuple[float, list[torch.Tensor], list[torch.Tensor]]:
    """The summed loss, and its gradient at coefficients and pre-activations, by autograd from the embedding up."""
    pres: list[torch.Tensor] = []
    ms: list[torch.Tensor] = []

    def keep(into: list[torch.Tensor], tensor: torch.Tensor) -> None:
        tensor.retain_grad()
        into.append(tensor)

    handles = []
    model = pair.model.hf_model
    for ffn in pair.model.ffn:
        front = ffn.project_in if ffn.project_gate is None else ffn.project_gate
        handles.append(front.register_forward_hook(lambda _m, _a, out: keep(pres, out)))
        handles.append(ffn.project_out.register_forward_pre_hook(lambda _m, args: keep(ms, args[0])))
    grads = [p.requires_grad for p in model.parameters()]
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    try:
        with torch.enable_grad():
            log = model(input_ids=tokens).logits.double().log_softmax(-1)
            each = -log[:, :-1].gather(2, tokens[:, 1:, None])[..., 0]
            loss = each[scored[:, :-1]].sum()
            loss.backward()
    finally:
        for handle in handles:
            handle.remove()
        for parameter, grad in zip(model.parameters(), grads, strict=True):
            parameter.requires_grad_(grad)
            parameter.grad = None
    found = [[t.grad.reshape(tokens.numel(), -1) for t in tensors if t.grad is not None] for tensors in (pres, ms)]
    return float(loss.detach()), found[0], found[1]


def test_equals_brute_force(pair64: Pair) -> None:
    """Flow would be of another loss, other positions, or of a graph with a part missing."""
    model = pair64.model
    scored = scored_places(CONTENT)
    loss, of_pre, of_m = brute(pair64, TOKENS, scored)
    gradients: dict[int, torch.Tensor] = {}
    slopes: dict[int, torch.Tensor] = {}

    def on_layer(layer: int, pre: torch.Tensor, _m: torch.Tensor, linear: torch.Tensor | None) -> None:
        slope = activation(model.ffn[layer].activation).gradient(pre)
        slopes[layer] = slope if linear is None else slope * linear

    found = Passes(model).run(TOKENS, on_layer, gradients.__setitem__, scored)
    tolerance = pair64.exact(1e-10)
    assert allclose(found, loss, tolerance)
    assert len(gradients) == len(of_m) == model.n_layers
    for layer, gradient in gradients.items():
        assert allclose(gradient, of_m[layer], tolerance)
        assert allclose(gradient * slopes[layer], of_pre[layer], tolerance)
        assert float(gradient.abs().max()) > 1e-3


def test_without_the_way_back(tiny: fm.Model) -> None:
    """What is seen of the layers would depend on whether gradients are asked for."""
    seen: list[list[Any]] = [[], []]
    passes = Passes(tiny)
    for into, back in zip(seen, (None, lambda _layer, _gradient: None), strict=True):
        passes.run(TOKENS, lambda *layer, into=into: into.append(layer), back, scored_places(CONTENT))
    for (layer, pre, m, linear), (other, theirs, coefficients, none) in zip(*seen, strict=True):
        assert layer == other
        assert linear is none is None
        assert torch.equal(pre, theirs)
        assert torch.equal(m, coefficients)
    assert passes.run(TOKENS, lambda *_: None) == 0.0


def test_nothing_is_left_behind(tiny: fm.Model) -> None:
    """Hooks that leak, or gradients left in the model's parameters."""
    passes = Passes(tiny)
    before = hook_count(passes.layers.body)
    passes.run(TOKENS, lambda *_: None, lambda *_: None, scored_places(CONTENT))
    assert hook_count(passes.layers.body) == before
    assert all(parameter.grad is None for parameter in tiny.hf_model.parameters())


def test_few_logits_at_once(tiny: fm.Model, monkeypatch: Any) -> None:
    """A large vocabulary would change the loss, which is summed piece by piece."""

    def run() -> tuple[float, torch.Tensor]:
        found: dict[int, torch.Tensor] = {}
        loss = Passes(tiny).run(TOKENS, lambda *_: None, found.__setitem__, scored_places(CONTENT))
        return loss, found[0]

    whole = run()
    monkeypatch.setattr("ffnmem.neurons.health.LOGITS", 1)
    parts = run()
    assert allclose(whole[0], parts[0], 1e-6)
    assert allclose(whole[1], parts[1], 1e-5)


def test_where_predictions_count() -> None:
    """Pads, BOS or a special token in the middle would be predicted; or the last position count as one without flow."""
    content = torch.tensor([[0, 1, 1, 0, 1, 0], [0, 1, 0, 0, 0, 0]]).bool()
    scored = scored_places(content)
    assert scored.int().tolist() == [[1, 1, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0]]
    assert answering(content, scored).int().tolist() == [[0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]]


def test_interventions_are_refused(make_tiny: Any) -> None:
    """The layers by themselves would not show them."""
    model = make_tiny()
    with fm.intervene(model, {(0, 3): 0.0}), refuses(UnsupportedModelError, ValueError, "intervention"):
        Passes(model)
