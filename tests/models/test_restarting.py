"""Layers run again from above one of them, against whole forward passes."""

from __future__ import annotations

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import UnsupportedModelError
from ffnmem.models.replaying import Restart

from ..helpers import Pair, allclose, hook_count, refuses

TOKENS = torch.tensor([3, 50, 120, 7, 8, 200, 33, 9, 61, 90])


def exact(pair: Pair) -> float:
    """GPT-Neo takes its attention scores in float32 whatever its dtype, so their rounding depends on shapes."""
    return pair.exact() if pair.name in ("gpt-neo", "gemma2") else 1e-12


def whole_pass(model: fm.Model, layer: int, delta: torch.Tensor) -> torch.Tensor:
    """What goes into the final norm at the last position when a layer's FFN writes ``delta`` more."""
    found: list[torch.Tensor] = []
    handles = [
        model.ffn[layer].project_out.register_forward_hook(lambda _m, _a, out: out + delta.reshape(out.shape)),
        model.layout.final_norm.register_forward_pre_hook(lambda _m, args: found.append(args[0][0, -1].detach())),
    ]
    model.body(TOKENS.unsqueeze(0))
    for handle in handles:
        handle.remove()
    return found[0]


def test_the_clean_pass_is_the_captured_one(pair: Pair) -> None:
    restart = Restart(pair.model, TOKENS)
    capture = fm.capture(pair.model, TOKENS, logits=True)
    assert capture.residual is not None
    assert capture.logits is not None
    assert allclose(restart.stream[-1], capture.residual.final_in[0], 1e-5)
    assert allclose(restart.logits(restart.stream[-1]), capture.logits[0], 1e-5)
    for layer, m in enumerate(restart.coefficients):
        assert allclose(m, capture.coefficients[layer][0], 1e-5)
    assert len(restart.stream) == pair.model.n_layers + 1
    assert set(restart.replay.parallel.values()) == {pair.name == "gpt-neox parallel"}


@pytest.mark.parametrize("first", [0, 4, len(TOKENS) - 1])
def test_equals_a_whole_pass(pair64: Pair, first: int) -> None:
    """A mask at the wrong corner, a rotation of the wrong position, keys of another row, a layer too many."""
    model = pair64.model
    eager = pair64.rounds_attention  # whose softmax is in float32 there, and only there
    restart = Restart(model, TOKENS, "eager" if eager else "sdpa")
    generator = torch.Generator().manual_seed(first)
    starts = [0, 0, 1]
    deltas = torch.randn(3, len(TOKENS), model.d_model, generator=generator, dtype=torch.float64)
    deltas[:, :first] = 0
    with torch.no_grad():
        outputs = restart.outputs(starts, first, deltas[:, first:])
        found = restart.finish(starts, outputs)
    for row, layer in enumerate(starts):
        assert allclose(found[row], whole_pass(model, layer, deltas[row]), exact(pair64))


def test_unchanged_rows_end_as_they_did(pair64: Pair) -> None:
    restart = Restart(pair64.model, TOKENS)
    with torch.no_grad():
        found = restart.finish([0], restart.stream[1].unsqueeze(0))
    assert allclose(found[0], restart.stream[-1][-1], exact(pair64))


def test_gradients_pass(tiny: fm.Model) -> None:
    """Against finite differences, through attention, from an earlier position."""
    restart = Restart(tiny, TOKENS)
    x = restart.stream[1][3:].clone().unsqueeze(0).requires_grad_()
    restart.finish([0], x)[0, 2].backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    step = torch.zeros_like(x)
    step[0, 0, 5] = 1e-2
    with torch.no_grad():
        high, low = (restart.finish([0], x + sign * step)[0, 2] for sign in (1, -1))
    assert float(x.grad[0, 0, 5]) == pytest.approx(float(high - low) / 2e-2, rel=2e-2, abs=1e-4)


def test_shares_the_weights_and_leaves_no_trace(tiny: fm.Model) -> None:
    before = hook_count(tiny.hf_model), tiny.fingerprint
    restart = Restart(tiny, TOKENS)
    assert (hook_count(tiny.hf_model), tiny.fingerprint) == before
    theirs = {p.data_ptr() for p in tiny.hf_model.parameters()}
    assert {p.data_ptr() for part in restart.replay.layers.parts for p in part.project_out.parameters()} <= theirs
    assert sum(hook_count(part.attention) + hook_count(part.project_out) for part in restart.replay.layers.parts) == 0


def test_refused_under_an_intervention(tiny: fm.Model) -> None:
    """Its hooks are not in the plain layers: the answer would be of another model."""
    with fm.intervene(tiny, {(0, 3): 5.0}), refuses(UnsupportedModelError, ValueError, "0.3 = 5"):
        Restart(tiny, TOKENS)
