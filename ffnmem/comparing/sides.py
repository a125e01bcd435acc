"""One of the two models of a comparison: its weights, and its layers as they run, with an edit or without."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ..core.provenance import Provenance
from ..editing.edit import Edit, with_edit
from ..ffn.activations import activation
from ..models.layer_pass import LayerPass, check_same
from ..models.model import Model
from ..models.norms import at_least_float32
from ..neurons.overlap import memory_sides

SIDES = ("key", "gate", "value")


@dataclass(frozen=True, eq=False)
class Side:
    """A model as it is compared: nothing that happens to its edits later is seen.

    Attributes:
        model: whose weights it shares, but for the values of the layers that an edit changes.
        values: these, ``[d_mlp, d_model]`` by layer.
        body: its layers; None where no text is read.
        title: what to call it.
        provenance: with its fingerprint, and the edits in it.
    """

    model: Model
    values: Mapping[int, Tensor]
    body: LayerPass | None
    title: str
    provenance: Provenance

    @classmethod
    def of(
        cls,
        model: Model,
        edit: Edit | None = None,
        present: bool = True,
        *,
        runs: bool = True,
        prepend_bos: bool | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Side:
        """A model as it is; or with an edit, or without it, whichever it has now.

        Raises: UnsupportedModelError: hooks or an intervention change what the layers compute. ModelError: an edit of
            another model.
        """
        with nullcontext() if edit is None else with_edit(edit, model, present):
            body = LayerPass(model) if runs else None
            edited = () if edit is None else edit.layers
            values = {layer: model.ffn[layer].values.detach().clone() for layer in edited}
            if body is not None:
                check_same(model, body)
                for layer in edited:
                    copy_values(body, layer)
            title = model.name if edit is None or not present else f"{model.name} with {edit.title}"
            return cls(model, values, body, title, model.provenance(prepend_bos, **(settings or {})))

    @property
    def sides(self) -> tuple[str, ...]:
        """What its neurons have: "key", "value", and of gated ones "gate"."""
        return memory_sides(self.model)

    def rows(self, layer: int, side: str, biased: bool = False) -> Float64[Tensor, "d_mlp width"]:
        """The keys, gates or values of a layer in float64 on the CPU; ``biased``: each with its own bias behind it."""
        ffn = self.model.ffn[layer]
        values = self.values.get(layer)
        weight, bias = {
            "key": (ffn.keys, ffn.key_bias),
            "gate": (ffn.gates, ffn.gate_bias),
            "value": (ffn.values if values is None else values, None),
        }[side]
        assert weight is not None
        wide = weight.detach().cpu().double()
        if not biased or bias is None:
            return wide
        return torch.cat([wide, bias.detach().cpu().double().unsqueeze(1)], dim=1)

    def fired(self, layer: int, pre: Tensor, linear: Tensor | None) -> Tensor:
        """The coefficients of pre-activations, and of the linear parts of gated neurons; in at least float32."""
        opened = activation(self.model.ffn[layer].activation)(at_least_float32(pre))
        return opened if linear is None else opened * at_least_float32(linear)


def copy_values(body: LayerPass, layer: int) -> None:
    """Give a layer values of its own, in place of those that it shares with the model."""
    mixture = body.mixtures[layer]
    holders: list[tuple[Any, str]] = [(body.projections[layer].out, "weight")]
    if mixture is not None:
        holders = [(mixture.routed_experts, "down_proj")]
        holders += [] if mixture.shared is None else [(mixture.shared.down_proj, "weight")]
        holders += [(mixture.routed_experts, "down_proj_bias")] * mixture.form.clamped
    for module, name in holders:
        setattr(module, name, nn.Parameter(getattr(module, name).detach().clone(), requires_grad=False))
