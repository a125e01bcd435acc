"""A mixture of experts as one gated FFN over the neurons of all its experts, what the router gives each among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core.neuron_names import ExpertSizes
from .hooks import hook_tables

SHARED = ("shared_expert", "shared_experts")
"""What Hugging Face calls the experts that every token goes to."""


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
    to have pre-activation and coefficient 0.

    Attributes:
        project_gate, project_in, project_out: the projections of all experts, called as if they were linear layers.

    Source: Shazeer et al. 2017 (1701.06538), eq. 1; shared experts: Dai et al. 2024 (2401.06066), eq. 9.
    """

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self._modules = block._modules  # under the names that checkpoints have
        self.train(block.training)
        # In a tuple, so that torch does not take them for parts.
        self.projections = (ExpertGates(self), ExpertKeys(self), ExpertValues(self))
        self.__dict__.update(hook_tables(block))
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
        own, shared = self.routed_experts.down_proj, self.shared
        if not own.transpose(1, 2).is_contiguous():
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
            own, behind = self.routed_experts.down_proj, None if self.shared is None else self.shared.down_proj.weight
            count, d_model, width = own.shape
            rows = own.detach().transpose(1, 2).flatten(0, 1)
            whole = torch.cat([rows] if behind is None else [rows, behind.detach().T])
            own.data = whole[: count * width].view(count, width, d_model).transpose(1, 2)
            if behind is not None:
                behind.data = whole[count * width :].T

    def forward(self, x: Float[Tensor, "*n d_model"]) -> Float[Tensor, "*n d_model"]:
        project_gate, project_in, project_out = self.projections
        return project_out(self.routed_experts.act_fn(project_gate(x)) * project_in(x))

    @property
    def routed_experts(self) -> Any:
        """What holds the weights of all experts but the shared ones."""
        return self._modules["experts"]

    @property
    def router(self) -> Any:
        """What decides how much each expert counts."""
        return self._modules["gate"]

    @property
    def shared(self) -> Any:
        """The FFN that every token goes through beside its experts; None where there is none."""
        return next((self._modules[name] for name in SHARED if name in self._modules), None)

    @property
    def views(self) -> tuple[Expert, ...]:
        """Each expert by itself, the shared ones last as one."""
        count, width, shared = self.sizes
        halves = [one.chunk(2) for one in self.routed_experts.gate_up_proj]
        parts = [
            (keys, gates, values.T) for (gates, keys), values in zip(halves, self.routed_experts.down_proj, strict=True)
        ]
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
        return [self._modules[name] for name in ("gate", "shared_expert_gate") if name in self._modules]

    @property
    def sizes(self) -> ExpertSizes:
        """How many experts, how many neurons in each, and how many shared ones."""
        count, _, d_expert = self.routed_experts.down_proj.shape
        return ExpertSizes(count, d_expert, 0 if self.shared is None else self.shared.down_proj.in_features)

    def route(self, x: Float[Tensor, "n d_model"]) -> tuple[Float[Tensor, "n experts"], Float[Tensor, "n shared"]]:
        """What the router gives each expert, 0 where it is not chosen, and what shared ones are multiplied by."""
        _, weights, chosen = self.router(x)
        scale = x.new_zeros(len(x), self.sizes[0]).scatter(1, chosen, weights.to(x.dtype))
        always = self.routers[1](x).sigmoid() if len(self.routers) > 1 else x.new_ones(len(x), 1)
        return scale, always

    def factors(self, x: Float[Tensor, "*n d_model"]) -> Float[Tensor, "*n neurons"]:
        """What each neuron's linear part is multiplied by; 0 in experts that an input is not routed to."""
        scale, always = self.route(x.reshape(-1, x.shape[-1]))
        _, width, shared = self.sizes
        found = torch.cat([scale.repeat_interleave(width, 1), always.expand(-1, shared)], dim=1)
        return found.view(*x.shape[:-1], -1)

    def routed(self, scale: Float[Tensor, "n experts"]) -> Iterator[tuple[int, Tensor, slice]]:
        """Each expert that some tokens go to, which, and where its neurons are."""
        width = self.sizes[1]
        for expert in (scale != 0).any(0).nonzero().flatten().tolist():
            yield expert, scale[:, expert].nonzero().flatten(), slice(expert * width, (expert + 1) * width)


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
        rows = mixture.routed_experts.gate_up_proj.chunk(2, dim=1)[self.which].flatten(0, 1)
        return rows if mixture.shared is None else torch.cat([rows, getattr(mixture.shared, self.shared).weight])

    def forward(self, x: Float[Tensor, "*n d_model"]) -> Float[Tensor, "*n neurons"]:
        mixture, flat = self.mixture, x.reshape(-1, x.shape[-1])
        count, width, shared = mixture.sizes
        scale, always = mixture.route(flat)
        found = flat.new_zeros(len(flat), count * width + shared)
        for expert, tokens, neurons in mixture.routed(scale):
            weight = mixture.routed_experts.gate_up_proj[expert].chunk(2)[self.which]
            found[tokens, neurons] = self.scaled(flat[tokens] @ weight.T, scale[tokens, expert, None])
        if shared:
            found[:, count * width :] = self.scaled(getattr(mixture.shared, self.shared)(flat), always)
        return found.view(*x.shape[:-1], -1)

    def scaled(self, found: Float[Tensor, "n neurons"], scale: Float[Tensor, "n 1"]) -> Float[Tensor, "n neurons"]:
        return found


class ExpertGates(ExpertRows):
    """Of all experts."""


class ExpertKeys(ExpertRows):
    """Of all experts, with what the router gives."""

    which, shared = 1, "up_proj"

    def scaled(self, found: Float[Tensor, "n neurons"], scale: Float[Tensor, "n 1"]) -> Float[Tensor, "n neurons"]:
        return found * scale


class ExpertValues(ExpertProjection):
    """The values of all experts, one matrix in memory that their own parameters are views of."""

    @property
    def weight(self) -> Float[Tensor, "d_model neurons"]:
        """Live: what is written into it changes the experts."""
        mixture = self.mixture
        mixture.lay_together()
        count, width, shared = mixture.sizes
        own = mixture.routed_experts.down_proj
        return own.as_strided((count * width + shared, own.shape[1]), (own.shape[1], 1)).T

    def forward(self, m: Float[Tensor, "*n neurons"]) -> Float[Tensor, "*n d_model"]:
        mixture, flat = self.mixture, m.reshape(-1, m.shape[-1])
        count, width, shared = mixture.sizes
        each = flat[:, : count * width].view(len(flat), count, width)
        found = flat.new_zeros(len(flat), mixture.routed_experts.down_proj.shape[1])
        # Gradients at coefficients are asked for where these are 0 as well.
        used = torch.ones_like(each[..., 0]) if flat.requires_grad else each.abs().amax(2)
        for expert, tokens, neurons in mixture.routed(used):
            found = found.index_add(0, tokens, flat[tokens, neurons] @ mixture.routed_experts.down_proj[expert].T)
        if shared:
            found = found + mixture.shared.down_proj(flat[:, count * width :])
        return found.view(*m.shape[:-1], -1)


def find_mixture(layer: nn.Module, path: str) -> Any:
    """The FFN at a path of a layer; a block of experts begins to run as a :class:`Mixture`."""
    holder, _, name = path.rpartition(".")
    parts = layer.get_submodule(holder)._modules
    if is_mixture(parts.get(name)):
        parts[name] = Mixture(layer.get_submodule(path))
    return parts.get(name)


def is_mixture(mlp: Any) -> bool:
    """Whether an FFN is a block of experts as :class:`Mixture` takes it."""
    parts = getattr(mlp, "_modules", {})
    experts = parts.get("experts")
    return (
        not isinstance(mlp, Mixture)
        and "gate" in parts
        and all(hasattr(experts, name) for name in ("gate_up_proj", "down_proj", "act_fn"))
    )
