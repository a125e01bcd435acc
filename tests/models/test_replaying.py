"""Many prompts run again from above a layer, against whole forward passes of each by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ffnmem as fm
from ffnmem.core.errors import HookError, UnsupportedModelError
from ffnmem.models.replaying import PlainLayers, Replay

from ..helpers import Pair, allclose, refuses

PROMPTS = [[3, 50, 120, 7, 8, 200, 33, 9, 61, 90], [3, 11, 60, 41], [3, 77, 12, 150, 99, 32, 8]]
TOKENS = torch.tensor([PROMPTS[0]])


def padded() -> tuple[Tensor, Tensor]:
    rows = [torch.tensor(prompt) for prompt in PROMPTS]
    tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_side="left")
    return tokens, tokens != 0


def alone(model: fm.Model, prompt: list[int], layer: int, part: str, delta: Tensor) -> Tensor:
    """What goes into the final norm of one prompt when a part of a layer writes ``delta`` more at its end."""
    found: list[Tensor] = []
    block = model.layout.blocks[layer]
    module = {"ffn": block.project_out, "attention": block.attention, "layer": block.post or block.project_out}[part]

    def more(_module: Any, _args: Any, out: Any) -> Any:
        first = out[0] if isinstance(out, tuple) else out
        changed = first.clone().reshape(len(prompt), -1)
        changed[-len(delta) :] += delta
        changed = changed.reshape(first.shape)
        return (changed, *out[1:]) if isinstance(out, tuple) else changed

    handles = [
        module.register_forward_hook(more),
        model.layout.final_norm.register_forward_pre_hook(lambda _m, args: found.append(args[0][0].detach())),
    ]
    model.body(torch.tensor([prompt]))
    for handle in handles:
        handle.remove()
    return found[0]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("start", [-1, 1])
def test_the_clean_pass_is_the_captured_one(pair64: Pair, start: int) -> None:
    """A pad that is seen, or a position counted from the pads, would change every number."""
    layers = PlainLayers(pair64.model)
    replay, n_layers = Replay(layers, *padded(), start=start), pair64.model.n_layers
    for row, prompt in enumerate(PROMPTS):
        capture = fm.capture(pair64.model, torch.tensor([prompt]), logits=True)
        final = replay.stream[n_layers][row, -len(prompt) :]
        assert allclose(final, capture.residual.final_in[0], pair64.exact())
        assert allclose(replay.logits(final), capture.logits[0], pair64.exact(1e-10))
        assert allclose(replay.coefficients[1][row, -len(prompt) :], capture.coefficients[1][0], pair64.exact())
    assert (0 in replay.stream) is (start == -1)
    assert {*replay.parallel.values()} == {pair64.name == "gpt-neox parallel"}
    for layer, part in enumerate(layers.parts):  # an FFN by itself
        m = layers.activation(capture.pre[layer]) * (capture.linear[layer] if pair64.model.gated else 1)
        assert allclose(m, capture.coefficients[layer], 1e-12)
        assert allclose(part.project_out(m), capture.ffn_out[layer], 1e-12)


def test_rows_restart_from_their_own_prompts(pair64: Pair) -> None:
    """Keys of another prompt, a rotation of the wrong position, a wrong part of the output."""
    replay, after, last = Replay(PlainLayers(pair64.model), *padded()), 3, 2
    rows, starts, deltas = [2, 0, 1, 0], [0, 0, 0, 1], random(4, after, pair64.model.d_model)
    outputs = torch.stack([replay.stream[s + 1][r, -after:] + d for r, s, d in zip(rows, starts, deltas, strict=True)])
    with torch.no_grad():
        found = replay.finish(starts, outputs, torch.tensor(rows), last=last)
    for i, (row, layer) in enumerate(zip(rows, starts, strict=True)):
        expected = alone(pair64.model, PROMPTS[row], layer, "layer", deltas[i])
        assert allclose(found[i], expected[-last:], pair64.exact())


@pytest.mark.parametrize("part", ["ffn", "attention"])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_change_of_a_part(pair64: Pair, part: str, layer: int) -> None:
    """Of what any part writes while the layers run, in the last layer too, where only the last position is computed."""
    replay, delta = Replay(PlainLayers(pair64.model), *padded()), random(pair64.model.d_model, seed=1)
    at = replay.length - 1

    def change(found: int, name: str, first: int, written: Tensor, _m: Tensor | None) -> Tensor:
        changed = written.clone()
        changed[:, at - first] += delta if (found, name) == (layer, part) else 0
        return changed

    with torch.no_grad():
        found = replay.finish([-1] * 3, replay.stream[0], change=change)
    for row, prompt in enumerate(PROMPTS):
        expected = alone(pair64.model, prompt, layer, part, delta.unsqueeze(0))
        assert allclose(found[row, -1], expected[-1], pair64.exact())


@pytest.mark.parametrize("first", [0, 4, TOKENS.shape[1] - 1])
def test_equals_a_whole_pass(pair64: Pair, first: int) -> None:
    """A mask at the wrong corner, a rotation of the wrong position, keys of another row, a layer too many."""
    model = pair64.model  # its softmax is in float32 where attention is eager, and only there
    replay = Replay(PlainLayers(model, "eager" if pair64.rounds_attention else "sdpa"), TOKENS)
    starts, deltas = [0, 0, 1], random(3, replay.length - first, model.d_model, seed=first)
    with torch.no_grad():
        found = replay.finish(starts, replay.outputs(starts, first, deltas))
    # GPT-Neo takes its attention scores in float32 whatever its dtype, so their rounding depends on shapes.
    exact = pair64.exact() if pair64.name in ("gpt-neo", "gemma2") else 1e-12
    for row, layer in enumerate(starts):
        assert allclose(found[row, -1], alone(model, PROMPTS[0], layer, "ffn", deltas[row])[-1], exact)


def test_other_embeddings(tiny: fm.Model) -> None:
    """Noise on token embeddings: positions are added after it, and what is recorded is the noisy run."""
    layers, own = PlainLayers(tiny), tiny.embedding.detach()[TOKENS]
    clean = Replay(layers, TOKENS)
    assert allclose(Replay(layers, TOKENS, embeddings=own).stream[2], clean.stream[2], 1e-6)
    noisy = own.clone()
    noisy[0, 4, 0] += 1.0
    other = Replay(layers, TOKENS, embeddings=noisy)
    assert torch.equal(other.stream[1][0, :4], clean.stream[1][0, :4])
    assert allclose(other.stream[0][0, 4] - clean.stream[0][0, 4], noisy[0, 4] - own[0, 4], 1e-5)
    assert not torch.allclose(other.stream[2][0, -1], clean.stream[2][0, -1])


def take_more(layers: PlainLayers) -> None:
    more = {"strange": torch.ones(1)}
    layers.parts[1].attention.register_forward_pre_hook(lambda _m, a, kw: (a, {**kw, **more}), with_kwargs=True)


def take_away(layers: PlainLayers) -> None:
    layers.body.h = nn.ModuleList([layers.body.h[0]])


OTHERWISE: list[tuple[Callable[[PlainLayers], Any], tuple[str, ...]]] = [
    (take_more, ("layer 1", "strange", "intervene")),
    (lambda it: it.parts[0].whole.register_forward_hook(lambda _m, _a, out: out * 2), ("layer 0", "sum")),
    (take_away, ("layer 1",)),
]


@pytest.mark.parametrize(("change", "says"), OTHERWISE)
def test_layers_that_run_otherwise_are_refused(
    change: Callable[[PlainLayers], Any], says: tuple[str, ...], make_tiny: Callable[..., fm.Model]
) -> None:
    """A block with a norm after its FFN, or an FFN that reads something else, would be run wrongly from above."""
    layers = PlainLayers(make_tiny())
    change(layers)
    missing = change is take_away
    with refuses(HookError if missing else UnsupportedModelError, RuntimeError if missing else ValueError, *says):
        Replay(layers, TOKENS)


def test_refused_under_an_intervention(tiny: fm.Model) -> None:
    """Its hooks are not in the plain layers: the answer would be of another model."""
    with fm.intervene(tiny, {(0, 3): 5.0}), refuses(UnsupportedModelError, ValueError, "0.3 = 5"):
        PlainLayers(tiny)
