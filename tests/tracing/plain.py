"""Tracing, silencing and knockout as published programs do them: one whole forward pass with hooks for each cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ffnmem.models.norms import widen
from ffnmem.tracing import Knockout, Silencing, Trace

FFNS = ("mlp", "fc2", "ffn", "feed_forward", "block_sparse_moe")
ATTENTIONS = ("attn", "attention", "self_attn", "self_attention")
ADDED = {"BloomMLP": "dense_4h_to_h", "BloomAttention": "dense", "MptMLP": "down_proj"}
"""Modules that return the residual stream with what these write added."""
LOWEST = torch.finfo(torch.float32).min
Changes = Iterable[tuple[nn.Module, Callable[[Tensor], Any]]]
"""Modules, and what is done in place to ``[rows, pos, d_model]`` that each returns."""


class Passes:
    """Whole passes of a Hugging Face model over the prompt of a map and its answer."""

    def __init__(self, hf: Any, found: Trace | Silencing | Knockout, prompt: Sequence[int], rows: int = 1) -> None:
        widen(hf)  # float64 models count their norms in float64
        if isinstance(found, Knockout):
            hf.config._attn_implementation = "eager"
        self.hf, self.found, self.rows, self.ids = hf, found, rows, list(found.answer_ids)
        self.tokens = [*prompt, *self.ids[:-1]]
        lists = (list(module) for module in hf.modules() if isinstance(module, nn.ModuleList))
        self.blocks = next(some for some in lists if len(some) == hf.config.num_hidden_layers)

    def module(self, layer: int, part: str) -> nn.Module:
        children = {**dict(self.blocks[layer].named_children()), "state": self.blocks[layer]}
        names = {"ffn": FFNS, "attention": ATTENTIONS, "state": ("state",)}[part]
        found = next(children[name] for name in names if name in children)
        own = "" if isinstance(self.found, Knockout) else ADDED.get(type(found).__name__, "")
        return getattr(found, own, found)

    def window(self, layer: int) -> range:
        """As the published program has it."""
        return range(max(0, layer - self.found.window // 2), min(len(self.blocks), layer - (-self.found.window // 2)))

    def chances(self, changes: Changes = (), unseen: Iterable[tuple[nn.Module, Sequence[int]]] = ()) -> Tensor:
        """The probability of the answer in each row, with outputs changed, and with positions that attention does not
        see from where the answer is read."""
        reads = len(self.ids)
        with ExitStack() as hooks, torch.no_grad():
            for module, change in changes:
                hooks.callback(module.register_forward_hook(self.changing(change)).remove)
            for module, positions in unseen:
                hooks.callback(
                    module.register_forward_pre_hook(self.masking(positions, reads), with_kwargs=True).remove
                )
            logits = self.hf(input_ids=torch.tensor([self.tokens] * self.rows), use_cache=False).logits[:, -reads:]
        return logits.double().softmax(-1)[:, range(reads), self.ids].prod(-1)

    def changing(self, change: Callable[[Tensor], Any]) -> Callable[..., Any]:
        def hook(_module: nn.Module, _args: Any, out: Any) -> Any:
            first = (out[0] if isinstance(out, tuple) else out).clone()
            change(first.view(self.rows, len(self.tokens), -1))  # OPT flattens rows and positions before its FFN
            return (first, *out[1:]) if isinstance(out, tuple) else first

        return hook

    def masking(self, positions: Sequence[int], reads: int) -> Callable[..., Any]:
        def hook(_module: nn.Module, args: Any, kwargs: Any) -> Any:
            mask, length = kwargs.get("attention_mask"), len(self.tokens)
            if mask is None:  # as Hugging Face leaves it out where it is causal alone
                triangle = torch.ones(length, length).triu(1).bool()[None, None]
                mask = torch.zeros(1, 1, length, length, dtype=torch.float64).masked_fill(triangle, LOWEST)
            mask = mask.clone()  # MPT's is true where nothing is seen
            mask[:, :, -reads:, list(positions)] = True if mask.dtype == torch.bool else LOWEST
            return args, {**kwargs, "attention_mask": mask}

        return hook


def put(positions: Sequence[int], value: Tensor) -> Callable[[Tensor], None]:
    """Write a value at some positions, in all rows that it is of."""

    def change(x: Tensor) -> None:
        x[-len(value) :, list(positions)] = value.to(x)

    return change


def trace(hf: Any, found: Trace, prompt: Sequence[int], noise: Tensor) -> dict[str, np.ndarray]:
    """Row 0 clean, then a row for each sample of the noise; every position is restored, before the subject too."""
    passes, written = Passes(hf, found, prompt, 1 + len(noise)), {}
    subject = slice(found.subject.start, found.subject.stop)
    corrupt = (hf.get_input_embeddings(), lambda x: x[1:, subject].add_(noise.to(x)))
    places = [(part, layer) for part in ("state", "ffn", "attention") for layer in range(len(passes.blocks))]

    def keep(part: str, layer: int) -> Callable[[Tensor], None]:
        return lambda x: written.update({(part, layer): x.clone()})

    passes.chances([corrupt, *((passes.module(layer, part), keep(part, layer)) for part, layer in places)])

    def clean(part: str, layer: int, position: int) -> Any:
        value = written[part, layer][:1, [position]].repeat(len(noise), 1, 1)
        return passes.module(layer, part), put([position], value)

    def changes(kind: str, layer: int, position: int) -> Changes:
        if kind in ("ffn", "attention"):
            return [clean(kind, one, position) for one in passes.window(layer)]
        return [clean("state", layer, position)]

    return {
        kind: np.array(
            [
                [float(passes.chances([corrupt, *changes(kind, layer, at)])[1:].mean()) for at in range(len(prompt))]
                for layer in range(len(passes.blocks))
            ]
        )
        for kind in found.kinds
    }


def silence(hf: Any, found: Silencing, prompt: Sequence[int]) -> dict[str, np.ndarray]:
    passes = Passes(hf, found, prompt)

    def cell(kind: str, layer: int, positions: Sequence[int]) -> float:
        def nothing(x: Tensor) -> None:
            x[:, list(positions)] = 0

        return float(passes.chances([(passes.module(one, kind), nothing) for one in passes.window(layer)]))

    layers = range(len(passes.blocks))
    return {
        kind: np.array([[cell(kind, one, place.positions) for place in found.places] for one in layers])
        for kind in found.kinds
    }


def knockout(hf: Any, found: Knockout, prompt: Sequence[int]) -> dict[str, np.ndarray]:
    passes = Passes(hf, found, prompt)

    def cell(layer: int, positions: Sequence[int]) -> float:
        unseen = [(passes.module(one, "attention"), positions) for one in passes.window(layer)]
        return float(passes.chances(unseen=unseen))

    layers = range(len(passes.blocks))
    return {"edges": np.array([[cell(one, place.positions) for place in found.places] for one in layers])}
