"""One attention layer as a linear map of what stands at each position: its pattern and its norm's scale are frozen.

Nothing is read off attention's weights, which every architecture keeps in its own way. The layer's own module runs with
a softmax that is a constant to gradients; what is left is linear in the input, and its transpose is the gradient. Hooks
that change values on the way are part of it.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..core.errors import HookError, UnsupportedModelError, listed
from .architectures import setting
from .hooks import BlockMode, OpenBlock, UndoList, first_tensor, keeper, with_input
from .layout import LayerModules
from .model import AGREE, HALF, Model
from .norms import NormMap, at_least_float32
from .residual import pull

SOFTMAX = (torch.softmax, Tensor.softmax, nn.functional.softmax)
ROOTS = (torch.rsqrt, Tensor.sqrt)  # of norms inside attention
MASKED = -3e4  # below it are scores that the model itself masks, in half precision too
SUMMED = (torch.float32, torch.float64)  # types in which sums are taken
KEPT = 128  # positions; of longer prompts attention's patterns may take more room than all else


class Softmax(BlockMode):
    """A block in which this thread's softmax is recorded, and a constant to gradients; it may be given ``instead``.

    So are the scales of norms inside attention, such as that of DeepSeek's latents; without ``scaled`` they are 1.
    """

    def __init__(self, instead: Tensor | None = None, scaled: bool = True) -> None:
        super().__init__()
        self.instead, self.scaled = instead, scaled
        self.patterns: list[Tensor] = []

    def called(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        if func in ROOTS:
            scale = func(*args, **kwargs).detach()
            return scale if self.scaled else torch.ones_like(scale)
        if func not in SOFTMAX:
            return func(*args, **kwargs)
        pattern = func(*args, **kwargs).detach() if self.instead is None else self.instead
        self.patterns.append(pattern)
        return pattern


class Blocking(BlockMode):
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

    def called(self, func: Any, *args: Any, **kwargs: Any) -> Any:
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


class Graph(NamedTuple):
    """One run of an attention layer, from which gradients of what it wrote with respect to what it read can be taken.

    Attributes:
        read: ``[1, pos, d_model]``. written: the same size, before a norm behind attention.
        pattern: ``[1, head, query, key]``, the attention weights, as its softmax gave them.
        versions: how often each of its parameters had been written into then: torch takes no gradients once one was
            written into again, though it be what it was.
    """

    read: Tensor
    written: Tensor
    pattern: Tensor
    versions: tuple[int, ...]


def versions_of(module: nn.Module) -> tuple[int, ...]:
    """How often each of a module's parameters was written into."""
    return tuple(parameter._version for parameter in module.parameters())


@dataclass(frozen=True, eq=False)
class FrozenAttention:
    """Attention output at t = Σ_heads Σ_p A[t, p] · LN(x_p)·W_V·W_O + biases, with A and LN's scale as they were.

    Attributes:
        attention: the module, called as it was: with ``args``, ``kwargs``, but with another first input, ``normed``.
        out: the part of it whose output it writes, by its name within; empty for its own.
        normed: ``[1, pos, d_model]``, what it read.
        norm: in front of attention; None where it reads the stream as it is. scale: ``[pos]``, its σ.
        post: behind attention, or None. written: ``[pos, d_model]``, what it then normed. factor: of what is added.
        pattern: A, where it is given; otherwise its softmax gives it.
        scaled: whether norms inside attention keep their scales.
        kept: the graph of the pass itself, of short prompts in at least float32. Otherwise the module runs once more
            each time, so that of a long prompt one layer's pattern is there at a time.
    """

    attention: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: str
    normed: Float[Tensor, "1 key d_model"]
    norm: NormMap | None
    scale: Float[Tensor, " key"]
    post: NormMap | None
    written: Float[Tensor, "query d_model"]
    factor: float
    pattern: Tensor | None = None
    scaled: bool = True
    kept: Graph | None = None

    def pull(
        self, directions: Float[Tensor, "*batch query d_model"]
    ) -> tuple[Float[Tensor, "*batch key d_model"], Float[Tensor, "*batch"]]:
        """Carry directions at the output back to the input, one set of them or a batch of sets at once.

        Returns, for each position p, the direction along which the residual stream at p reaches the given directions
        through this layer, and the constant that the layer's biases add: what is written beyond that.
        """
        directions = pull(self.post, self.factor, directions, self.written)
        graph = self.graph
        read, written = graph.read, graph.written
        (carried,) = torch.autograd.grad(
            written,
            read,
            directions.to(written.dtype).reshape(*directions.shape[:-2], *written.shape),
            retain_graph=True,
            is_grads_batched=directions.ndim > 2,
        )
        carried = carried.reshape(directions.shape).to(directions.dtype)
        constant = along(directions, written) - along(carried, read)
        if self.norm is not None:
            constant = constant + self.norm.constant(carried).sum(-1)
            carried = self.norm.pull(carried) / self.scale.unsqueeze(-1)
        return carried, constant.to(directions.dtype)

    def only(self, head: int | None) -> FrozenAttention:
        """The same with one head alone, the others writing nothing; None: with none, so that its output bias stays."""
        own = self.graph.pattern
        pattern = torch.zeros_like(own)
        if head is not None:
            pattern[:, head] = own[:, head]
        return replace(self, pattern=pattern, kept=None)

    def writes(self, read: Float[Tensor, "*pos d_model"] | None = None) -> Float[Tensor, "query d_model"]:
        """Its output, before a norm behind it, for what it read or reads now."""
        written = (self.graph if read is None else self.run(read)).written.detach()
        return written.reshape(-1, written.shape[-1])

    @property
    def graph(self) -> Graph:
        kept = self.kept
        return self.run(self.normed) if kept is None or kept.versions != versions_of(self.attention) else kept

    def with_graph(self) -> FrozenAttention:
        """The same, to carry many sets of directions: it keeps its graph, but in half precision, whose weights that
        would copy."""
        return replace(self, kept=self.graph) if self.normed.dtype in SUMMED else self

    def run(self, read: Float[Tensor, "*pos d_model"]) -> Graph:
        """Attention once more, in at least float32, in which sums are taken."""
        read = at_least_float32(read).detach().reshape(self.normed.shape).requires_grad_()
        attention, args, kwargs, pattern = self.attention, self.args, self.kwargs, self.pattern
        if read.dtype != self.normed.dtype:
            attention = copy.deepcopy(attention).to(read.dtype)
            args, kwargs, pattern = widened(args, read.dtype), widened(kwargs, read.dtype), widened(pattern, read.dtype)
        args, kwargs = with_input(args, kwargs, read)
        written: list[Tensor] = []
        output = attention.get_submodule(self.out)
        with torch.enable_grad(), OpenBlock() as block:
            block.listen(outputs=[(output, written.append)])
            softmax = block.mode(Softmax(pattern, self.scaled))
            attention(*args, **kwargs)
        return Graph(read, written[0], softmax.patterns[0], versions_of(attention))


def along(directions: Float[Tensor, "*batch pos d_model"], x: Tensor) -> Float[Tensor, "*batch"]:
    """Σ over positions of x · direction, in float64."""
    return (directions.double() * x.detach().double().reshape(directions.shape[-2:])).sum((-2, -1))


def widened(value: Any, dtype: torch.dtype) -> Any:
    """What a module was called with, its tensors of numbers in another type."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {name: widened(one, dtype) for name, one in value.items()}
    return tuple(widened(one, dtype) for one in value) if isinstance(value, tuple) else value


class AttentionPass:
    """The attention layers of one pass of this thread, their softmax a constant to gradients.

    Args:
        model: from :func:`ffnmem.load`.

    Attributes:
        calls: how each layer was called. inputs: what goes into each layer, attention's norm in front.
        read, written: by layer, what attention reads and writes, with the graph between them; of a prompt that is long
            or in half precision without, and memory grows with its length, not its square.
        patterns: by layer, of short prompts. versions: of each layer's parameters, as :class:`Graph` has them.
        silent: layers that showed no pattern.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.thread = threading.get_ident()
        self.calls: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self.inputs: dict[int, Tensor] = {}
        self.read: dict[int, Tensor] = {}
        self.written: dict[int, Tensor] = {}
        self.patterns: dict[int, Tensor] = {}
        self.versions: dict[int, tuple[int, ...]] = {}
        self.silent = set(range(model.n_layers))
        self.running = UndoList()
        self.softmax = Softmax()

    def recorded(self, undo: UndoList) -> AttentionPass:
        """Record what runs until the block ends."""
        undo.callback(torch.set_grad_enabled, torch.is_grad_enabled())
        undo.callback(lambda: self.running.close())  # after an interrupt, of which modules tell no hook
        for layer, block in enumerate(self.model.layout.blocks):
            written = partial(self.written.__setitem__, layer)
            undo.listen([(block.whole, keeper(self.inputs, layer))], [(block.attention_out, written)])
            undo.hook(block.attention, partial(self.begin, layer), before=True, with_kwargs=True)
            undo.hook(block.attention, partial(self.end, layer), always_call=True)
        return self

    def begin(self, layer: int, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if threading.get_ident() != self.thread:
            return None
        x = first_tensor(args or kwargs["hidden_states"])
        self.read[layer] = x = x.detach().requires_grad_()
        self.calls[layer] = args, kwargs = with_input(args, kwargs, x)
        self.running = UndoList()
        self.running.callback(torch.set_grad_enabled, torch.is_grad_enabled())
        torch.set_grad_enabled(True)
        self.softmax = self.running.mode(Softmax())
        return args, kwargs

    def end(self, layer: int, module: nn.Module, _args: Any, output: Any) -> Any:
        if threading.get_ident() != self.thread:
            return None
        self.running.close()
        if output is None:  # the module raises
            return None
        if len(self.softmax.patterns) == 1:
            self.silent.discard(layer)
        read, self.versions[layer] = self.read[layer], versions_of(module)
        short = read.shape[-2] <= KEPT
        if short and layer not in self.silent:
            self.patterns[layer] = self.softmax.patterns[0]
        if not short or read.dtype not in SUMMED:
            self.written[layer] = self.written[layer].detach()
        first = first_tensor(output).detach()
        return first if isinstance(output, Tensor) else (first, *output[1:])

    def layers(self) -> list[FrozenAttention]:
        """Raise HookError where a layer did not show its pattern."""
        if self.silent:
            layers = listed(sorted(self.silent))
            raise HookError(f"layers {layers} of {self.model.name} do not show their attention patterns")
        return [self.layer(number, block) for number, block in enumerate(self.model.layout.blocks)]

    def layer(self, layer: int, block: LayerModules) -> FrozenAttention:
        model, read, written, pattern = self.model, self.read[layer], self.written[layer], self.patterns.get(layer)
        norm = model.layout.norm(block.attention_norm, model.d_model)
        x = at_least_float32(self.inputs[layer].reshape(-1, model.d_model))
        args, kwargs = self.calls[layer]
        return FrozenAttention(
            attention=block.attention,
            args=args,
            kwargs=kwargs,
            out=next(name for name, module in block.attention.named_modules() if module is block.attention_out),
            normed=read,
            norm=norm,
            scale=torch.ones_like(x[:, 0]) if norm is None else norm.scale(x),
            post=model.layout.norm(block.attention_post, model.d_model),
            written=at_least_float32(written.detach().reshape(-1, model.d_model)),
            factor=model.layout.write_scale,
            pattern=pattern,
            kept=None
            if pattern is None or not written.requires_grad
            else Graph(read, written, pattern, self.versions[layer]),
        )


def frozen_attention(model: Model, tokens: Tensor, known: AttentionPass | None = None) -> list[FrozenAttention]:
    """Every attention layer of one forward pass over ``tokens [pos]``; ``known``: this pass, recorded before.

    Raises: UnsupportedModelError: attention that is not linear. HookError: a layer that does not give its pattern.
    """
    clip = model.layout.architecture.clip
    if setting(model.hf_model.config, clip) is not None:
        raise UnsupportedModelError(f"{model.name} clips what its attention reads ({clip}), which is not linear")
    if known is None:
        with OpenBlock(AttentionPass(model).recorded) as known:
            model.body(tokens.reshape(1, -1))
    layers = known.layers()
    if not model.layout.described:
        check_linear(model, layers)
    return layers


def check_linear(model: Model, layers: list[FrozenAttention]) -> None:
    """Raise UnsupportedModelError where half of what attention reads does not give half of what it writes of it."""
    for layer, attention in enumerate(layers):
        again = replace(attention, pattern=attention.graph.pattern, kept=None)
        nothing, half = (again.writes(attention.normed * share) for share in (0.0, 0.5))
        off = float((2 * half - nothing - attention.written).norm() / attention.written.norm().clamp(min=1e-30))
        if not off <= AGREE.get(model.dtype, HALF):
            raise UnsupportedModelError(
                f"{model.name} ({model.architecture}): attention of layer {layer} is not linear in what it reads, with "
                f"its pattern as it was (off by {off:.1g})"
            )


# The heads by themselves: what each does to a vector wherever it looks, W_V·W_O, found by running the layer's module
# with a pattern in which every position looks at itself alone, and with one head alone.

POSITIONS = 64  # pairs of a vector and a head in a run


class Heads:
    """The linear maps of all attention heads of a model, without patterns and without the scales of norms.

    Raises: As :func:`frozen_attention`.
    """

    def __init__(self, model: Model) -> None:
        heads = model.numbers.n_heads
        self.heads, self.positions = heads, heads * max(1, min(POSITIONS, model.n_ctx) // heads)
        tokens = torch.arange(self.positions, device=model.device) % model.d_vocab
        self.layers = frozen_attention(model, tokens)

    def carried(self, layer: int, vectors: Float[Tensor, "n d_model"]) -> Float[Tensor, "n head d_model"]:
        """What each head adds to the residual stream of vectors that stand in it."""
        frozen, apart = self.layers[layer], self.apart(layer)
        normed = vectors if frozen.norm is None else frozen.norm.passed(vectors)
        biases = apart.writes(torch.zeros_like(apart.normed))
        found = self.by_head(normed, lambda rows: apart.writes(rows) - biases)
        return (found if frozen.post is None else frozen.post.passed(found)) * frozen.factor

    def pulled(self, layer: int, directions: Float[Tensor, "n d_model"]) -> Float[Tensor, "n head d_model"]:
        """The directions in front of a layer along which each head reaches directions behind it: the transpose."""
        frozen, apart = self.layers[layer], self.apart(layer)
        behind = (directions if frozen.post is None else frozen.post.pull(directions)) * frozen.factor
        found = self.by_head(behind, lambda rows: apart.pull(rows)[0])
        return found if frozen.norm is None else frozen.norm.pull(found)

    def apart(self, layer: int) -> FrozenAttention:
        """A layer without norms, of which every position goes through one head, one after the other."""
        frozen = replace(self.layers[layer], norm=None, post=None, factor=1.0)
        pattern = torch.zeros_like(frozen.graph.pattern)
        at = torch.arange(self.positions, device=pattern.device)
        pattern[:, at % self.heads, at, at] = 1.0
        alone = replace(frozen, pattern=pattern, scaled=False, kept=None)
        return replace(alone, kept=alone.graph)

    def by_head(
        self, vectors: Float[Tensor, "n d_model"], run: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "n head d_model"]:
        """Each vector through each head, as many pairs of them at once as there are positions."""
        pairs = repeat(vectors, "n d -> (n head) d", head=self.heads)
        padded = nn.functional.pad(pairs, (0, 0, 0, -len(pairs) % self.positions))
        found = torch.cat([run(rows) for rows in torch.split(padded, self.positions)])[: len(pairs)]
        return rearrange(found.to(vectors.dtype), "(n head) d -> n head d", head=self.heads)
