"""Prompts run once, then again from above any layer with something changed, everything below reused."""

from __future__ import annotations

import inspect
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..core.errors import HookError, UnsupportedModelError
from ..ffn.activations import Activation
from ..ffn.activations import activation as named_activation
from .hooks import OnTensor, OpenBlock, first_tensor, keeper
from .layer_pass import Counterparts, Projections, fuse_gelu, network_around
from .layout import decoder_of
from .model import AGREE, HALF, Model

# `PlainLayers`: a model's layers as plain modules around its own weights, to be run one at a time.


@dataclass(frozen=True)
class PlainParts:
    """The plain modules of one layer; norms are None where it has none."""

    whole: nn.Module
    attention_norm: nn.Module | None
    attention: nn.Module
    attention_out: nn.Module
    attention_post: nn.Module | None
    norm: nn.Module | None
    post: nn.Module | None
    projections: Projections

    @property
    def project_out(self) -> nn.Module:
        """The down projection."""
        return self.projections.out


class PlainLayers:
    """The layers of a model, without its bridge; changes of its weights in place are seen, hooks on it are not.

    Args:
        model: from :func:`ffnmem.load`.
        attention: which implementation of Hugging Face's, ``"sdpa"`` or ``"eager"``; they differ where an architecture
            takes its softmax in float32.

    Attributes:
        body: Hugging Face's decoder, from embeddings to final norm.
        parts: the modules of each layer.
        attention: the implementation in use.

    Raises: UnsupportedModelError: a model under an intervention.
    """

    def __init__(self, model: Model, attention: str = "sdpa") -> None:
        self.model = model
        network: Any
        network, self.attention = network_around(model, model.dtype, attention)
        plain = Counterparts(model, network)
        self.body: Any = decoder_of(network)
        names = inspect.signature(self.body.forward).parameters
        self.cache_name = "cache" if "cache" in names else "past_key_values"  # until transformers 5.23
        self.parts = [
            PlainParts(
                whole=plain(b.whole),
                attention_norm=plain.maybe(b.attention_norm),
                attention=plain(b.attention),
                attention_out=plain(b.attention_out),
                attention_post=plain.maybe(b.attention_post),
                norm=plain.maybe(b.norm),
                post=plain.maybe(b.post),
                projections=plain.projections(layer),
            )
            for layer, b in enumerate(model.layout.blocks)
        ]
        fused = model.dtype != torch.float64
        if fused:
            fuse_gelu(network)
        self.activation = activation(model.ffn[0].activation, fused)
        self.final_norm = plain(model.layout.final_norm)

    def __len__(self) -> int:
        return len(self.parts)

    def run_cached(self, given: dict[str, Tensor], cache: Any) -> Any:
        """The decoder's output for what it is given, with a cache of keys and values to read and to add to."""
        return self.body(**given, **{self.cache_name: cache}, use_cache=True)

    def coefficients(self, layer: int, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_mlp"]:
        """A layer's coefficients for what its FFN reads from the residual stream."""
        part = self.parts[layer]
        pre, linear = part.projections.pre(x if part.norm is None else part.norm(x))
        found: Tensor = self.activation(pre)
        return found if linear is None else found * linear

    def added(self, layer: int, part: str, written: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        """What is added to the residual stream of what a part ("attention" or "ffn") writes."""
        parts = self.parts[layer]
        return self.model.layout.through(parts.attention_post if part == "attention" else parts.post, written)

    def more(
        self,
        layer: int,
        output: Float[Tensor, "*rows d_model"],
        written: Float[Tensor, "*rows d_model"],
        more: Float[Tensor, "*rows d_model"],
    ) -> Float[Tensor, "*rows d_model"]:
        """A layer's output, the residual stream above it, where its FFN writes ``more`` than ``written``."""
        if self.parts[layer].post is None and self.model.layout.write_scale == 1.0:
            return output + more
        return output + (self.added(layer, "ffn", written + more) - self.added(layer, "ffn", written))

    def logits(self, final: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows vocab"]:
        """The logits of what reaches the final norm."""
        return self.model.logits_of(self.final_norm(final))


class Elementwise(nn.Module):
    """An activation that Hugging Face has no module of."""

    def __init__(self, function: Activation) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return self.function(x)


def activation(name: str, fused: bool) -> nn.Module:
    """Hugging Face's activation of a name; a GELU of seven steps as torch's of one, if ``fused``."""
    from transformers.activations import ACT2FN

    if name not in ACT2FN:
        return Elementwise(named_activation(name))
    holder = nn.Sequential(ACT2FN[name])
    if fused:
        fuse_gelu(holder)
    return holder


# `Replay`: prompts run once side by side, then again from above any layer with something changed.
#
# One clean pass records what goes into every layer, how its attention was called, and the keys and values of every
# position; after it, a layer can be run for a batch of changed inputs, and only for the positions from the first
# changed one on. Prompts of different lengths are padded on the left, so that their ends stand in the same column.

BY_POSITION = {"position_ids": 1, "cache_position": 0}  # the dimension of positions
BY_KEY = {"alibi": True, "position_bias": False}  # biases of whole rows of keys, and whether each prompt has its own
PLAIN = (bool, int, float, str, type(None))

Change = Callable[[int, str, int, Tensor, Tensor | None], Tensor]
"""``change(layer, part, first, written, coefficients)``: what a part ("attention" or "ffn") writes from position
``first`` on, perhaps changed; an FFN's coefficients are given with it. Its rows are the first ones of those that run.
"""


class Replay:
    """Prompts of a model, ready to be run again from above any layer.

    Args:
        layers: the model's plain layers.
        tokens: ``[rows, pos]``, each row up to where its last answer is read.
        mask: False at pads, which stand on the left; None where there are none.
        embeddings: token embeddings to begin with, in place of the tokens' own.
        start: the lowest layer whose output will be changed; nothing below it is kept. −1: the embeddings may be.

    Attributes:
        stream: by layer, what goes into it, ``[rows, pos, d_model]``; under ``n_layers`` what goes into the final norm.
        coefficients, attention, ffn: by layer, ``[rows, pos, d_mlp]``, and what attention and FFN write.

    Raises:
        UnsupportedModelError: layers that are not the sum of their input, attention and FFN; attention that takes
            something which is not known. HookError: a module that did not run.
    """

    def __init__(
        self,
        layers: PlainLayers,
        tokens: Int[Tensor, "rows pos"],
        mask: Bool[Tensor, "rows pos"] | None = None,
        *,
        embeddings: Float[Tensor, "rows pos d_model"] | None = None,
        start: int = -1,
    ) -> None:
        self.layers, self.model, self.start = layers, layers.model, start
        self.adds_residual = layers.model.layout.architecture.adds_residual
        self.rows, self.length = tokens.shape
        self.calls: dict[int, dict[str, Any]] = {}
        self.cache: Any = None
        self.stream: dict[int, Tensor] = {}
        self.coefficients: dict[int, Tensor] = {}
        self.attention: dict[int, Tensor] = {}
        self.ffn: dict[int, Tensor] = {}
        self.parallel: dict[int, bool] = {}
        self.record(tokens, mask, embeddings)

    # -- the clean pass ------------------------------------------------------------------------------------------

    def record(self, tokens: Tensor, mask: Tensor | None, embeddings: Tensor | None) -> None:
        from transformers import DynamicCache

        self.cache = DynamicCache()  # which keeps every position: one for sliding windows would forget some

        def copied(tensor: Tensor) -> Tensor:  # Falcon adds to what it is given in place
            return tensor.reshape(self.rows, self.length, -1).clone()

        keep = partial(keeper, shaped=copied)

        def call(layer: int, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.calls[layer] = self.understood(layer, args, kwargs)

        mid: dict[int, Tensor] = {}
        before = [(self.layers.final_norm, keep(self.stream, len(self.layers)))]
        after: list[tuple[nn.Module, OnTensor]] = []
        wanted = range(max(self.start, 0), len(self.layers))
        with OpenBlock() as block, torch.no_grad():
            for layer in wanted:
                part = self.layers.parts[layer]
                before += [
                    (part.whole, keep(self.stream, layer)),
                    (part.projections.modules[0] if part.norm is None else part.norm, keep(mid, layer)),
                    (part.project_out, keep(self.coefficients, layer)),
                ]
                after += [
                    (part.attention_out, keep(self.attention, layer)),
                    (part.project_out, keep(self.ffn, layer)),
                ]
                block.hook(part.attention, partial(call, layer), before=True, with_kwargs=True)
            block.listen(before, after)
            self.layers.run_cached(inputs(tokens, mask, embeddings), self.cache)
        silent = [layer for layer in wanted if layer not in self.coefficients or layer not in self.calls]
        if silent:
            raise HookError(f"{self.model.name}: layer {silent[0]} did not run as its parts")
        self.mask = mask
        self.parallel = {layer: self.check_sum(layer, mid[layer]) for layer in wanted}

    def understood(self, layer: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """How a layer's attention was called, if every part of it is known; its cache as keys and values."""
        known = {"hidden_states", "attention_mask", "position_embeddings", *BY_POSITION, *BY_KEY}
        strange = [
            name
            for name, value in kwargs.items()
            if name not in known and value is not self.cache and not isinstance(value, PLAIN)
        ]
        if len(args) > 1 + self.adds_residual:
            strange.append("positional arguments")
        if not any(value is self.cache for value in kwargs.values()):
            strange.append("no cache")
        if strange:
            raise UnsupportedModelError(
                f"{self.model.name} ({self.model.architecture}): attention of layer {layer} takes "
                f"{', '.join(strange)}, so its layers cannot be run again by themselves: use intervene"
            )
        return {**kwargs, "hidden_states": None} if "hidden_states" in kwargs else dict(kwargs)

    def check_sum(self, layer: int, mid: Tensor) -> bool:
        """Whether a layer's FFN reads beside its attention (True) or after it; else UnsupportedModelError."""
        x = self.stream[layer]
        a = self.layers.added(layer, "attention", self.attention[layer])
        f = self.layers.added(layer, "ffn", self.ffn[layer])
        if self.near(self.stream[layer + 1], x + a + f):
            if self.near(mid, x + a):
                return False
            if self.near(mid, x):
                return True
        raise UnsupportedModelError(
            f"{self.model.name} ({self.model.architecture}): the output of layer {layer} is not the sum of its input, "
            "its attention and its FFN, so its layers cannot be run again by themselves: use intervene"
        )

    def near(self, found: Tensor, expected: Tensor) -> bool:
        if self.mask is not None:
            found, expected = found[self.mask], expected[self.mask]
        allowed = AGREE.get(self.model.dtype, HALF)
        return float((found - expected).abs().max()) <= allowed * max(float(expected.abs().max()), 1e-30)

    # -- runs from above a layer ---------------------------------------------------------------------------------

    def finish(
        self,
        starts: Sequence[int],
        outputs: Float[Tensor, "some after d_model"],
        rows: Int[Tensor, " some"] | None = None,
        *,
        last: int = 1,
        change: Change | None = None,
    ) -> Float[Tensor, "some last d_model"]:
        """What reaches the final norm at the last positions when layers write other outputs.

        Args:
            starts: for each row, ascending, the layer whose output is changed; −1: the embeddings are.
            outputs: that layer's whole output (the residual stream above it) at the last ``after`` positions; those
                before them are as in the clean pass. Gradients pass through.
            rows: the prompt of each; default: of the first prompt where there is one, else as many as prompts.
            last: how many positions to return; at most ``after``.
            change: called with what attention and FFN of every layer that runs write.
        """
        if rows is None:
            steps = 0 if self.rows == 1 else 1
            rows = torch.arange(outputs.shape[0], device=outputs.device) * steps
        first = self.length - outputs.shape[1]
        x, taken = outputs[:0], 0
        for layer in range(starts[0] + 1, len(self.layers)):
            count = bisect_right(starts, layer - 1)
            x = torch.cat([x, outputs[taken:count]])
            taken = count
            kept = last if layer == len(self.layers) - 1 else None
            x = self.run_layer(layer, x, first, rows[:taken], kept, change)
        return torch.cat([x[:, x.shape[1] - last :], outputs[taken:, outputs.shape[1] - last :]])

    def run_layer(
        self,
        layer: int,
        x: Float[Tensor, "some after d_model"],
        first: int,
        rows: Int[Tensor, " some"],
        last: int | None = None,
        change: Change | None = None,
    ) -> Float[Tensor, "some kept d_model"]:
        """One layer on the positions from ``first`` on; with ``last``, its FFN at the last so many alone."""
        norm = self.layers.parts[layer].attention_norm
        a = self.attend(layer, x if norm is None else norm(x), first, rows)
        if change is not None:
            a = change(layer, "attention", first, a, None)
        if last is not None:
            x, a = x[:, x.shape[1] - last :], a[:, a.shape[1] - last :]
            first = self.length - last
        after = x + self.layers.added(layer, "attention", a)
        m = self.layers.coefficients(layer, x if self.parallel[layer] else after)
        written = self.layers.parts[layer].project_out(m)
        written = written if change is None else change(layer, "ffn", first, written, m)
        return after + self.layers.added(layer, "ffn", written)

    def attend(
        self, layer: int, normed: Float[Tensor, "some after d_model"], first: int, rows: Int[Tensor, " some"]
    ) -> Float[Tensor, "some after d_model"]:
        """A layer's attention as it was called in the clean pass, for the positions from ``first`` on."""
        held = None if first == 0 else Prefix(self.cache, layer, first, rows)
        kwargs: dict[str, Any] = {
            name: held if value is self.cache else value for name, value in self.calls[layer].items()
        }
        for name, dimension in BY_POSITION.items():
            if kwargs.get(name) is not None:
                taken = kwargs[name].narrow(dimension, first, self.length - first)
                kwargs[name] = of_rows(taken, rows) if dimension else taken
        if isinstance(angles := kwargs.get("position_embeddings"), Tensor):  # as complex numbers (DeepSeek V2)
            kwargs["position_embeddings"] = of_rows(angles[:, first:], rows)
        elif angles is not None:
            kwargs["position_embeddings"] = tuple(of_rows(t[:, first:], rows) for t in angles)
        mask = kwargs.get("attention_mask")
        if mask is not None:
            kwargs["attention_mask"] = of_rows(mask[:, :, first:], rows)
        elif 0 < first < self.length - 1:  # a fused causal mask would align at the wrong corner
            kwargs["attention_mask"] = causal(self.length, normed.device)[first:].reshape(1, 1, -1, self.length)
        for name, per_row in BY_KEY.items():
            if kwargs.get(name) is not None and per_row:
                heads = kwargs[name].reshape(self.rows, -1, *kwargs[name].shape[1:])
                kwargs[name] = rearrange(of_rows(heads, rows).expand(len(rows), -1, -1, -1), "b h q k -> (b h) q k")
        # What Bloom's would add to its output is the stream, which is added elsewhere here.
        args = [normed, torch.zeros_like(normed)] if self.adds_residual else [normed]
        if "hidden_states" in kwargs:
            kwargs["hidden_states"] = args.pop(0)
        return first_tensor(self.layers.parts[layer].attention(*args, **kwargs))

    def outputs(
        self, layers: Sequence[int], first: int, more: Float[Tensor, "rows some d_model"]
    ) -> Float[Tensor, "rows some d_model"]:
        """Outputs of layers for the first prompt, where each's FFN writes ``more`` from position ``first`` on."""
        found = [
            self.layers.more(layer, self.stream[layer + 1][0, first:], self.ffn[layer][0, first:], own)
            for layer, own in zip(layers, more, strict=True)
        ]
        return torch.stack(found)

    def logits(self, final: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows vocab"]:
        """The logits of what reaches the final norm."""
        return self.layers.logits(final)


class Prefix:
    """A cache as attention modules use one: the clean keys and values of the first positions, for every row."""

    def __init__(self, cache: Any, layer: int, first: int, rows: Int[Tensor, " some"]) -> None:
        held = cache.layers[layer]
        self.keys, self.values = (of_rows(held.keys[:, :, :first], rows), of_rows(held.values[:, :, :first], rows))

    def get_seq_length(self, _layer: int = 0) -> int:
        """As MPT asks to place its position biases."""
        return int(self.keys.shape[-2])

    def update(self, keys: Tensor, values: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        rows = (keys.shape[0], -1, -1, -1)
        return torch.cat([self.keys.expand(rows), keys], -2), torch.cat([self.values.expand(rows), values], -2)


def of_rows(tensor: Tensor, rows: Int[Tensor, " some"]) -> Tensor:
    """What belongs to each row; a tensor that all share stays one."""
    return tensor if tensor.shape[0] == 1 else tensor[rows]


def inputs(tokens: Tensor, mask: Tensor | None, embeddings: Tensor | None) -> dict[str, Tensor]:
    """What Hugging Face's decoders take for prompts that may be padded on the left."""
    given = {"input_ids": tokens} if embeddings is None else {"inputs_embeds": embeddings}
    if mask is not None and not bool(mask.all()):
        given["attention_mask"] = mask.long()
        given["position_ids"] = (mask.long().cumsum(-1) - 1).clamp(min=0)
    return given


def causal(length: int, device: torch.device) -> Bool[Tensor, "query key"]:
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()
