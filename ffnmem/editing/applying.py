"""Edits in a model: in its weights for a while or for good, or hung on as hooks, one edit a row."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, SupportsIndex, overload

import torch
from einops import einsum
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn

from ..core.errors import InputError, ModelError, OutOfRangeError, listed
from ..models.hooks import first_tensor
from ..models.model import Model
from ..models.norms import at_least_float32
from ..models.replaying import Change, Replay
from ..models.turns import OpenBlock
from .edit_record import EditedLayer, EditRecord

# Edits in a model's weights and out again: a ledger of what they were, so that reverting gives back every bit.


@dataclass(frozen=True, eq=False)
class LayerValues:
    """The values of one layer, in the model's dtype: as they were before any edit, and as the ledger wrote them."""

    pristine: Float[Tensor, "d_mlp d_model"]
    written: Float[Tensor, "d_mlp d_model"]


MANY = 8  # edits from which on sums are kept in float64: to add up all of them anew for each takes squared time


class EditMark:
    """A hook that changes nothing and says that one beside it does: ``Model.interventions`` reads these."""

    def __init__(self, edit: EditRecord) -> None:
        self.edit = edit
        self.intervention = f"edit {edit.digest} ({edit.title}) as hooks"

    def __call__(self, _module: nn.Module, _args: tuple[Any, ...]) -> None:
        return None


class EditLedger(Sequence[EditRecord]):
    """The edits that a model's weights hold, in their order, and the values without them; ``model.edits``.

    A layer's values are always the pristine ones plus the changes of its edits, added up in that order in float64 and
    rounded once. So reverting an edit, whichever it is, leaves what applying the others alone would have given.

    Attributes:
        fingerprint: of the model without these edits.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.fingerprint = model.fingerprint
        self.state = model.weight_state()
        self.active: tuple[EditRecord, ...] = ()
        self.held: dict[int, LayerValues] = {}
        self.sums: dict[int, Float64[Tensor, "d_mlp d_model"]] = {}  # of many edits: by layer, of all that are active

    @overload
    def __getitem__(self, index: SupportsIndex) -> EditRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[EditRecord]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> EditRecord | Sequence[EditRecord]:
        return self.active[index]

    def __len__(self) -> int:
        return len(self.active)

    def find(self, edit: EditRecord) -> int | None:
        """Where an edit stands, by its digest."""
        return next((i for i, held in enumerate(self.active) if held.digest == edit.digest), None)

    def become(self, active: tuple[EditRecord, ...]) -> None:
        """Write the values that the model has with these edits, all layers or none.

        Raises: InputError: values changed by somebody else, or too large for the model's dtype; nothing is changed.
        """
        self.check_untouched()
        moved = {change.layer for edit in {*self.active} ^ {*active} for change in edit.changes}
        more = active[len(self.active) :] if active[: len(self.active)] == self.active else None
        new: dict[int, LayerValues] = {}
        sums = {layer: total for layer, total in self.sums.items() if layer not in moved}
        for layer in sorted(moved):
            held = self.held.get(layer)
            pristine = self.model.ffn[layer].values.detach().clone() if held is None else held.pristine
            if more is not None and layer in self.sums:
                total = with_changes(self.sums[layer], more, layer)
            else:
                total = with_changes(pristine.double(), active, layer)
            new[layer] = LayerValues(pristine, rounded(total, pristine, active, layer))
            if len(active) >= MANY:
                sums[layer] = total
        before = {
            layer: self.held[layer].written if layer in self.held else held.pristine for layer, held in new.items()
        }
        was = self.model.edits, self.held, self.active, self.sums
        try:
            self.model.edits = self
            self.write({layer: held.written for layer, held in new.items()})
            self.held, self.active, self.sums = {**self.held, **new}, active, sums
        except BaseException:  # an interrupt on the way: neither edit nor model may stay in halves
            self.write(before)
            self.model.edits, self.held, self.active, self.sums = was
            raise

    def write(self, values: dict[int, Tensor]) -> None:
        with torch.no_grad():
            for layer, written in values.items():
                self.model.ffn[layer].values.copy_(written)

    def check_untouched(self) -> None:
        """Raise InputError if the values of a layer are not what the ledger wrote."""
        for layer, held in self.held.items():
            live, written = self.model.ffn[layer].values.detach(), held.written
            same = (live.shape, live.dtype, live.device) == (written.shape, written.dtype, written.device)
            if not same or not torch.equal(live, written):
                raise InputError(
                    f"layer {layer} of {self.model.name} was changed by something else while {self.active[-1].title} "
                    "was applied: put its values back as they were, or load the model again; nothing was changed"
                )

    def others_untouched(self) -> bool:
        """Whether no weight but the values in the ledger was changed since it was begun."""
        own = {id(self.model.ffn[layer].project_out.weight) for layer in self.held}
        parameters = dict(self.model.hf_model.named_parameters())
        state = self.model.weight_state()
        return state.keys() == self.state.keys() and all(
            state[name] == self.state[name] for name, parameter in parameters.items() if id(parameter) not in own
        )

    def settle(self) -> None:
        """Be the model's ledger, or, with nothing in it, leave the model as it was found."""
        self.model.edits = self if self.active else ()
        if not self.active and self.held and self.others_untouched():
            self.model.remember_fingerprint(self.fingerprint)

    def __repr__(self) -> str:
        return f"EditLedger({', '.join(edit.title for edit in self.active) or 'no edits'})"


def with_changes(
    values: Float64[Tensor, "d_mlp d_model"], edits: Iterable[EditRecord], layer: int
) -> Float64[Tensor, "d_mlp d_model"]:
    """A layer's values with the changes of edits, added one by one in their order."""
    for change in (change for edit in edits for change in edit.changes if change.layer == layer):
        values = values + change.delta().to(values.device)
    return values


def rounded(
    total: Float64[Tensor, "d_mlp d_model"],
    pristine: Float[Tensor, "d_mlp d_model"],
    edits: Iterable[EditRecord],
    layer: int,
) -> Float[Tensor, "d_mlp d_model"]:
    """The sum of a layer's values and edits in the values' dtype; the pristine bits where no edit changes it.

    Raises InputError if what comes out is too large for that dtype.
    """
    if not any(layer in edit.layers for edit in edits):
        return pristine.clone()
    found = total.to(pristine.dtype)
    if not bool(found.isfinite().all()):
        raise InputError(
            f"the edited values of layer {layer} reach {float(total.abs().max()):.3g}, too large for {pristine.dtype}: "
            "nothing was changed"
        )
    return found.clone() if found is total else found


def ledger_of(model: Model) -> EditLedger:
    """The model's ledger, or a new one, which is the model's once it holds something."""
    return model.edits if isinstance(model.edits, EditLedger) and model.edits.active else EditLedger(model)


def apply(edit: EditRecord, model: Model) -> None:
    """Write an edit into a model's weights.

    Args:
        edit: made for this model, without edits or with those that it has now.
        model: which.

    It stays for every thread and context, until :func:`revert`.

    Raises:
        InputError: applied already, by itself or in a sum, or acting as hooks; weights that something else changed
            meanwhile; values too large for the model's dtype. ModelError: an edit of another model. BusyError: another
            thread or context is inside a block of this model, or in the middle of something with it. Nothing is changed
            then.
    """
    with model.turns.changing(f"applying {edit.title}", changed_by(edit, model)):
        write(edit, model)


def changed_by(edit: EditRecord, model: Model) -> list[nn.Module]:
    """The modules whose weights an edit changes."""
    return [model.ffn[layer].project_out for layer in edit.layers if 0 <= layer < model.n_layers]


def write(edit: EditRecord, model: Model) -> None:
    """:func:`apply`, for who has the model's turn."""
    ledger = ledger_of(model)
    check_absent(edit, model)
    ledger.check_untouched()
    if not ledger.others_untouched():
        raise InputError(
            f"weights of {model.name} were changed by something else while {ledger.active[-1].title} was applied: "
            "revert that first, then apply this one"
        )
    check_fits(edit, model)
    ledger.become((*ledger.active, edit))
    ledger.settle()


def revert(edit: EditRecord, model: Model) -> None:
    """Take an edit out of a model's weights, which become, bit for bit, what the other edits alone would give.

    Args:
        edit: one that is applied, or its like from a file.
        model: which.

    Raises: InputError: not applied, or values that something else changed meanwhile; nothing is changed then. BusyError
        as :func:`apply`.
    """
    with model.turns.changing(f"reverting {edit.title}", changed_by(edit, model)):
        erase(edit, model)


def erase(edit: EditRecord, model: Model) -> None:
    """:func:`revert`, for who has the model's turn."""
    ledger = ledger_of(model)
    place = ledger.find(edit)
    if place is None:
        whole = next((other for other in ledger for part in edit.parts if part in other.parts), None)
        sums = "" if whole is None else f" by itself, but in {whole.title}, which can be reverted as one"
        raise InputError(f"{edit.title} is not applied to {model.name}{sums}")
    ledger.become(ledger.active[:place] + ledger.active[place + 1 :])
    ledger.settle()


def applied(edit: EditRecord, model: Model) -> AbstractContextManager[Model]:
    """A block in which a model has an edit; after it the edit is reverted, unless the block did that itself.

    The block belongs to the context that opened it, as one of :func:`ffnmem.intervene` does: other threads and contexts
    that run the model, or read it through ffnmem, are refused while it is open.

    Raises: as :func:`apply` and :func:`revert`.
    """

    def begin(block: OpenBlock) -> Model:
        check_absent(edit, model)  # or leaving the block would take out what somebody else put in
        block.undo.append(lambda: erase_if_there(edit, model))
        write(edit, model)
        return model

    words = f"edit {edit.digest} ({edit.title}) applied"
    return model.turns.changing(words, changed_by(edit, model), begin)


def erase_if_there(edit: EditRecord, model: Model) -> None:
    if ledger_of(model).find(edit) is not None:
        erase(edit, model)


def with_edit(edit: EditRecord, model: Model, present: bool = True) -> AbstractContextManager[object]:
    """A block in which a model has an edit, or has not, whatever it had before; then again what it had before.

    Raises: as :func:`apply` and :func:`revert`.
    """
    before = ledger_of(model).active
    if (ledger_of(model).find(edit) is not None) == present:
        return nullcontext()

    def begin(block: OpenBlock) -> None:
        block.undo.append(lambda: put_back(model, before))
        (write if present else erase)(edit, model)

    words = f"edit {edit.digest} ({edit.title}) {'applied' if present else 'taken out'}"
    return model.turns.changing(words, changed_by(edit, model), begin)


def put_back(model: Model, before: tuple[EditRecord, ...]) -> None:
    """Give a model the edits that it had ``before`` again."""
    ledger = ledger_of(model)
    if ledger.active != before:
        ledger.become(before)
        ledger.settle()


def check_absent(edit: EditRecord, model: Model) -> None:
    """Raise InputError if a model has an edit, or a part of it, in its weights or as hooks: it would act twice."""
    marks = [hook for ffn in model.ffn for hook in ffn.project_out._forward_pre_hooks.values()]
    hooked = [mark.edit for mark in marks if isinstance(mark, EditMark)]
    for held, how, mend in (
        (tuple(ledger_of(model)), "applied to", "revert it first"),
        (hooked, "acting as hooks on", "leave their block first"),
    ):
        whole = next((other for part in edit.parts for other in held if part in other.parts), None)
        if whole is not None:
            what = "it" if whole.digest == edit.digest else f"a part of it ({whole.title})"
            raise InputError(f"{edit.title}: {what} is {how} {model.name} already: {mend}")


def check_fits(edit: EditRecord, model: Model) -> None:
    """Raise ModelError if an edit was made for other weights than a model has, with its edits or without them.

    OutOfRangeError or ModelError where its layers are not the model's.
    """
    for change in edit.changes:
        ffn = model.ffn[model.layer(change.layer)]
        sizes = [change.left.shape[1], change.right.shape[1]]
        if sizes != [ffn.d_mlp, ffn.d_model]:
            raise ModelError(
                f"{edit.title} changes values of shape {sizes}, and layer {change.layer} of {model.name} has "
                f"{[ffn.d_mlp, ffn.d_model]}"
            )
    pristine: Any = getattr(model.edits, "fingerprint", None)
    if edit.fingerprint != pristine and edit.fingerprint != model.fingerprint:
        first = f"; it was made on top of {listed(edit.under, 3)}: apply that first" if edit.under else ""
        raise ModelError(
            f"{edit.title} was made for a model with fingerprint {edit.fingerprint}, and {model.name} has "
            f"{model.fingerprint}{'' if pristine is None else f' (without its edits {pristine})'}{first}"
        )


# Edits without touching weights: other ones for each row of a batch, or one as hooks on the live model.

Factors = tuple[Float[Tensor, "edits rank d_mlp"], Float[Tensor, "edits rank d_model"]]


class RowEdits:
    """What each row's own edit makes the FFNs write: a ``change`` for ``Replay.finish``.

    ``rows.changing`` is what :func:`ffnmem.models.answers.answer` takes, the rows being questions then.

    Args:
        edits: made for the same weights.
        rows: for each row which of them it has, −1 for none.

    Attributes:
        lowest: the lowest layer that any edit changes: ``start`` for ``Replay`` and ``answer``.

    Raises: InputError: no edits, or edits for other weights or of other sizes. OutOfRangeError: no such edit.
    """

    def __init__(self, edits: Sequence[EditRecord], rows: Int[Tensor, " rows"] | Sequence[int]) -> None:
        self.edits, self.stacks = tuple(edits), stacked_factors(edits)
        self.lowest = min(self.stacks)
        self.rows = torch.as_tensor(rows, dtype=torch.long, device="cpu")
        strange = self.rows[(self.rows < -1) | (self.rows >= len(edits))]
        if len(strange):
            raise OutOfRangeError(
                f"edit {int(strange[0])} is out of range: there are 0 to {len(edits) - 1}, −1 for none"
            )
        self.ready: dict[tuple[int, torch.device, torch.dtype], Factors] = {}

    def __call__(self, layer: int, part: str, first: int, written: Tensor, coefficients: Tensor | None) -> Tensor:
        """What an FFN writes, with what each row's edit adds; what is no changed FFN's stays."""
        if part != "ffn" or layer not in self.stacks:
            return written
        assert coefficients is not None
        m = at_least_float32(coefficients)
        left, right = self.factors(layer, m)
        which = self.rows[: len(written)]
        if len(which) != len(written):
            raise InputError(f"the batch has {len(written)} rows, but edits were given for {len(which)}")
        if bool((which == which[0]).all()):  # nothing to gather
            more = (m @ left[which[0]].T) @ right[which[0]]
        else:
            which = which.to(m.device)
            strength = einsum(m, left[which], "row pos d_mlp, row rank d_mlp -> row pos rank")
            more = einsum(strength, right[which], "row pos rank, row rank d_model -> row pos d_model")
        return (at_least_float32(written) + more).to(written.dtype)

    def factors(self, layer: int, like: Tensor) -> Factors:
        """A layer's factors in the type and place of ``like``."""
        key = (layer, like.device, like.dtype)
        if key not in self.ready:
            left, right = self.stacks[layer]
            self.ready[key] = left.to(like.device, like.dtype), right.to(like.device, like.dtype)
        return self.ready[key]

    def of(self, rows: Int[Tensor, " some"]) -> RowEdits:
        """The same for some of the rows, in their order."""
        found = copy.copy(self)  # which shares what is ready
        found.rows = self.rows[rows.cpu()]
        return found

    def changing(self, questions: Int[Tensor, " rows"], replay: Replay) -> Change:
        """The change for a batch whose rows are each of one of the questions that this has as its rows.

        Raises: ModelError: edits for other weights than the batch's model has.
        """
        check_fits(self.edits[0], replay.model)  # the others are for the same weights
        return self.of(questions)


def stacked_factors(edits: Sequence[EditRecord]) -> dict[int, Factors]:
    """By layer, the factors of every edit, padded with zeros to one rank; the last ones are all zeros: no edit."""
    if not edits:
        raise InputError("there are no edits: give at least one")
    made_for = {edit.fingerprint for edit in edits}
    if len(made_for) > 1:
        raise InputError(f"the edits were made for other weights: {', '.join(sorted(made_for))}")
    found: dict[int, Factors] = {}
    for layer in sorted({layer for edit in edits for layer in edit.layers}):
        changes = {i: change for i, edit in enumerate(edits) for change in edit.changes if change.layer == layer}
        sizes = {(change.left.shape[1], change.right.shape[1]) for change in changes.values()}
        if len(sizes) > 1:
            raise InputError(f"the edits change values of other shapes in layer {layer}: {sorted(sizes)}")
        (d_mlp, d_model), rank = sizes.pop(), max(change.rank for change in changes.values())
        left = torch.zeros(len(edits) + 1, rank, d_mlp, dtype=torch.float64)
        right = torch.zeros(len(edits) + 1, rank, d_model, dtype=torch.float64)
        for i, change in changes.items():
            left[i, : change.rank], right[i, : change.rank] = change.left, change.right
        found[layer] = left, right
    return found


class EditHook:
    """Adds what a change of a layer's values would write."""

    def __init__(self, change: EditedLayer, like: Tensor) -> None:
        wanted = at_least_float32(like.detach()).dtype
        self.left, self.right = change.left.to(like.device, wanted), change.right.to(like.device, wanted)

    def __call__(self, _module: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor:
        written = first_tensor(output)
        more = (at_least_float32(args[0]) @ self.left.T) @ self.right
        return (at_least_float32(written) + more).to(written.dtype)


def hooked(edit: EditRecord, model: Model) -> AbstractContextManager[Model]:
    """A block in which hooks on a model write what an edit would, in every pass, its weights untouched.

    All that runs the model sees it, generation too. What runs the layers by themselves refuses to run inside, and
    attribution, which reads values off the weights, does not add up there: that is for :meth:`Edit.applied`. The block
    belongs to the context that opened it, as one of :func:`ffnmem.intervene` does: other threads are refused.

    Args:
        edit: made for this model, without edits or with those that it has now.
        model: which.

    Raises: ModelError: an edit of another model. InputError: one that is applied, or acts as hooks, already.
        BusyError: another thread or context is inside a block of this model, or in the middle of something with it.
    """

    def begin(block: OpenBlock) -> Model:
        check_absent(edit, model)
        check_fits(edit, model)
        for change in edit.changes:
            module = model.ffn[change.layer].project_out
            block.hook(module, EditHook(change, model.ffn[change.layer].values))
            block.hook(module, EditMark(edit), before=True)
        return model

    words = f"edit {edit.digest} ({edit.title}) as hooks"
    return model.turns.changing(words, changed_by(edit, model), begin)
