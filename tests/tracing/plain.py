"""Causal tracing as the published program does it: one whole forward pass with hooks for each cell, nothing shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

FFNS = ("mlp", "fc2")
ATTENTIONS = ("attn", "attention", "self_attn", "self_attention")


def blocks_of(hf: Any) -> Sequence[nn.Module]:
    """The layers of a Hugging Face model: the only list of modules as long as it has layers."""
    lists = (list(module) for module in hf.modules() if isinstance(module, nn.ModuleList))
    return next(found for found in lists if len(found) == hf.config.num_hidden_layers)


def module_of(block: nn.Module, part: str) -> nn.Module:
    if part == "state":
        return block
    children = dict(block.named_children())
    return next(children[name] for name in (FFNS if part == "ffn" else ATTENTIONS) if name in children)


def hooked(change: Callable[[Tensor], None], length: int) -> Callable[..., Any]:
    """A hook that changes a copy of the first tensor of what a module returns, seen as ``[rows, pos, d_model]``."""

    def hook(_module: nn.Module, _args: Any, out: Any) -> Any:
        first = out[0] if isinstance(out, tuple) else out
        changed = first.clone()
        change(changed.view(-1, length, first.shape[-1]))  # OPT flattens rows and positions before its FFN
        return (changed, *out[1:]) if isinstance(out, tuple) else changed

    return hook


def run(
    hf: Any,
    tokens: Sequence[int],
    subject: range,
    noise: Tensor,
    restored: Sequence[tuple[str, int, int]] = (),
    severed: Sequence[tuple[str, int, int]] = (),
    first: dict[tuple[str, int, int], Tensor] | None = None,
) -> Tensor:
    """Logits ``[1 + samples, vocab]`` at the last position: row 0 clean, then a row for each sample of the noise.

    ``restored``: (part, layer, position) that takes what it has in row 0. ``severed``: those that take what they had
    in an earlier pass, kept in ``first`` where that pass filled it.
    """

    def corrupt(x: Tensor) -> None:
        x[1:, subject.start : subject.stop] += noise.to(x)

    def restore(position: int) -> Callable[[Tensor], None]:
        def change(x: Tensor) -> None:
            x[1:, position] = x[0, position]

        return change

    def sever(key: tuple[str, int, int]) -> Callable[[Tensor], None]:
        def change(x: Tensor) -> None:
            assert first is not None
            if key in first:
                x[1:, key[2]] = first[key]
            else:
                first[key] = x[1:, key[2]].clone()

        return change

    handles = [hf.get_input_embeddings().register_forward_hook(hooked(corrupt, len(tokens)))]
    for part, layer, position in restored:
        module = module_of(blocks_of(hf)[layer], part)
        handles.append(module.register_forward_hook(hooked(restore(position), len(tokens))))
    for key in severed:
        handles.append(module_of(blocks_of(hf)[key[1]], key[0]).register_forward_hook(hooked(sever(key), len(tokens))))
    rows = torch.tensor([tokens]).repeat(len(noise) + 1, 1)
    try:
        with torch.no_grad():
            return hf(input_ids=rows, use_cache=False).logits[:, -1]
    finally:
        for handle in handles:
            handle.remove()


def cell(
    hf: Any, tokens: Sequence[int], subject: range, noise: Tensor, kind: str, at: tuple[int, int], window: int
) -> Tensor:
    """Logits with one cell of a map restored; ``at``: layer and position."""
    n_layers, (layer, position) = len(blocks_of(hf)), at
    if kind in ("ffn", "attention"):
        layers = range(max(0, layer - window // 2), min(n_layers, layer - (-window // 2)))
        return run(hf, tokens, subject, noise, [(kind, one, position) for one in layers])
    if kind == "state":
        return run(hf, tokens, subject, noise, [("state", layer, position)])
    part = kind.removeprefix("severed_")
    severed = [(part, one, position) for one in range(layer + 1, n_layers)]
    first: dict[tuple[str, int, int], Tensor] = {}
    run(hf, tokens, subject, noise, (), severed, first)
    return run(hf, tokens, subject, noise, [("state", layer, position)], severed, first)


def trace(
    hf: Any, tokens: Sequence[int], subject: range, noise: Tensor, answer: int, kind: str, window: int
) -> np.ndarray:
    """The whole map of a kind, every position included: mean probabilities of the answer ``[n_layers, pos]``."""
    n_layers = len(blocks_of(hf))
    found = np.zeros((n_layers, len(tokens)))
    for layer in range(n_layers):
        for position in range(len(tokens)):
            logits = cell(hf, tokens, subject, noise, kind, (layer, position), window)
            found[layer, position] = float(logits.double().softmax(-1)[1:, answer].mean())
    return found
