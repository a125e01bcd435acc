"""The edits that a model's weights hold: a ledger of what the values were, so that reverting gives back every bit."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ..core.errors import InputError
from ..models.model import Model

MANY = 8  # edits from which on sums are kept in float64: to add up all of them anew for each takes squared time


class EditLedger(Sequence[Any]):
    """The edits (:class:`ffnmem.Edit`) that a model's weights hold, in their order; ``model.edits``.

    A layer's values are always the pristine ones plus the changes of its edits, added up in that order in float64 and
    rounded once. So reverting an edit, whichever it is, leaves what applying the others alone would have given.

    Attributes:
        fingerprint: of the model without these edits.
        pristine, written: by layer that has had an edit, its values before any and as they are now, in their dtype.
        sums: of many edits: by layer, its values and changes in float64.
    """

    def __init__(self, model: Model) -> None:
        self.model, self.fingerprint, self.state = model, model.fingerprint, model.weight_state()
        self.active: tuple[Any, ...] = ()
        self.pristine: dict[int, Float[Tensor, "d_mlp d_model"]] = {}
        self.written: dict[int, Float[Tensor, "d_mlp d_model"]] = {}
        self.sums: dict[int, Float64[Tensor, "d_mlp d_model"]] = {}

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        return self.active[index]

    def __len__(self) -> int:
        return len(self.active)

    def with_edits(self, edits: tuple[Any, ...]) -> EditLedger:
        """The ledger of these edits instead. Raises InputError for values too large for the model's dtype."""
        moved = {layer for edit in {*self.active} ^ {*edits} for layer in edit.layers}
        ledger = copy.copy(self)
        ledger.active, ledger.pristine, ledger.written = edits, dict(self.pristine), dict(self.written)
        ledger.sums = {layer: total for layer, total in self.sums.items() if layer not in moved}
        appended = edits[: len(self.active)] == self.active
        for layer in sorted(moved):
            if layer not in ledger.pristine:
                ledger.pristine[layer] = self.model.ffn[layer].values.detach().clone()
            if appended and layer in self.sums:
                total, added = self.sums[layer], edits[len(self.active) :]
            else:
                total, added = ledger.pristine[layer].double(), edits
            for change in (change for edit in added for change in edit.changes if change.layer == layer):
                total = total + change.delta().to(total.device)
            ledger.written[layer] = rounded(total, ledger.pristine[layer].dtype, layer)
            if len(edits) >= MANY:
                ledger.sums[layer] = total
        return ledger

    def check_untouched(self) -> None:
        """Raise InputError if the values of a layer are not what was written."""
        for layer, written in self.written.items():
            live = self.model.ffn[layer].values.detach()
            same = (live.shape, live.dtype, live.device) == (written.shape, written.dtype, written.device)
            if not same or not torch.equal(live, written):
                raise InputError(
                    f"layer {layer} of {self.model.name} was changed by something else while {self.active[-1].title} "
                    "was applied: put its values back as they were, or load the model again; nothing was changed"
                )

    def others_untouched(self) -> bool:
        """Whether no weight but the values in the ledger was changed since it was begun."""
        own = {id(self.model.ffn[layer].project_out.weight) for layer in self.written}
        parameters = dict(self.model.hf_model.named_parameters())
        state = self.model.weight_state()
        return state.keys() == self.state.keys() and all(
            state[name] == self.state[name] for name, parameter in parameters.items() if id(parameter) not in own
        )

    def __repr__(self) -> str:
        return f"EditLedger({', '.join(edit.title for edit in self.active) or 'no edits'})"


def rounded(total: Float64[Tensor, "d_mlp d_model"], dtype: torch.dtype, layer: int) -> Float[Tensor, "d_mlp d_model"]:
    """The sum of a layer's values and edits in the values' dtype; raises InputError if it is too large for that."""
    values = total.to(dtype)
    if not bool(values.isfinite().all()):
        raise InputError(
            f"the edited values of layer {layer} reach {float(total.abs().max()):.3g}, too large for {dtype}: "
            "nothing was changed"
        )
    return values


def ledger_of(model: Model) -> EditLedger:
    """The model's ledger, or a new one, which is the model's once it holds something."""
    return model.edits if isinstance(model.edits, EditLedger) and model.edits.active else EditLedger(model)


def set_edits(model: Model, edits: Sequence[Any]) -> None:
    """Give a model these edits in place of those that it has: all layers are written, or none.

    Every change of a model's edits is made here, by whoever has the model's turn.

    Raises: InputError: values changed by somebody else, or too large for the model's dtype; nothing is changed.
    """
    old, was = ledger_of(model), model.edits
    if tuple(edits) == old.active:
        return
    old.check_untouched()
    new = old.with_edits(tuple(edits))
    changed = [layer for layer, values in new.written.items() if values is not old.written.get(layer)]
    try:
        model.edits = new
        write_values(model, {layer: new.written[layer] for layer in changed})
    except BaseException:  # an interrupt on the way: neither edit nor model may stay in halves
        write_values(model, {layer: old.written.get(layer, new.pristine[layer]) for layer in changed})
        model.edits = was
        raise
    if not edits:
        model.edits = ()
        if new.others_untouched():
            model.remember_fingerprint(new.fingerprint)


def check_unchanged(model: Model) -> None:
    """Raise InputError if weights of an edited model were changed by something else, so that no edit fits them."""
    ledger = ledger_of(model)
    ledger.check_untouched()
    if not ledger.others_untouched():
        raise InputError(
            f"weights of {model.name} were changed by something else while {ledger[-1].title} was applied: "
            "revert that first, then apply this one"
        )


def write_values(model: Model, values: Mapping[int, Float[Tensor, "d_mlp d_model"]]) -> None:
    """Overwrite the values of some layers."""
    with torch.no_grad():
        for layer, written in values.items():
            model.ffn[layer].values.copy_(written)
