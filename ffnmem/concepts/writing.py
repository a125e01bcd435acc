"""Many continuations at once, each row with neurons held or its residual stream pushed; and how likely texts are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ..interventions.changes import LayerChange, make_plan
from ..models.answers import LOGITS, padded, written_on
from ..models.hooks import OpenBlock, UndoList, first_tensor
from ..models.norms import at_least_float32
from ..models.replaying import PlainLayers, inputs

ROWS = 96  # that are written at once


class Run(NamedTuple):
    """How the model is changed: ``held``, the coefficients of neurons; ``push``, by layer, what is added to its output.
    ``what``, ``strength`` and ``draw`` say which run it is."""

    what: str
    strength: float
    draw: int
    held: Mapping[tuple[int, int], float]
    push: Mapping[int, Tensor] = {}


def changed(layers: PlainLayers, runs: Sequence[Run], mask: Tensor) -> OpenBlock:
    """A block in which each row is changed as its run says, by what :func:`ffnmem.intervene` does, at all tokens but
    the beginning of sequence. ``mask``: of the first pass, False at pads on the left."""
    first, begun = mask & (mask.cumsum(1) > int(layers.model.prepend_bos)), set[int]()
    plan = make_plan(layers.model, [run.held for run in runs]) if any(run.held for run in runs) else None
    pushes = {at: torch.zeros(len(runs), len(one)).to(one) for run in runs for at, one in run.push.items()}
    for row, run in enumerate(runs):
        for at, vector in run.push.items():
            pushes[at][row] = vector

    def cells(module: nn.Module) -> Tensor | None:
        """Where to change in a module's first pass; all that is behind it is changed."""
        if id(module) in begun:
            return None
        begun.add(id(module))
        return first

    def hold(change: LayerChange, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        m = args[0]  # OPT flattens batch and position
        return (change.applied(m.reshape(len(runs), -1, m.shape[-1]), cells(module)).reshape(m.shape), *args[1:])

    def add(vectors: Tensor, module: nn.Module, _args: Any, out: Any) -> Any:
        where, more = cells(module), vectors.unsqueeze(1)
        pushed = first_tensor(out) + (more if where is None else more * where.unsqueeze(-1))
        return (pushed, *out[1:]) if isinstance(out, tuple) else pushed

    def begin(undo: UndoList) -> None:
        for layer, change in (plan.layers if plan else {}).items():
            undo.hook(layers.parts[layer].project_out, partial(hold, change), before=True)
        for layer, vectors in pushes.items():
            undo.hook(layers.parts[layer].whole, partial(add, vectors))

    return OpenBlock(begin)


def write_on(
    layers: PlainLayers, runs: Sequence[Run], prompts: Sequence[list[int]], new: int, temperature: float, seed: int
) -> list[list[list[int]]]:
    """By run and prompt, ``new`` tokens that are no special ones. What is drawn is the same for a prompt in every run,
    so that where nothing is changed the same is written."""
    model, found = layers.model, list[list[int]]()
    special = [one for one in model.special_token_ids if one < model.d_vocab]
    every = [(run, at) for run in runs for at in range(len(prompts))]
    for begin in range(0, len(every), ROWS):
        some = every[begin : begin + ROWS]
        generator, texts = torch.Generator().manual_seed(seed), [prompts[at] for _, at in some]
        owners = torch.tensor([at for _, at in some])

        def pick(_step: int, logits: Tensor, generator: Any = generator, owners: Tensor = owners) -> Tensor:
            drawn = torch.rand(len(prompts), logits.shape[-1], generator=generator).clamp_(1e-20, 1 - 1e-7)
            scores = at_least_float32(logits).cpu() / temperature - drawn.log().neg().log()[owners]
            scores[:, special] = -torch.inf
            return scores.argmax(-1).to(logits.device)

        with changed(layers, [run for run, _ in some], padded(texts, model.device)[1]):
            found += written_on(layers, texts, [new] * len(some), pick)
    return [found[at : at + len(prompts)] for at in range(0, len(found), len(prompts))]


@torch.no_grad()
def mean_logs(
    layers: PlainLayers, context: Sequence[int], rows: Sequence[Sequence[int]], run: Run | None = None
) -> Float64[Tensor, " rows"]:
    """The mean log-probability, in nats a token, of the tokens of each row behind a context; without one, of those
    behind its first. ``run``: how the model is changed, where the context is no more than the beginning of sequence."""
    from transformers import DynamicCache

    device, cache, whole = layers.model.device, DynamicCache(), [[*context[-1:], *row] for row in rows]
    lengths = torch.tensor([len(row) for row in whole], device=device)
    width = int(lengths.max())
    tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in whole], device=device)
    if len(context) > 1:
        layers.run_cached(inputs(torch.tensor([context[:-1]], device=device), None, None), cache)
        cache.batch_repeat_interleave(len(rows))
    with changed(layers, [run] * len(rows) if run else [], torch.ones_like(tokens, dtype=torch.bool)):
        final = layers.run_cached({"input_ids": tokens}, cache).last_hidden_state[:, :-1]
    at_once = max(1, LOGITS // (layers.model.d_vocab * width))
    parts = [
        at_least_float32(layers.model.logits_of(one)).log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1).double()
        for one, ids in zip(torch.split(final, at_once), torch.split(tokens[:, 1:], at_once), strict=True)
    ]
    there = torch.arange(1, width, device=device) < lengths.unsqueeze(1)
    return (torch.cat(parts) * there).sum(1).cpu() / there.sum(1).cpu()
