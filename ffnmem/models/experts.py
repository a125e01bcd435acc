"""A mixture of experts as one gated FFN over the neurons of all its experts, what the router gives each among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..core.neuron_names import ExpertSizes
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


class Mixture(nn.Module):
    """The FFN of a layer with experts, in place of Hugging Face's block and around the same parts and parameters.

    y = Σ_e r_e Σ_i act(g_ei·x) (k_ei·x) v_ei, where r_e is what the router gives expert e, and 0 for those that it
    does not choose. Neuron i of expert e is neuron e·d_expert + i of the layer; those of shared experts come last. r_e
    counts to the linear part: the coefficient is act(g·x) · r_e(k·x), and neurons of experts that a token is not routed
    to have pre-activation and coefficient 0. Where the router multiplies what an expert reads (Llama 4), the
    pre-activation is r_e(g·x), too, and the coefficient act(r_e(g·x)) · r_e(k·x).

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
        own, shared = self.own_values, self.shared
        if not own.is_contiguous():
            return False
        behind = None if shared is None else shared.down_proj.weight
        return behind is None or (
            behind.T.is_contiguous()
            and behind.data_ptr() == own.data_ptr() + own.numel() * own.element_size()
            and behind.untyped_storage().data_ptr() == own.untyped_storage().data_ptr()
        )

    def lay_together(self) -> None:
        """Move the values of all experts into one matrix, whose parts their parameters become, if they are not that."""
        if self.lies_together():
            return
        with torch.inference_mode(False), torch.no_grad():
            behind = None if self.shared is None else self.shared.down_proj.weight
            count, width, d_model = self.own_values.shape
            rows = self.own_values.detach().flatten(0, 1)
            whole = torch.cat([rows] if behind is None else [rows, behind.detach().T])
            own = whole[: count * width].view(count, width, d_model)
            self.routed_experts.down_proj.data = own if self.form.columns else own.transpose(1, 2)
            if behind is not None:
                behind.data = whole[count * width :].T

    def forward(self, x: Float[Tensor, "*n d_model"]) -> Any:
        project_gate, project_in, project_out = self.projections
        routing = self.route(x.reshape(-1, x.shape[-1]))
        found = project_out(self.routed_experts.act_fn(project_gate(x, routing)) * project_in(x, routing))
        return (found, routing[0]) if self.form.in_pair else found

    @property
    def routed_experts(self) -> Any:
        """What holds the weights of all experts but the shared ones."""
        return self._modules["experts"]

    @property
    def router(self) -> Any:
        """What decides how much each expert counts."""
        return self._modules[self.form.router]

    @property
    def read_by_gates_and_keys(self) -> Float[Tensor, "experts both d_model"]:
        """Gates, then keys of each expert but the shared ones, a row each; live."""
        found = self.routed_experts.gate_up_proj
        return found.transpose(1, 2) if self.form.columns else found

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
        halves = [one.chunk(2) for one in self.read_by_gates_and_keys]
        parts = [(keys, gates, values) for (gates, keys), values in zip(halves, self.own_values, strict=True)]
        if shared:
            own = self.shared
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
        return ExpertSizes(count, d_expert, 0 if self.shared is None else self.shared.down_proj.in_features)

    def route(self, x: Float[Tensor, "n d_model"]) -> Routing:
        """What the router gives each expert, 0 where it is not chosen, and what shared ones are multiplied by."""
        if self.form.scales_input:
            scale, _ = self.router(x)
        else:
            _, weights, chosen = self.router(x)
            scale = x.new_zeros(len(x), self.sizes[0]).scatter(1, chosen, weights.to(x.dtype))
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
        found = torch.cat([scale, always], dim=1)[:, (which // width).clamp(max=count)]
        return found.view(*x.shape[:-1], -1)

    def routed(self, scale: Float[Tensor, "n experts"]) -> Iterator[tuple[int, Tensor, slice]]:
        """Each expert that some tokens go to, which, and where its neurons are."""
        width = self.sizes[1]
        for expert in (scale != 0).any(0).nonzero().flatten().tolist():
            yield expert, scale[:, expert].nonzero().flatten(), slice(expert * width, (expert + 1) * width)


def apart(mixture: nn.Module, tensors: dict[str, Tensor], prefix: str, _metadata: Any) -> None:
    """Have a checkpoint hold the values of shared experts as tensors of their own, not as parts of a matrix of all."""
    assert isinstance(mixture, Mixture)
    for name in () if mixture.shared is None else [f"{prefix}{name}" for name, _ in mixture.named_parameters()]:
        tensors[name] = tensors[name].clone(memory_format=torch.contiguous_format)


class ExpertProjection(nn.Module):
    """One projection of all experts of a mixture, seen as that of one FFN; it has no parameters of its own."""

    bias = None

    def __init__(self, mixture: Mixture) -> None:
        super().__init__()
        self.held = (mixture,)  # in a tuple, so that torch does not take it for a part

    @property
    def mixture(self) -> Mixture:
        return self.held[0]


class ExpertRows(ExpertProjection):
    """Gates (0) or keys (1), which read the residual stream."""

    which, shared = 0, "gate_proj"

    @property
    def weight(self) -> Float[Tensor, "neurons d_model"]:
        """A copy: experts keep gates and keys one after the other."""
        mixture = self.mixture
        rows = mixture.read_by_gates_and_keys.chunk(2, dim=1)[self.which].flatten(0, 1)
        return rows if mixture.shared is None else torch.cat([rows, getattr(mixture.shared, self.shared).weight])

    def forward(self, x: Float[Tensor, "*n d_model"], routing: Routing | None = None) -> Float[Tensor, "*n neurons"]:
        mixture, flat = self.mixture, x.reshape(-1, x.shape[-1])
        count, width, shared = mixture.sizes
        scale, always = routing or mixture.route(flat)
        found = flat.new_zeros(len(flat), count * width + shared)
        for expert, tokens, neurons in mixture.routed(scale):
            weight = mixture.read_by_gates_and_keys[expert].chunk(2)[self.which]
            found[tokens, neurons] = self.scaled(flat[tokens] @ weight.T, scale[tokens, expert, None])
        if shared:
            found[:, count * width :] = self.scaled(getattr(mixture.shared, self.shared)(flat), always)
        return found.view(*x.shape[:-1], -1)

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
        if shared:
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
        and all(hasattr(experts, name) for name in ("gate_up_proj", "down_proj", "act_fn"))
    )
