"""A mixture of experts as one gated FFN over the neurons of all its experts, what the router gives each among them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..core.neuron_names import ExpertSizes
from ..ffn.activations import clamped_swish
from .architectures import ExpertForm
from .hooks import hook_tables

SHARED = ("shared_expert", "shared_experts")
"""What Hugging Face calls the experts that every token goes to."""


Routing = tuple[Float[Tensor, "n experts"], Float[Tensor, "n shared"]]
"""What the router gives each expert, 0 where it is not chosen, and what shared ones are multiplied by."""


@dataclass(frozen=True, eq=False)
class Expert:
    """One expert's keys, gates and values, a row a neuron, all live: what is written into them changes the model.

    Attributes:
        neurons: which of the layer's these are.
    """

    neurons: range
    keys: Float[Tensor, "d_expert d_model"]
    gates: Float[Tensor, "d_expert d_model"]
    values: Float[Tensor, "d_expert d_model"]

    def __repr__(self) -> str:
        first, last = self.neurons[0], self.neurons[-1]
        return f"Expert({len(self.neurons)} neurons, {first} to {last} of the layer; keys, gates, values)"


class Mixture(nn.Module):
    """The FFN of a layer with experts, in place of Hugging Face's block and around the same parts and parameters.

    y = Σ_e r_e Σ_i act(g_ei·x) (k_ei·x) v_ei, where r_e is what the router gives expert e, and 0 for those that it
    does not choose. Neuron i of expert e is neuron e·d_expert + i of the layer; those of shared experts come last. r_e
    counts to the linear part: the coefficient is act(g·x) · r_e(k·x), and neurons of experts that a token is not routed
    to have pre-activation and coefficient 0. Where the router multiplies what an expert reads (Llama 4), the
    pre-activation is r_e(g·x), too, and the coefficient act(r_e(g·x)) · r_e(k·x).

    GPT-OSS has biases, and clamps both products: the coefficient is act(g·x + b) · r_e(1 + clamp(k·x + b′)), act being
    :func:`ffnmem.ffn.activations.clamped_swish`. What an expert writes whatever it reads, r_e·b_e, is a memory, too: of
    as many last neurons as experts, number e has the value b_e, a key of zeros and the coefficient r_e.

    Attributes:
        form: how the architecture keeps its experts.
        project_gate, project_in, project_out: the projections of all experts, called as if they were linear layers.

    Source: Shazeer et al. 2017 (1701.06538), eq. 1; shared experts: Dai et al. 2024 (2401.06066), eq. 9.
    """

    def __init__(self, block: nn.Module, form: ExpertForm) -> None:
        super().__init__()
        self.form = form
        self._modules = block._modules  # under the names that checkpoints have
        self.train(block.training)
        # In a tuple, so that torch does not take them for parts.
        self.projections = (ExpertGates(self), ExpertKeys(self), ExpertValues(self))
        self.__dict__.update(hook_tables(block))
        self._register_state_dict_hook(apart)  # type: ignore[no-untyped-call]
        self.lay_together()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.lay_together()  # of a copy

    def _apply(self, *args: Any, **kwargs: Any) -> Mixture:
        super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        self.lay_together()  # of another type, or on another device
        return self

    def lies_together(self) -> bool:
        """Whether the values of all experts, the shared ones last, are rows of one matrix in memory."""
        own, behind = self.own_values, self.values_behind
        if not own.is_contiguous():
            return False
        return behind is None or (
            behind.is_contiguous()
            and behind.data_ptr() == own.data_ptr() + own.numel() * own.element_size()
            and behind.untyped_storage().data_ptr() == own.untyped_storage().data_ptr()
        )

    def lay_together(self) -> None:
        """Move the values of all experts into one matrix, whose parts their parameters become, if they are not that."""
        if self.lies_together():
            return
        with torch.inference_mode(False), torch.no_grad():
            behind = self.values_behind
            count, width, d_model = self.own_values.shape
            rows = self.own_values.detach().flatten(0, 1)
            whole = torch.cat([rows] if behind is None else [rows, behind.detach()])
            own = whole[: count * width].view(count, width, d_model)
            self.routed_experts.down_proj.data = own if self.form.columns else own.transpose(1, 2)
            if self.form.clamped:
                self.routed_experts.down_proj_bias.data = whole[count * width :]
            elif self.shared is not None:
                self.shared.down_proj.weight.data = whole[count * width :].T

    def forward(self, x: Float[Tensor, "*n d_model"]) -> Any:
        project_gate, project_in, project_out = self.projections
        routing = self.route(x.reshape(-1, x.shape[-1]))
        found = project_out(self.act(project_gate(x, routing)) * project_in(x, routing))
        return (found, routing[0]) if self.form.in_pair else found

    def act(self, pre: Float[Tensor, "*n neurons"]) -> Float[Tensor, "*n neurons"]:
        """The activation of gates' products."""
        experts = self.routed_experts
        found: Tensor = clamped_swish(experts.alpha, experts.limit)(pre) if self.form.clamped else experts.act_fn(pre)
        return found

    @property
    def routed_experts(self) -> Any:
        """What holds the weights of all experts but the shared ones."""
        return self._modules["experts"]

    @property
    def router(self) -> Any:
        """What decides how much each expert counts."""
        return self._modules[self.form.router]

    def own_rows(self, which: int) -> Float[Tensor, "experts d_expert d_model"]:
        """Gates (0) or keys (1) of each expert but the shared ones, a row a neuron; live."""
        both = self.routed_experts.gate_up_proj
        return self.gates_or_keys(both.transpose(1, 2) if self.form.columns else both, which)

    def gates_or_keys(self, both: Float[Tensor, "experts both *d"], which: int) -> Float[Tensor, "experts d_expert *d"]:
        """Of gates and keys in one tensor the one or the other."""
        return both[:, which::2] if self.form.clamped else both.chunk(2, dim=1)[which]

    @property
    def values_behind(self) -> Float[Tensor, "shared d_model"] | None:
        """The values of the neurons behind those of experts: of shared ones, or the experts' own biases; live."""
        if self.form.clamped:
            biases: Tensor = self.routed_experts.down_proj_bias
            return biases
        return None if self.shared is None else self.shared.down_proj.weight.T

    @property
    def opened(self) -> float:
        """The pre-activation at which a clamped gate's activation is 1."""
        found = 1.0
        for _ in range(50):  # x = 1/σ(αx) has one solution, and each step leaves less than a fifth of the error
            found = 1 + math.exp(-self.routed_experts.alpha * found)
        return found

    @property
    def own_values(self) -> Float[Tensor, "experts d_expert d_model"]:
        """The values of each expert but the shared ones, a row a neuron; live."""
        found = self.routed_experts.down_proj
        return found if self.form.columns else found.transpose(1, 2)

    @property
    def shared(self) -> Any:
        """The FFN that every token goes through beside its experts; None where there is none."""
        return next((self._modules[name] for name in SHARED if name in self._modules), None)

    @property
    def views(self) -> tuple[Expert, ...]:
        """Each expert by itself, the shared ones last as one."""
        count, width, shared = self.sizes
        parts = [*zip(self.own_rows(1), self.own_rows(0), self.own_values, strict=True)]
        own, behind = self.shared, self.values_behind
        if self.form.clamped and behind is not None:
            parts.append((torch.zeros_like(behind), torch.zeros_like(behind), behind))
        elif shared:
            parts.append((own.up_proj.weight, own.gate_proj.weight, own.down_proj.weight.T))
        starts = [min(place, count) * width for place in range(len(parts))]
        return tuple(
            Expert(range(start, start + len(part[0])), *part) for start, part in zip(starts, parts, strict=True)
        )

    @property
    def routers(self) -> list[Any]:
        """The router, and what decides how much shared experts count."""
        return [self._modules[name] for name in (self.form.router, "shared_expert_gate") if name in self._modules]

    @property
    def sizes(self) -> ExpertSizes:
        """How many experts, how many neurons in each, and how many shared ones."""
        count, d_expert, _ = self.own_values.shape
        return ExpertSizes(count, d_expert, 0 if self.values_behind is None else len(self.values_behind))

    def route(self, x: Float[Tensor, "n d_model"]) -> Routing:
        """What the router gives each expert, 0 where it is not chosen, and what shared ones are multiplied by."""
        if self.form.scales_input:
            scale, _ = self.router(x)
        else:
            _, weights, chosen = self.router(x)
            scale = x.new_zeros(len(x), self.sizes[0]).scatter(1, chosen, weights.to(x.dtype))
        if self.form.clamped:
            return scale, scale
        always = self.routers[1](x).sigmoid() if len(self.routers) > 1 else x.new_ones(len(x), 1)
        return scale, always

    def factors(
        self, x: Float[Tensor, "*n d_model"], neurons: Int[Tensor, " neurons"] | None = None
    ) -> Float[Tensor, "*n neurons"]:
        """What each neuron's linear part is multiplied by; 0 in experts that an input is not routed to.

        ``neurons``: which, of the layer's; default all.
        """
        scale, always = self.route(x.reshape(-1, x.shape[-1]))
        count, width, shared = self.sizes
        which = torch.arange(count * width + shared, device=x.device) if neurons is None else neurons
        behind = which - count * width  # of GPT-OSS each has an expert of its own, elsewhere all have one number
        column = torch.where(behind < 0, which // width, count + behind.clamp(0, always.shape[1] - 1))
        found = torch.cat([scale, always], dim=1)[:, column]
        return found.view(*x.shape[:-1], -1)

    def line(
        self,
        which: int,
        products: Float[Tensor, "*n"],
        factors: Float[Tensor, "*n"],
        bias: Float[Tensor, "*#n"] | None,
    ) -> tuple[Float[Tensor, "*n"], Float[Tensor, "*n"]]:
        """What gates (0) or keys (1) give, as slope · products + constant: what the router gives is taken as it is, and
        a clamped product as a constant.

        Args:
            products: g·x or k·x. factors: what the router gives the neurons. bias: theirs, as :attr:`ExpertRows.bias`.
        """
        slope = factors if which or self.form.scales_input else (factors != 0).to(products.dtype)
        if bias is None:
            return slope, torch.zeros_like(slope)
        if not which or not self.form.clamped:
            return slope, slope * bias
        limit, before = self.routed_experts.limit, products + bias - 1
        inside = before.abs() <= limit
        return slope * inside, slope * torch.where(inside, bias, before.clamp(-limit, limit) + 1)

    def routed(self, scale: Float[Tensor, "n experts"]) -> Iterator[tuple[int, Tensor, slice]]:
        """Each expert that some tokens go to, which, and where its neurons are."""
        width = self.sizes[1]
        for expert in (scale != 0).any(0).nonzero().flatten().tolist():
            yield expert, scale[:, expert].nonzero().flatten(), slice(expert * width, (expert + 1) * width)


def apart(mixture: nn.Module, tensors: dict[str, Tensor], prefix: str, _metadata: Any) -> None:
    """Have a checkpoint hold the values of shared experts as tensors of their own, not as parts of a matrix of all."""
    assert isinstance(mixture, Mixture)
    for name in [f"{prefix}{name}" for name, _ in mixture.named_parameters()]:
        if tensors[name].nbytes < tensors[name].untyped_storage().nbytes():
            tensors[name] = tensors[name].clone(memory_format=torch.contiguous_format)


@dataclass(frozen=True, eq=False)
class RoutedTensor:
    """A tensor over the neurons of a layer of experts, of each token without the experts that have nothing but zeros.

    Attributes:
        shape: of the whole. there: which experts each token has. values: theirs, a row each. behind: of the neurons
            behind those of experts.
    """

    shape: torch.Size
    there: Bool[Tensor, "n experts"]
    values: Float[Tensor, "kept d_expert"]
    behind: Float[Tensor, "n shared"]

    @classmethod
    def of(cls, whole: Float[Tensor, "*n neurons"], sizes: ExpertSizes) -> RoutedTensor:
        flat, count = whole.reshape(-1, whole.shape[-1]), sizes.experts * sizes.neurons
        blocks = flat[:, :count].reshape(len(flat), sizes.experts, sizes.neurons)
        there = (blocks != 0).any(2)
        return cls(whole.shape, there, blocks[there], flat[:, count:].clone())

    def whole(self) -> Float[Tensor, "*n neurons"]:
        """The tensor, zeros among it."""
        blocks = self.values.new_zeros(*self.there.shape, self.values.shape[1])
        blocks[self.there] = self.values
        return torch.cat([blocks.flatten(1), self.behind], dim=1).view(self.shape)


class ExpertProjection(nn.Module):
    """One projection of all experts of a mixture, seen as that of one FFN; it has no parameters of its own."""

    def __init__(self, mixture: Mixture) -> None:
        super().__init__()
        self.held = (mixture,)  # in a tuple, so that torch does not take it for a part

    @property
    def mixture(self) -> Mixture:
        return self.held[0]

    @property
    def bias(self) -> Tensor | None:
        """None where there are none."""
        return None


class ExpertRows(ExpertProjection):
    """Gates (0) or keys (1), which read the residual stream."""

    which, shared = 0, "gate_proj"

    @property
    def weight(self) -> Float[Tensor, "neurons d_model"]:
        """A copy: experts keep gates and keys one after the other."""
        mixture = self.mixture
        rows, behind = mixture.own_rows(self.which).flatten(0, 1), mixture.values_behind
        if behind is None:
            return rows
        return torch.cat([rows, torch.zeros_like(behind) if mixture.form.clamped else self.of_shared.weight])

    @property
    def bias(self) -> Float[Tensor, " neurons"] | None:
        """A copy; of keys with the 1 that is added to their products. None where there are none."""
        mixture = self.mixture
        if not mixture.form.clamped:
            return None
        own = mixture.gates_or_keys(mixture.routed_experts.gate_up_proj_bias, self.which).flatten() + self.which
        return torch.cat([own, own.new_full((mixture.sizes[0],), 1.0 if self.which else mixture.opened)])

    @property
    def of_shared(self) -> Any:
        """The projection of the shared experts."""
        return getattr(self.mixture.shared, self.shared)

    def forward(self, x: Float[Tensor, "*n d_model"], routing: Routing | None = None) -> Float[Tensor, "*n neurons"]:
        mixture, flat = self.mixture, x.reshape(-1, x.shape[-1])
        count, width, shared = mixture.sizes
        scale, always = routing or mixture.route(flat)
        rows = mixture.own_rows(self.which)
        if mixture.form.clamped:
            biases = mixture.gates_or_keys(mixture.routed_experts.gate_up_proj_bias, self.which)
        found = flat.new_zeros(len(flat), count * width + shared)
        for expert, tokens, neurons in mixture.routed(scale):
            product = flat[tokens] @ rows[expert].T
            if mixture.form.clamped:
                product = self.clamped(product + biases[expert])
            found[tokens, neurons] = self.scaled(product, scale[tokens, expert, None])
        if mixture.form.clamped:
            found[:, count * width :] = always if self.which else (always != 0).to(always.dtype) * mixture.opened
        elif shared:
            found[:, count * width :] = self.scaled(self.of_shared(flat), always)
        return found.view(*x.shape[:-1], -1)

    def clamped(self, product: Float[Tensor, "n neurons"]) -> Float[Tensor, "n neurons"]:
        """Of GPT-OSS, 1 and a key's product, which is kept within a limit; a gate's is by the activation."""
        limit = self.mixture.routed_experts.limit
        return product.clamp(-limit, limit) + 1 if self.which else product

    def scaled(self, found: Float[Tensor, "n neurons"], scale: Float[Tensor, "n 1"]) -> Float[Tensor, "n neurons"]:
        """Products with what the router gives, where it multiplies them."""
        return found * scale if self.which or self.mixture.form.scales_input else found


class ExpertGates(ExpertRows):
    """Of all experts."""


class ExpertKeys(ExpertRows):
    """Of all experts, with what the router gives."""

    which, shared = 1, "up_proj"


class ExpertValues(ExpertProjection):
    """The values of all experts, one matrix in memory that their own parameters are views of."""

    @property
    def weight(self) -> Float[Tensor, "d_model neurons"]:
        """Live: what is written into it changes the experts."""
        mixture = self.mixture
        mixture.lay_together()
        count, width, shared = mixture.sizes
        own = mixture.own_values
        return own.as_strided((count * width + shared, own.shape[2]), (own.shape[2], 1)).T

    def forward(self, m: Float[Tensor, "*n neurons"]) -> Float[Tensor, "*n d_model"]:
        mixture, flat = self.mixture, m.reshape(-1, m.shape[-1])
        count, width, shared = mixture.sizes
        each = flat[:, : count * width].view(len(flat), count, width)
        found = flat.new_zeros(len(flat), mixture.own_values.shape[2])
        # Gradients at coefficients are asked for where these are 0 as well.
        used = torch.ones_like(each[..., 0]) if flat.requires_grad else each.abs().amax(2)
        for expert, tokens, neurons in mixture.routed(used):
            found = found.index_add(0, tokens, flat[tokens, neurons] @ mixture.own_values[expert])
        if mixture.form.clamped:
            found = found + flat[:, count * width :] @ mixture.routed_experts.down_proj_bias
        elif shared:
            found = found + mixture.shared.down_proj(flat[:, count * width :])
        return found.view(*m.shape[:-1], -1)


def find_mixture(layer: nn.Module, path: str, form: ExpertForm) -> Any:
    """The FFN at a path of a layer; a block of experts begins to run as a :class:`Mixture`."""
    holder, _, name = path.rpartition(".")
    parts = layer.get_submodule(holder)._modules
    if is_mixture(parts.get(name), form):
        parts[name] = Mixture(layer.get_submodule(path), form)
    return parts.get(name)


def is_mixture(mlp: Any, form: ExpertForm) -> bool:
    """Whether an FFN is a block of experts as :class:`Mixture` takes it."""
    parts = getattr(mlp, "_modules", {})
    experts = parts.get("experts")
    return (
        not isinstance(mlp, Mixture)
        and form.router in parts
        and all(hasattr(experts, name) for name in ("gate_up_proj", "down_proj", "alpha" if form.clamped else "act_fn"))
    )
