"""One forward pass over texts: of every neuron one number a text, in half precision, and the residual streams."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from tempfile import TemporaryFile
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float16, Float64
from torch import Tensor

from ..core.errors import ModelError
from ..core.progress import Progress
from ..core.types import TextUnit
from ..corpus.batches import Batch, batches_of
from ..models.hooks import listening
from ..models.layer_pass import Counterparts, LayerPass, check_same
from ..models.model import Model
from .texts import TextTokens

BATCH_TOKENS = 2048  # what two cores run fastest
LARGEST = 65504.0  # in half precision


class Units(NamedTuple):
    """What a model computes at texts; it lies in a temporary file, so that memory does not grow with the texts.

    Attributes:
        neurons: by layer, a coefficient of each neuron and text. streams: by layer, the residual stream that it reads,
            averaged over the unit.
        means: by layer, mean coefficients over the tokens of the concept's texts and of the others, a text counting as
            one, whatever the unit.
    """

    neurons: list[Float16[np.ndarray, "d_mlp texts"]]
    streams: list[Float16[np.ndarray, "d_model texts"]]
    means: list[Float64[np.ndarray, "2 d_mlp"]]


def averaging(model: Model, batch: Batch, places: Sequence[np.ndarray]) -> Tensor:
    """Weights ``[texts, 1, pos]`` that average over some places of each text."""
    found = torch.zeros(len(places), 1, batch.tokens.shape[1], dtype=model.dtype)
    for row, some in enumerate(places):
        found[row, 0, torch.from_numpy(some)] = 1 / len(some)
    return found.to(model.device)


def read_units(
    model: Model, rows: Sequence[TextTokens], labels: np.ndarray, unit: TextUnit, progress: Progress | None = None
) -> Units:
    """Read texts. Over experts, the mean of a neuron is over the tokens that are routed to its expert, and 0 where none
    is. Raises ModelError: what the model computes is no number."""
    layers = LayerPass(model)
    check_same(model, layers)
    n, ends = model.n_layers, np.cumsum([0, *model.widths, *[model.d_model] * model.n_layers])
    with TemporaryFile() as file:  # which is there until the array is gone
        whole = np.memmap(file, np.float16, "w+", shape=(int(ends[-1]), len(rows)))
    held, means = [whole[low:high] for low, high in pairwise(ends)], [np.zeros((2, size)) for size in model.widths]
    share = np.stack([labels / labels.sum(), ~labels / (~labels).sum()])
    plain, routed = Counterparts(model, layers.network), dict[int, Tensor]()
    blocks = [plain(block.whole) for block in model.layout.blocks]

    def keep(batch: Batch, at: int, found: Tensor) -> None:
        held[at][:, batch.sequences] = found.float().clamp(-LARGEST, LARGEST).half().cpu().numpy().T

    def take(batch: Batch, weights: Tensor, content: Tensor, layer: int, _pre: Tensor, flat: Tensor) -> None:
        m = flat.reshape(*batch.tokens.shape, -1)
        means[layer] += share[:, batch.sequences] @ torch.bmm(content, m).squeeze(1).double().cpu().numpy()
        found = torch.bmm(weights, m).squeeze(1)
        if unit == "max":
            at = m.abs().masked_fill(weights.transpose(1, 2) == 0, -1).argmax(1, keepdim=True)
            found = m.gather(1, at).squeeze(1)
        elif layer in routed:
            there = torch.bmm(weights, routed.pop(layer).reshape(m.shape).to(m.dtype)).squeeze(1)
            found = torch.where(there > 0, found / there, 0.0)
        keep(batch, layer, found)

    def stream(batch: Batch, weights: Tensor, at: int, x: Tensor) -> None:
        keep(batch, n + at, torch.bmm(weights, x.reshape(*batch.tokens.shape, -1)).squeeze(1))

    def route(layer: int, x: Tensor) -> None:
        mixture = layers.mixtures[layer]
        if mixture is not None:
            routed[layer] = mixture.factors(x.flatten(0, -2)) != 0

    done, every = 0, sum(len(row.ids) for row in rows)
    for batch in batches_of(lambda at: np.array(rows[at].ids), np.arange(len(rows)), BATCH_TOKENS):
        some = [rows[at] for at in batch.sequences]
        weights, content = (
            averaging(model, batch, [getattr(one, name) for one in some]) for name in ("unit", "content")
        )
        with listening([(block, partial(stream, batch, weights, at)) for at, block in enumerate(blocks)]):
            taken = partial(take, batch, weights, content)
            layers.run(torch.from_numpy(batch.tokens).to(model.device), taken, lengths=batch.lengths, on_input=route)
        done += int(batch.lengths.sum())
        if progress is not None:
            progress("text", done, every)
    for layer, mean in enumerate(means):
        if not np.isfinite(mean).all():
            raise ModelError(f"{model.name} gives no numbers (NaN or infinity) in layer {layer}{model.advice}")
    return Units(held[:n], held[n:], means)
