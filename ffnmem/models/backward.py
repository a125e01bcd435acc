"""One forward pass of a model's own whose gradients reach its coefficients by RelP's rules.

Everything is done by hooks on the modules that a capture listens to, so it holds for every architecture, and what the
pass computes is what the model computes, bit for bit: the rules change gradients alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from ..core.errors import HookError, listed
from .attention import AttentionPass
from .hooks import first_tensor, with_input
from .layout import LayerModules, inner
from .model import Model
from .norms import NormMap, at_least_float32
from .replaying import activation


@dataclass
class Backward:
    """What one pass leaves behind for gradients to be taken at.

    Attributes:
        final: ``[rows, pos, d_model]``, the final norm's output.
        coefficients: by layer, what the down projection reads, shaped as the model has it.
        embedding: ``[1, pos, d_model]``, what enters the first layer.
        biased: places of biases: a tensor, the bias that was added to it, and whose it is (part, layer).
        read, wrote: by layer, what attention read and what it wrote; none if its patterns are no constants.
    """

    final: Tensor
    coefficients: dict[int, Tensor]
    embedding: Tensor
    biased: list[tuple[Tensor, Tensor, str, int]]
    read: dict[int, Tensor]
    wrote: dict[int, Tensor]


class GradientOf(torch.autograd.Function):
    """A value as it is; its gradients are those of something else."""

    @staticmethod
    def forward(ctx: Any, linear: Tensor, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        return gradients[0], None


def with_gradient_of(linear: Tensor, value: Tensor) -> Tensor:
    found = GradientOf.apply(linear, value)  # type: ignore[no-untyped-call]
    assert isinstance(found, Tensor)
    return found


def backward_pass(model: Model, tokens: Int[Tensor, " pos"], *, frozen: bool = True) -> Backward:
    """Run the model once over a prompt, with gradients: backwards, norms' scales and what routers give to experts are
    constants, activations are z·const(act(z)/z), and half of a gated product goes to each side.

    Args:
        model: from :func:`ffnmem.load`.
        tokens: up to where the answer is read.
        frozen: whether attention patterns are constants backwards, too.

    Raises: HookError: a module that did not run, or attention that does not show its pattern.
    """
    rules = Rules(model, frozen)
    with torch.enable_grad():  # whoever asks may have switched gradients off
        with rules.hooked():
            model.layout.body(input_ids=tokens.unsqueeze(0), use_cache=False)
        return rules.found()


class Rules:
    """The hooks of one pass of this thread."""

    def __init__(self, model: Model, frozen: bool) -> None:
        self.model, self.frozen = model, frozen
        self.thread = threading.get_ident()
        self.coefficients: dict[int, Tensor] = {}
        self.parts: dict[tuple[str, int], Tensor] = {}
        self.biased: list[tuple[Tensor, Tensor, str, int]] = []
        self.attention = AttentionPass(model, apart=False)
        self.act = activation(model.ffn[0].activation, fused=False)
        with torch.enable_grad():
            nothing = torch.zeros(1, dtype=model.dtype, device=model.device, requires_grad=True)
            (slope,) = torch.autograd.grad(self.act(nothing).sum(), nothing)
        self.slope_at_0 = float(slope)

    def hooked(self) -> ExitStack:
        """A block in which the hooks are there."""
        stack, layout = ExitStack(), self.model.layout

        def before(module: nn.Module, change: Callable[[Tensor], Tensor | None]) -> None:
            """Give a module's first input another form."""

            def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                if threading.get_ident() != self.thread:
                    return None
                new = change(args[0] if args else kwargs["hidden_states"])
                return None if new is None else with_input(args, kwargs, new)

            stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)

        def after(module: nn.Module, change: Callable[[Any, Tensor], Tensor | None]) -> None:
            """Give a module's output another form: of its first input and that."""

            def hook(_module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
                if threading.get_ident() != self.thread:
                    return None
                new = change(args, first_tensor(output))
                return new if new is None or isinstance(output, Tensor) else (new, *output[1:])

            stack.callback(module.register_forward_hook(hook).remove)

        def norm(module: nn.Module | None, part: str, layer: int) -> None:
            if module is not None:
                held = layout.norm(module, self.model.d_model)
                assert held is not None
                after(module, lambda args, out: self.fixed(held, part, layer, args[0], out))

        with stack:
            before(layout.blocks[0].whole, self.enter)
            if self.frozen:
                stack.enter_context(self.attention.recorded())
            norm(layout.final_norm, "final", -1)
            for layer, block in enumerate(layout.blocks):
                norm(block.attention_norm, "attention", layer)
                if block.norm is not block.attention_norm:
                    norm(block.norm, "ffn", layer)
                norm(block.attention_post, "attention", layer)
                norm(block.post, "ffn", layer)
                self.listen(block, layer, before, after)
                mixture = self.model.ffn[layer].mixture
                for router in () if mixture is None else mixture.routers:
                    stack.callback(router.register_forward_hook(self.as_constant).remove)
                before(inner(block.project_out), partial(self.fire, layer))
            after(layout.final_norm, lambda _args, out: self.keep(("final_out", -1), out))
            return stack.pop_all()

    def listen(self, block: LayerModules, layer: int, before: Any, after: Any) -> None:
        """Pre-activations, linear parts and biases of a layer, which the rules and the sum of all parts take."""
        ffn = self.model.ffn[layer]

        def added(which: int, args: tuple[Any, ...]) -> Tensor | None:
            """The biases of gates (0) or keys (1), of experts as the router and clamps leave them."""
            keys, bias = (ffn.keys, ffn.key_bias) if which else (ffn.activated, ffn.activated_bias)
            if ffn.mixture is None or bias is None:
                return bias
            x = args[0].detach().reshape(-1, self.model.d_model)
            with torch.no_grad():
                return ffn.mixture.line(which, x @ keys.T, ffn.mixture.factors(x), bias)[1]

        z, b = (block.project_in, None) if block.project_gate is None else (block.project_gate, block.project_in)
        after(z, lambda args, out: self.keep(("pre", layer), out, added(0, args), "ffn"))
        if b is not None:
            after(b, lambda args, out: self.keep(("linear", layer), out, added(1, args), "ffn"))
        after(block.project_out, lambda _args, out: self.keep(("ffn_out", layer), out, ffn.value_bias, "ffn"))

    def as_constant(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        """What a router gives, without gradients."""
        if threading.get_ident() != self.thread:
            return None
        return output.detach() if isinstance(output, Tensor) else tuple(one.detach() for one in output)

    def keep(self, key: tuple[str, int], tensor: Tensor, bias: Tensor | None = None, part: str = "") -> None:
        self.parts[key] = tensor
        if bias is not None:
            self.biased.append((tensor, bias.detach(), part, key[1]))

    def enter(self, x: Tensor) -> Tensor:
        """What enters the first layer: gradients end here."""
        self.parts["embedding", -1] = x = x.detach().requires_grad_()
        return x.clone()  # which Falcon may add to in place

    def fixed(self, norm: NormMap, part: str, layer: int, x: Tensor, out: Tensor) -> Tensor:
        x = at_least_float32(x)
        new = with_gradient_of((norm.passed(x) / norm.scale(x.detach()).unsqueeze(-1)).to(out.dtype), out)
        if norm.shift is not None and part != "final":
            self.biased.append((new, norm.shift, part, layer))
        return new

    def fire(self, layer: int, m: Tensor) -> Tensor:
        """What a down projection reads, as a place where gradients are kept."""
        z, b = self.parts["pre", layer].reshape(m.shape), self.parts.get(("linear", layer))
        with torch.no_grad():
            acted = m if b is None else self.act(z)
            slope = torch.where(z == 0, self.slope_at_0, acted / z)
        linear = z * slope
        if b is not None:
            b = b.reshape(m.shape)
            linear = (linear * b.detach() + acted * b) / 2
        self.coefficients[layer] = found = with_gradient_of(linear, m)
        return found

    def found(self) -> Backward:
        """What the pass left. Raises HookError."""
        if self.frozen:
            self.attention.check()
        missing = [layer for layer in range(self.model.n_layers) if layer not in self.coefficients]
        if missing or ("final_out", -1) not in self.parts:
            what = f"the FFN of layer {listed(missing)}" if missing else "the final norm"
            raise HookError(f"{self.model.name}: {what} did not run")

        return Backward(
            final=self.parts["final_out", -1],
            coefficients=self.coefficients,
            embedding=self.parts["embedding", -1],
            biased=self.biased,
            read=self.attention.read,
            wrote=self.attention.written,
        )
