"""One attention layer as a linear map of what stands at each position: its pattern and its norm's scale are frozen.

Nothing is read off attention's weights, which every architecture keeps in its own way. The layer's own module is run
once more with its softmax giving the recorded pattern; what is left is linear in the input, and its transpose is the
gradient. Hooks that change values on the way are part of it.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..core.errors import HookError, UnsupportedModelError, listed
from .architectures import setting
from .hooks import OnTensor, first_tensor, keeper, listening
from .layout import Half, LayerModules, inner
from .model import AGREE, HALF, Model
from .norms import NormMap, at_least_float32
from .residual import pull

SOFTMAX = (torch.softmax, Tensor.softmax, nn.functional.softmax)
MASKED = -3e4  # below it are scores that the model itself masks, in half precision too


class Softmax(TorchFunctionMode):
    """A block in which this thread's softmax is recorded, and gives ``instead``, or a ``constant`` to gradients."""

    def __init__(self, instead: Tensor | None = None, constant: bool = False) -> None:
        super().__init__()
        self.instead, self.constant = instead, constant
        self.found: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in SOFTMAX:
            return func(*args, **(kwargs or {}))
        if self.instead is not None:
            return self.instead
        pattern = func(*args, **(kwargs or {}))
        self.found.append(pattern.detach())
        return pattern.detach() if self.constant else pattern


class Blocking(TorchFunctionMode):
    """A block in which this thread's softmax is taken without some keys, as a masked forward pass takes it.

    Args:
        hidden: ``[rows, key]``, True at the keys that each row's last queries do not see. What stands beside the keys
            in the softmax (attention sinks) stays.
        queries: how many.

    Attributes:
        taken: how often there was a softmax.
        empty: rows that were left without any key.
    """

    def __init__(self, hidden: Bool[Tensor, "rows key"], queries: int = 1) -> None:
        super().__init__()
        self.hidden, self.queries = hidden, queries
        self.taken = 0
        self.empty: list[int] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func not in SOFTMAX:
            return func(*args, **kwargs)
        self.taken += 1
        scores = args[0] if args else kwargs.pop("input")
        return func(self.blocked(scores), *args[1:], **kwargs)

    def blocked(self, scores: Float[Tensor, "*heads query key"]) -> Float[Tensor, "*heads query key"]:
        """Scores that are −∞ where the last queries must not look."""
        rows, keys = self.hidden.shape
        found = scores.reshape(rows, -1, *scores.shape[-2:]).clone()  # some have rows and heads in one dimension
        last = found[:, :, -self.queries :]
        last[..., :keys].masked_fill_(self.hidden[:, None, None], -torch.inf)
        self.empty += [row for row in range(rows) if bool((last[row] < MASKED).all(-1).any())]
        return found.reshape(scores.shape)


class Product(NamedTuple):
    """A product with a weight: ``rows [*n, d_in]`` · ``weight``, as the function takes it, + ``bias``."""

    rows: Tensor
    weight: Tensor
    bias: Tensor | None
    oriented: Float[Tensor, "d_in d_out"]


def product_in(func: Any, args: tuple[Any, ...], kwargs: Any) -> Product | None:
    """The product that linear and Conv1D modules take, in a call of some function; None in others."""
    if func is nn.functional.linear and 2 <= len(args) <= 3 and not kwargs:
        return Product(args[0], args[1], args[2] if len(args) == 3 else None, args[1].T)
    if func is torch.addmm and len(args) == 3 and not kwargs:
        return Product(args[1], args[2], args[0], args[2])
    return None


class ZeroProduct(torch.autograd.Function):
    """The product of rows of zeros: its bias. Its gradient is any product's."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, oriented: Tensor, bias: Tensor | None) -> Tensor:
        ctx.oriented = oriented.detach()
        found = rows.new_zeros(*rows.shape[:-1], oriented.shape[1])
        return found if bias is None else found + bias.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] @ ctx.oriented.T, None, None


class OfNothing(TorchFunctionMode):
    """A block in which this thread takes no products of zeros: they are their biases."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        product = product_in(func, args, kwargs)
        if product is None or bool(product.rows.any()):
            return func(*args, **(kwargs or {}))
        return ZeroProduct.apply(product.rows, product.oriented, product.bias)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, eq=False)
class KnownFFNs:
    """What the FFNs of a pass are known to compute, so that they need not run again.

    Attributes:
        pre, linear, out: by layer, what gates (of classic FFNs keys), keys of gated ones, and values give.
        final_in: ``[pos, d_model]``, what such a pass brings to the final norm.
    """

    pre: Mapping[int, Float[Tensor, "pos d_mlp"]]
    linear: Mapping[int, Float[Tensor, "pos d_mlp"]]
    out: Mapping[int, Float[Tensor, "pos d_model"]]
    final_in: Float[Tensor, "pos d_model"]

    def products(self, model: Model) -> Products | None:
        """The products that need not be taken; None where a projection may give something else than one product, or
        has hooks, which would act once more on what they gave."""
        found: dict[tuple[int, torch.Size], Tensor] = {}
        for layer, block in enumerate(model.layout.blocks):
            parts = [(block.project_out, self.out)]
            if block.project_gate is None:
                parts.append((block.project_in, self.pre))
            else:
                parts += [(block.project_gate, self.pre), (block.project_in, self.linear)]
            for module, known in parts:
                weight = product_of(module)
                if weight is None or Products.key(weight) in found:
                    return None
                found[Products.key(weight)] = known[layer]
        return Products(found)

    def led_to(self, final: Float[Tensor, "pos d_model"]) -> bool:
        """Whether a pass came to the same."""
        found, expected = at_least_float32(final), at_least_float32(self.final_in)
        off = (found - expected).norm(dim=-1) / expected.norm(dim=-1).clamp(min=1e-30)
        return float(off.max()) <= AGREE.get(final.dtype, HALF)


def product_of(module: nn.Module) -> Tensor | None:
    """The weight of a projection that gives one product with it and nothing else; None where it may do more."""
    from transformers.pytorch_utils import Conv1D

    own = inner(module)
    if type(own) not in (nn.Linear, Conv1D, Half) or "forward" in vars(own):
        return None
    if any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
        return None
    weight = own.weight
    assert isinstance(weight, Tensor)
    return weight


class Products(TorchFunctionMode):
    """A block in which this thread's products with some weights are given, not taken.

    Args:
        known: ``[rows, d_out]`` by :meth:`key` of the weight.
    """

    def __init__(self, known: Mapping[tuple[int, torch.Size], Float[Tensor, "rows d_out"]]) -> None:
        super().__init__()
        self.known = known

    @staticmethod
    def key(weight: Tensor) -> tuple[int, torch.Size]:
        """What tells a weight from others, whichever view of it is asked."""
        return weight.data_ptr(), weight.shape

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        product = product_in(func, args, kwargs)
        if product is not None:
            rows = product.rows.shape[:-1]
            known = self.known.get(self.key(product.weight))
            if known is not None and len(known) == rows.numel():
                return known.reshape(*rows, -1).clone()  # Falcon adds to it in place
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True, eq=False)
class FrozenAttention:
    """Attention output at t = Σ_heads Σ_p A[t, p] · LN(x_p)·W_V·W_O + biases, with A and LN's scale as they were.

    Attributes:
        attention: the module, called as it was: with ``args``, ``kwargs``, but with another first input, ``normed``.
        out: the part of it whose output it writes, by its name within; empty for its own.
        pattern: ``[1, head, query, key]``, the attention weights A, as its softmax gave them.
        normed: ``[1, pos, d_model]``, what it read.
        norm: in front of attention; None where it reads the stream as it is. scale: ``[pos]``, its σ.
        post: behind attention, or None. written: ``[pos, d_model]``, what it then normed. factor: of what is added.
    """

    attention: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: str
    pattern: Tensor
    normed: Float[Tensor, "1 key d_model"]
    norm: NormMap | None
    scale: Float[Tensor, " key"]
    post: NormMap | None
    written: Float[Tensor, "query d_model"]
    factor: float

    def pull(
        self, directions: Float[Tensor, "*batch query d_model"]
    ) -> tuple[Float[Tensor, "*batch key d_model"], Float[Tensor, "*batch"]]:
        """Carry directions at the output back to the input, one set of them or a batch of sets at once.

        Returns, for each position p, the direction along which the residual stream at p reaches the given directions
        through this layer, and the constant that the layer's biases add.
        """
        directions = pull(self.post, self.factor, directions, self.written)
        nothing = torch.zeros_like(at_least_float32(self.normed)).requires_grad_()
        with torch.enable_grad(), OfNothing():
            biases = at_least_float32(self.run(nothing)).reshape(directions.shape[-2:])
            (carried,) = torch.autograd.grad(
                biases, nothing, directions.to(biases.dtype), is_grads_batched=directions.ndim > 2
            )
        carried = carried.reshape(directions.shape).to(directions.dtype)
        constant = (biases.detach().to(directions.dtype) * directions).sum((-2, -1))
        if self.norm is None:
            return carried, constant
        constant = constant + self.norm.constant(carried).sum(-1).to(constant)
        return self.norm.pull(carried) / self.scale.unsqueeze(-1), constant

    @property
    def n_heads(self) -> int:
        return self.pattern.shape[:-2].numel()

    def only(self, head: int | None) -> FrozenAttention:
        """The same with one head alone, the others writing nothing; None: with none, so that its output bias stays."""
        pattern = torch.zeros_like(self.pattern)
        if head is not None:
            pattern[:, head] = self.pattern[:, head]
        return replace(self, pattern=pattern)

    @torch.no_grad()
    def writes(self) -> Float[Tensor, "query d_model"]:
        """Its output, before a norm behind it."""
        found = self.run(at_least_float32(self.normed))
        return at_least_float32(found).reshape(-1, found.shape[-1])

    def run(self, normed: Float[Tensor, "1 pos d_model"]) -> Tensor:
        """What attention writes where it reads this and looks where it looked."""
        attention, args, kwargs = self.attention, self.args, self.kwargs
        if normed.dtype != self.normed.dtype:  # half precision, which sums are not taken in
            attention = copy.deepcopy(attention).to(normed.dtype)
            args, kwargs = widened(args, normed.dtype), widened(kwargs, normed.dtype)
        if "hidden_states" in kwargs:
            kwargs = {**kwargs, "hidden_states": normed}
        else:
            args = (normed, *args[1:])
        written: list[Tensor] = []
        output = attention.get_submodule(self.out)
        with listening(outputs=[(output, written.append)]), Softmax(self.pattern.to(normed.dtype)):
            attention(*args, **kwargs)
        return written[0]


def widened(value: Any, dtype: torch.dtype) -> Any:
    """What a module was called with, its tensors of numbers in another type."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {name: widened(one, dtype) for name, one in value.items()}
    return tuple(widened(one, dtype) for one in value) if isinstance(value, tuple) else value


class Calls:
    """How the attention layers of a model are called in one pass of this thread, and what their softmax gives."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.given: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self.patterns: dict[int, Tensor] = {}
        self.running: Softmax | None = None

    def begin(self, layer: int, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() != self.thread:
            return
        self.given[layer] = (args, kwargs)
        self.running = Softmax()
        self.running.__enter__()  # type: ignore[no-untyped-call]

    def end(self, layer: int, _module: nn.Module, _args: Any, output: Any) -> None:
        if threading.get_ident() != self.thread:
            return
        running, self.running = self.running, None
        if running is not None:
            running.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            if output is not None and len(running.found) == 1:
                self.patterns[layer] = running.found[0]

    @contextmanager
    def recorded(self, blocks: tuple[LayerModules, ...]) -> Iterator[None]:
        """Record what runs inside the block."""
        handles: list[Any] = []
        try:
            for layer, block in enumerate(blocks):
                handles += [
                    block.attention.register_forward_pre_hook(partial(self.begin, layer), with_kwargs=True),
                    block.attention.register_forward_hook(partial(self.end, layer), always_call=True),
                ]
            yield
        finally:
            for handle in handles:
                handle.remove()
            running, self.running = self.running, None
            if running is not None:  # an interrupt, of which a module tells no hook
                running.__exit__(None, None, None)  # type: ignore[no-untyped-call]


def frozen_attention(model: Model, tokens: Tensor, known: Passed | KnownFFNs | None = None) -> list[FrozenAttention]:
    """Every attention layer of one forward pass over ``tokens [pos]``.

    Args:
        known: this pass, recorded before; or what its FFNs compute, from an earlier one: they are run only where a
            layer has hooks or projections of other kinds, or if the pass comes to something else without them.

    Raises HookError if a layer does not give its pattern.
    """
    clip = model.layout.architecture.clip
    if setting(model.hf_model.config, clip) is not None:
        raise UnsupportedModelError(f"{model.name} clips what its attention reads ({clip}), which is not linear")
    if isinstance(known, Passed):
        return known.layers(model)
    products = None if known is None else known.products(model)
    found = None if products is None else Passed.of(model, tokens, products)
    if found is None or known is None or not known.led_to(found.final[0]):
        found = Passed.of(model, tokens)
    return found.layers(model)


@dataclass(frozen=True, eq=False)
class Passed:
    """One pass: its calls of attention, what goes into each layer and the final norm, and what attention wrote."""

    calls: Calls
    inputs: dict[int, Tensor]
    written: dict[int, Tensor]
    final: list[Tensor]

    @classmethod
    @contextmanager
    def recorded(cls, model: Model) -> Iterator[Passed]:
        """What passes inside the block."""
        found = cls(Calls(), {}, {}, [])
        before: list[tuple[nn.Module, OnTensor]] = [(model.layout.final_norm, found.final.append)]
        after: list[tuple[nn.Module, OnTensor]] = []
        for layer, block in enumerate(model.layout.blocks):
            after.append((block.attention_out, keeper(found.written, layer)))
            before.append((block.whole, keeper(found.inputs, layer)))
        with found.calls.recorded(model.layout.blocks), listening(before, after):
            yield found

    @classmethod
    def of(cls, model: Model, tokens: Tensor, products: Products | None = None) -> Passed:
        with cls.recorded(model) as found, products or nullcontext():
            model.body(tokens.reshape(1, -1))
        return found

    def layers(self, model: Model) -> list[FrozenAttention]:
        calls, inputs, written = self.calls, self.inputs, self.written
        silent = [layer for layer in range(model.n_layers) if layer not in calls.patterns or layer not in inputs]
        if silent:
            raise HookError(f"layers {listed(silent)} of {model.name} do not show their attention patterns")
        return [
            frozen(model, block, *calls.given[layer], calls.patterns[layer], inputs[layer], written[layer])
            for layer, block in enumerate(model.layout.blocks)
        ]


def frozen(
    model: Model,
    block: LayerModules,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    pattern: Tensor,
    x: Tensor,
    written: Tensor,
) -> FrozenAttention:
    norm = model.layout.norm(block.attention_norm, model.d_model)
    x, written = (at_least_float32(tensor.reshape(-1, model.d_model)) for tensor in (x, written))
    return FrozenAttention(
        attention=block.attention,
        args=args,
        kwargs=kwargs,
        out=next(name for name, module in block.attention.named_modules() if module is block.attention_out),
        pattern=pattern,
        normed=first_tensor(kwargs.get("hidden_states", args)),
        norm=norm,
        scale=torch.ones_like(x[:, 0]) if norm is None else norm.scale(x),
        post=model.layout.norm(block.attention_post, model.d_model),
        written=written,
        factor=model.layout.write_scale,
    )


# The heads by themselves: what each does to a vector wherever it looks, W_V·W_O, found by running the layer's module
# with a pattern in which every position looks at itself alone, and with one head alone.

POSITIONS = 64  # vectors a run


class Heads:
    """The linear maps of all attention heads of a model, without patterns and without the scales of norms.

    Raises: As :func:`frozen_attention`.
    """

    def __init__(self, model: Model) -> None:
        self.positions = min(model.n_ctx, POSITIONS)
        tokens = torch.arange(self.positions, device=model.device) % model.d_vocab
        self.layers = frozen_attention(model, tokens)

    def carried(self, layer: int, vectors: Float[Tensor, "n d_model"]) -> Float[Tensor, "n head d_model"]:
        """What each head adds to the residual stream of vectors that stand in it."""
        frozen = self.layers[layer]
        normed = vectors if frozen.norm is None else frozen.norm.passed(vectors)

        def run(alone: FrozenAttention, rows: Tensor) -> Tensor:
            with torch.no_grad():
                found = alone.run(rows.unsqueeze(0)) - alone.run(torch.zeros_like(rows).unsqueeze(0))
            return found.reshape(rows.shape)

        found = self.by_head(layer, normed, run)
        return (found if frozen.post is None else frozen.post.passed(found)) * frozen.factor

    def pulled(self, layer: int, directions: Float[Tensor, "n d_model"]) -> Float[Tensor, "n head d_model"]:
        """The directions in front of a layer along which each head reaches directions behind it: the transpose."""
        frozen = self.layers[layer]
        behind = (directions if frozen.post is None else frozen.post.pull(directions)) * frozen.factor
        found = self.by_head(layer, behind, lambda alone, rows: alone.pull(rows)[0])
        return found if frozen.norm is None else frozen.norm.pull(found)

    def by_head(
        self, layer: int, vectors: Float[Tensor, "n d_model"], run: Callable[[FrozenAttention, Tensor], Tensor]
    ) -> Float[Tensor, "n head d_model"]:
        """Each vector through each head, as many pairs of them at once as there are positions."""
        frozen = self.layers[layer]
        heads = frozen.n_heads
        pairs = repeat(vectors, "n d -> (n head) d", head=heads)
        whose = torch.arange(len(pairs), device=pairs.device) % heads
        plain = replace(frozen, norm=None, post=None, factor=1.0)
        found = []
        for start in range(0, len(pairs), self.positions):
            own = whose[start : start + self.positions]
            at = torch.arange(len(own), device=own.device)
            pattern = torch.zeros(heads, self.positions, self.positions, dtype=frozen.pattern.dtype, device=own.device)
            pattern[own, at, at] = 1.0
            rows = torch.zeros(self.positions, pairs.shape[-1], dtype=pairs.dtype, device=pairs.device)
            rows[at] = pairs[start : start + self.positions]
            alone = replace(plain, pattern=pattern.reshape(frozen.pattern.shape))
            found.append(run(alone, rows)[: len(own)])
        return rearrange(torch.cat(found).to(vectors.dtype), "(n head) d -> n head d", head=heads)
