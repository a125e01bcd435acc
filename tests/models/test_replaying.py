"""Many prompts run again from above a layer, against whole forward passes of each by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import ffnmem as fm
from ffnmem.core.errors import HookError, UnsupportedModelError
from ffnmem.models.replaying import PlainLayers, Replay

from ..helpers import Pair, allclose, hook_count, refuses

PROMPTS = [[3, 50, 120, 7, 8, 200, 33, 9, 61, 90], [3, 11, 60, 41], [3, 77, 12, 150, 99, 32, 8]]


def padded() -> tuple[Tensor, Tensor]:
    longest = max(map(len, PROMPTS))
    tokens = torch.zeros(len(PROMPTS), longest, dtype=torch.long)
    mask = torch.zeros(len(PROMPTS), longest, dtype=torch.bool)
    for row, prompt in enumerate(PROMPTS):
        tokens[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = True
    return tokens, mask


def replay_of(pair: Pair, start: int = -1) -> Replay:
    return Replay(PlainLayers(pair.model), *padded(), start=start)


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


@pytest.mark.parametrize("start", [-1, 1])
def test_padding_changes_nothing(pair64: Pair, start: int) -> None:
    """A pad that is seen, or a position counted from the pads, would change every number."""
    replay = replay_of(pair64, start)
    for row, prompt in enumerate(PROMPTS):
        capture = fm.capture(pair64.model, torch.tensor([prompt]))
        assert capture.residual is not None
        final = replay.stream[pair64.model.n_layers][row, -len(prompt) :]
        assert allclose(final, capture.residual.final_in[0], pair64.exact())
        assert allclose(replay.coefficients[1][row, -len(prompt) :], capture.coefficients[1][0], pair64.exact())
    assert (0 in replay.stream) is (start == -1)


def test_rows_restart_from_their_own_prompts(pair64: Pair) -> None:
    """Keys of another prompt, a rotation of the wrong position, a wrong part of the output."""
    replay = replay_of(pair64)
    after, last = 3, 2
    rows, starts = torch.tensor([2, 0, 1, 0]), [0, 0, 0, 1]
    deltas = torch.randn(4, after, pair64.model.d_model, generator=torch.Generator().manual_seed(0)).double()
    outputs = torch.stack(
        [replay.stream[s + 1][r, -after:] + d for r, s, d in zip(rows.tolist(), starts, deltas, strict=True)]
    )
    with torch.no_grad():
        found = replay.finish(starts, outputs, rows, last=last)
    for i, (row, layer) in enumerate(zip(rows.tolist(), starts, strict=True)):
        expected = alone(pair64.model, PROMPTS[row], layer, "layer", deltas[i])
        assert allclose(found[i], expected[-last:], pair64.exact())


@pytest.mark.parametrize("part", ["ffn", "attention"])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_change_of_a_part(pair64: Pair, part: str, layer: int) -> None:
    """Of what any part writes while the layers run, in the last layer too, where only the last position is computed."""
    replay = replay_of(pair64)
    delta = torch.randn(pair64.model.d_model, generator=torch.Generator().manual_seed(1)).double()
    at = replay.length - 1

    def change(found: int, name: str, first: int, written: Tensor, _m: Tensor | None) -> Tensor:
        if (found, name) != (layer, part):
            return written
        changed = written.clone()
        changed[:, at - first] += delta
        return changed

    with torch.no_grad():
        found = replay.finish([-1] * 3, replay.stream[0], change=change)
    for row, prompt in enumerate(PROMPTS):
        expected = alone(pair64.model, prompt, layer, part, delta.unsqueeze(0))
        assert allclose(found[row, -1], expected[-1], pair64.exact())


TOKENS = torch.tensor([PROMPTS[0]])


def test_the_clean_pass_is_the_captured_one(pair: Pair) -> None:
    n_layers, replay = pair.model.n_layers, Replay(PlainLayers(pair.model), TOKENS)
    capture = fm.capture(pair.model, TOKENS, logits=True)
    assert capture.residual is not None
    assert capture.logits is not None
    assert allclose(replay.stream[n_layers], capture.residual.final_in, 1e-5)
    assert allclose(replay.logits(replay.stream[n_layers]), capture.logits, 1e-5)
    for layer in range(n_layers):
        assert allclose(replay.coefficients[layer], capture.coefficients[layer], 1e-5)
    assert set(replay.parallel.values()) == {pair.name == "gpt-neox parallel"}


@pytest.mark.parametrize("first", [0, 4, TOKENS.shape[1] - 1])
def test_equals_a_whole_pass(pair64: Pair, first: int) -> None:
    """A mask at the wrong corner, a rotation of the wrong position, keys of another row, a layer too many."""
    model = pair64.model  # its softmax is in float32 where attention is eager, and only there
    replay = Replay(PlainLayers(model, "eager" if pair64.rounds_attention else "sdpa"), TOKENS)
    starts, generator = [0, 0, 1], torch.Generator().manual_seed(first)
    deltas = torch.randn(3, replay.length - first, model.d_model, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        found = replay.finish(starts, replay.outputs(starts, first, deltas))
    # GPT-Neo takes its attention scores in float32 whatever its dtype, so their rounding depends on shapes.
    exact = pair64.exact() if pair64.name in ("gpt-neo", "gemma2") else 1e-12
    for row, layer in enumerate(starts):
        assert allclose(found[row, -1], alone(model, PROMPTS[0], layer, "ffn", deltas[row])[-1], exact)


def test_gradients_pass(tiny: fm.Model) -> None:
    """Against finite differences, through attention, from an earlier position."""
    replay = Replay(PlainLayers(tiny), TOKENS)
    x = replay.stream[1][:, 3:].clone().requires_grad_()
    replay.finish([0], x)[0, -1, 2].backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    step = torch.zeros_like(x)
    step[0, 0, 5] = 1e-2
    with torch.no_grad():
        high, low = (replay.finish([0], x + sign * step)[0, -1, 2] for sign in (1, -1))
    assert float(x.grad[0, 0, 5]) == pytest.approx(float(high - low) / 2e-2, rel=2e-2, abs=1e-4)


def test_shares_the_weights_and_leaves_no_trace(tiny: fm.Model) -> None:
    before = hook_count(tiny.hf_model), tiny.fingerprint
    layers = Replay(PlainLayers(tiny), TOKENS).layers
    assert (hook_count(tiny.hf_model), tiny.fingerprint) == before
    theirs = {p.data_ptr() for p in tiny.hf_model.parameters()}
    assert {p.data_ptr() for part in layers.parts for p in part.project_out.parameters()} <= theirs
    assert sum(hook_count(part.attention) + hook_count(part.project_out) for part in layers.parts) == 0


def test_refused_under_an_intervention(tiny: fm.Model) -> None:
    """Its hooks are not in the plain layers: the answer would be of another model."""
    with fm.intervene(tiny, {(0, 3): 5.0}), refuses(UnsupportedModelError, ValueError, "0.3 = 5"):
        PlainLayers(tiny)


def test_other_embeddings(tiny: fm.Model) -> None:
    """Noise on token embeddings: positions are added after it, and what is recorded is the noisy run."""
    layers = PlainLayers(tiny)
    own = tiny.embedding.detach()[TOKENS]
    clean = Replay(layers, TOKENS)
    assert allclose(Replay(layers, TOKENS, embeddings=own).stream[2], clean.stream[2], 1e-6)
    noisy = own.clone()
    noisy[0, 4, 0] += 1.0
    other = Replay(layers, TOKENS, embeddings=noisy)
    assert torch.equal(other.stream[1][0, :4], clean.stream[1][0, :4])
    assert allclose(other.stream[0][0, 4] - clean.stream[0][0, 4], noisy[0, 4] - own[0, 4], 1e-5)
    assert not torch.allclose(other.stream[2][0, -1], clean.stream[2][0, -1])


@pytest.mark.parametrize("named", ["strange", "no cache"])
def test_attention_that_takes_more_is_refused_by_name(tiny: fm.Model, named: str) -> None:
    layers = PlainLayers(tiny)

    def other(_module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if named == "strange":
            return args, {**kwargs, named: torch.ones(1)}
        return args, {name: None if hasattr(value, "get_seq_length") else value for name, value in kwargs.items()}

    layers.parts[1].attention.register_forward_pre_hook(other, with_kwargs=True)
    with refuses(UnsupportedModelError, ValueError, "layer 1", named, "intervene"):
        Replay(layers, TOKENS)


@pytest.mark.parametrize("part", ["whole", "norm"])
def test_layers_that_are_no_plain_sum_are_refused(tiny: fm.Model, part: str) -> None:
    """A block with a norm after its FFN, or an FFN that reads something else, would be run wrongly from above."""
    layers = PlainLayers(tiny)
    if part == "whole":
        layers.parts[0].whole.register_forward_hook(lambda _m, _args, out: out * 2)
    else:
        layers.parts[0].norm.register_forward_pre_hook(lambda _m, args: (args[0] * 2,))
    with refuses(UnsupportedModelError, ValueError, "layer 0", "sum"):
        Replay(layers, TOKENS)


def test_a_layer_that_does_not_run(make_tiny: Any) -> None:
    layers = PlainLayers(make_tiny())
    layers.body.h = torch.nn.ModuleList([layers.body.h[0]])
    with refuses(HookError, RuntimeError, "layer 1"):
        Replay(layers, TOKENS)
