"""``Restart``: a prompt run once, then again from above any layer with something changed, everything below reused.

The layers are those of :mod:`ffnmem.models.bare_body`'s plain network around the model's own weights. One clean pass
records what goes into every layer, how its attention was called, and the keys and values of every position; after it,
a layer can be run for a batch of changed inputs, and only for the positions from the first changed one on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..errors import HookError, UnsupportedModelError
from ..hooks import first_tensor
from .bare_body import AGREE, HALF, fuse_gelu, plain_modules, twin
from .layout import inner
from .model import Model

CACHES = ("past_key_values", "layer_past")
BY_POSITION = {"position_ids": 1, "cache_position": 0}  # the dimension of positions
PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Parts:
    """The plain modules of one layer."""

    attention_norm: nn.Module
    attention: nn.Module
    norm: nn.Module
    project_in: nn.Module
    project_out: nn.Module


class Restart:
    """One prompt of a model, ready to be run again from above any layer.

    Args:
        model: from :func:`ffnmem.load`.
        tokens: ``[pos]``, the prompt up to where the answer is read.
        attention: which implementation of Hugging Face's, ``"sdpa"`` or ``"eager"``; they differ where an architecture
            takes its softmax in float32.

    Attributes:
        stream: ``[pos, d_model]`` for each layer what goes into it, and last what goes into the final norm.
        coefficients: ``[pos, d_mlp]`` for each layer.

    Raises:
        UnsupportedModelError: layers that are not the sum of their input, attention and FFN; attention that takes
            something which is not known; a model under an intervention. HookError: a module that did not run.
    """

    def __init__(self, model: Model, tokens: Int[Tensor, " pos"], attention: str = "sdpa") -> None:
        self.model, self.length = model, len(tokens)
        network, self.attention = twin(model, model.dtype, attention)
        names = {id(module): path for path, module in plain_modules(network, model.bridge.original_model)}
        found = dict(network.named_modules())

        def plain(module: nn.Module) -> nn.Module:
            return found[names[id(inner(module))]]

        self.parts = [
            Parts(*map(plain, (b.attention_norm, b.attention, b.norm, b.project_in, b.project_out)))
            for b in model.layout.blocks
        ]
        self.activation = activation(model.ffn[0].activation, fused=model.dtype != torch.float64)
        self.final_norm = plain(model.layout.final_norm)
        self.calls: list[dict[str, Any]] = []
        self.record(network, tokens)

    # -- the clean pass ------------------------------------------------------------------------------------------

    def record(self, network: nn.Module, tokens: Int[Tensor, " pos"]) -> None:
        seen: dict[tuple[str, int], Tensor] = {}
        calls: dict[int, dict[str, Any]] = {}
        handles = []

        def keep(name: str, layer: int) -> Callable[[Any], None]:
            def receive(value: Any) -> None:
                seen[name, layer] = first_tensor(value).detach().reshape(self.length, -1)

            return receive

        def call(layer: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            calls[layer] = self.understood(layer, args, kwargs)

        def keep_input(module: nn.Module, name: str, layer: int) -> None:
            receive = keep(name, layer)
            handles.append(module.register_forward_pre_hook(lambda _m, args: receive(args[0])))

        def keep_output(module: nn.Module, name: str, layer: int) -> None:
            receive = keep(name, layer)
            handles.append(module.register_forward_hook(lambda _m, _args, out: receive(out)))

        for layer, part in enumerate(self.parts):
            for name, module in (("stream", part.attention_norm), ("mid", part.norm), ("m", part.project_out)):
                keep_input(module, name, layer)
            for name, module in (("attention", part.attention), ("ffn", part.project_out)):
                keep_output(module, name, layer)
            handles.append(
                part.attention.register_forward_pre_hook(lambda _m, a, k, at=layer: call(at, a, k), with_kwargs=True)
            )
        keep_input(self.final_norm, "stream", len(self.parts))
        body: Any = network.base_model
        try:
            with torch.no_grad():
                body(input_ids=tokens.unsqueeze(0), use_cache=True)
        finally:
            for handle in handles:
                handle.remove()
        silent = [layer for layer in range(len(self.parts)) if layer not in calls or ("ffn", layer) not in seen]
        if silent:
            raise HookError(f"{self.model.name}: layer {silent[0]} did not run as its parts")
        self.calls = [calls[layer] for layer in range(len(self.parts))]
        self.stream = [seen["stream", layer] for layer in range(len(self.parts) + 1)]
        self.coefficients = [seen["m", layer] for layer in range(len(self.parts))]
        self.parallel = [self.check_sum(layer, seen) for layer in range(len(self.parts))]

    def understood(self, layer: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """How a layer's attention was called, if every part of it is known; its cache as keys and values."""
        known = {"hidden_states", "attention_mask", "position_embeddings", *CACHES, *BY_POSITION}
        strange = [name for name, value in kwargs.items() if name not in known and not isinstance(value, PLAIN)]
        if len(args) > 1 or strange:
            what = ", ".join(strange) or "positional arguments"
            raise UnsupportedModelError(
                f"{self.model.name} ({self.model.architecture}): attention of layer {layer} takes {what}, so its "
                "layers cannot be run again by themselves: use intervene"
            )
        return {**kwargs, "hidden_states": None} if "hidden_states" in kwargs else dict(kwargs)

    def check_sum(self, layer: int, seen: dict[tuple[str, int], Tensor]) -> bool:
        """Whether a layer's FFN reads beside its attention (True) or after it; else UnsupportedModelError."""
        x, a, f = (seen[name, layer] for name in ("stream", "attention", "ffn"))
        if self.near(seen["stream", layer + 1], x + a + f):
            if self.near(seen["mid", layer], x + a):
                return False
            if self.near(seen["mid", layer], x):
                return True
        raise UnsupportedModelError(
            f"{self.model.name} ({self.model.architecture}): the output of layer {layer} is not the sum of its input, "
            "its attention and its FFN, so its layers cannot be run again by themselves: use intervene"
        )

    def near(self, found: Tensor, expected: Tensor) -> bool:
        allowed = AGREE.get(self.model.dtype, HALF)
        return float((found - expected).abs().max()) <= allowed * max(float(expected.abs().max()), 1e-30)

    # -- runs from above a layer ---------------------------------------------------------------------------------

    def finish(
        self, starts: Sequence[int], outputs: Float[Tensor, "rows some d_model"]
    ) -> Float[Tensor, "rows d_model"]:
        """What reaches the final norm at the last position when layers write other outputs.

        Args:
            starts: for each row, ascending, the layer whose output is changed.
            outputs: that layer's whole output (the residual stream above it) at the last ``some`` positions; those
                before them are as in the clean pass. Gradients pass through.
        """
        first = self.length - outputs.shape[1]
        x, taken = outputs[:0], 0
        for layer in range(starts[0] + 1, len(self.parts)):
            count = bisect_right(starts, layer - 1)
            x = torch.cat([x, outputs[taken:count]])
            taken = count
            x = self.run_layer(layer, x, first, only_last=layer == len(self.parts) - 1)
        return torch.cat([x[:, -1], outputs[taken:, -1]])

    def run_layer(
        self, layer: int, x: Float[Tensor, "rows some d_model"], first: int, only_last: bool = False
    ) -> Float[Tensor, "rows some_of_them d_model"]:
        """One layer on the positions from ``first`` on; with ``only_last``, its FFN at the last position alone."""
        part = self.parts[layer]
        a = self.attend(layer, part.attention_norm(x), first)
        if only_last:
            x, a = x[:, -1:], a[:, -1:]
        after = x + a
        read = x if self.parallel[layer] else after
        return after + part.project_out(self.activation(part.project_in(part.norm(read))))

    def attend(
        self, layer: int, normed: Float[Tensor, "rows some d_model"], first: int
    ) -> Float[Tensor, "rows some d_model"]:
        """A layer's attention as it was called in the clean pass, for the positions from ``first`` on."""
        kwargs = dict(self.calls[layer])
        for name in CACHES:
            if name in kwargs:
                kwargs[name] = None if first == 0 else Prefix(kwargs[name], layer, first)
        for name, dimension in BY_POSITION.items():
            if kwargs.get(name) is not None:
                kwargs[name] = kwargs[name].narrow(dimension, first, self.length - first)
        if kwargs.get("position_embeddings") is not None:
            kwargs["position_embeddings"] = tuple(t[:, first:] for t in kwargs["position_embeddings"])
        mask = kwargs.get("attention_mask")
        if mask is not None:
            kwargs["attention_mask"] = mask[:, :, first:]
        elif 0 < first < self.length - 1:  # a fused causal mask would align at the wrong corner
            kwargs["attention_mask"] = causal(self.length, normed.device)[first:].reshape(1, 1, -1, self.length)
        args = () if "hidden_states" in kwargs else (normed,)
        if not args:
            kwargs["hidden_states"] = normed
        return first_tensor(self.parts[layer].attention(*args, **kwargs))

    def logits(self, final: Float[Tensor, "rows d_model"]) -> Float[Tensor, "rows vocab"]:
        """The logits of what reaches the final norm."""
        return self.model.logits_of(self.final_norm(final))


class Prefix:
    """A cache as attention modules use one: the clean keys and values of the first positions, for every row."""

    def __init__(self, cache: Any, layer: int, first: int) -> None:
        held = cache.layers[layer]
        self.keys, self.values = held.keys[:, :, :first], held.values[:, :, :first]

    def update(self, keys: Tensor, values: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        rows = (keys.shape[0], -1, -1, -1)
        return torch.cat([self.keys.expand(rows), keys], -2), torch.cat([self.values.expand(rows), values], -2)


def causal(length: int, device: torch.device) -> Bool[Tensor, "query key"]:
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def activation(name: str, fused: bool) -> nn.Module:
    """Hugging Face's activation of a name; a GELU of seven steps as torch's of one, if ``fused``."""
    from transformers.activations import ACT2FN

    holder = nn.Sequential(ACT2FN[name])
    if fused:
        fuse_gelu(holder)
    return holder
