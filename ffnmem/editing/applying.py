"""Edits in a model: in its weights for a while or for good, or hung on as hooks, one edit a row."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from .edit_record import EditedLayer, EditRecord

# Edits in a model's weights and out again: a ledger of what they were, so that reverting gives back every bit.

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
        pristine, written: by layer that has had an edit, its values before any and as they are now, in their dtype.
        sums: of many edits: by layer, its values and changes in float64.
    """

    def __init__(self, model: Model) -> None:
        self.model, self.fingerprint, self.state = model, model.fingerprint, model.weight_state()
        self.active: tuple[EditRecord, ...] = ()
        self.pristine: dict[int, Float[Tensor, "d_mlp d_model"]] = {}
        self.written: dict[int, Float[Tensor, "d_mlp d_model"]] = {}
        self.sums: dict[int, Float64[Tensor, "d_mlp d_model"]] = {}

    @overload
    def __getitem__(self, index: SupportsIndex) -> EditRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[EditRecord]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> EditRecord | Sequence[EditRecord]:
        return self.active[index]

    def __len__(self) -> int:
        return len(self.active)

    def with_edits(self, edits: tuple[EditRecord, ...]) -> EditLedger:
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


def set_edits(model: Model, edits: Sequence[EditRecord]) -> None:
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


def write_values(model: Model, values: Mapping[int, Float[Tensor, "d_mlp d_model"]]) -> None:
    """Overwrite the values of some layers."""
    with torch.no_grad():
        for layer, written in values.items():
            model.ffn[layer].values.copy_(written)


def apply(edit: EditRecord, model: Model) -> None:
    """Write an edit into a model's weights.

    Args:
        edit: made for this model, without edits or with those that it has now.
        model: which.

    It stays for every thread, until :func:`revert`.

    Raises:
        InputError: applied already, by itself or in a sum, or acting as hooks; weights that something else changed
            meanwhile; values too large for the model's dtype. ModelError: an edit of another model. BusyError: another
            thread changes or reads the model. Nothing is changed then.
    """
    with model.turns.changing(f"applying {edit.title}", changed_by(edit, model)):
        add_edit(edit, model)


def changed_by(edit: EditRecord, model: Model) -> list[nn.Module]:
    """The modules whose weights an edit changes."""
    return [model.ffn[layer].project_out for layer in edit.layers if 0 <= layer < model.n_layers]


def add_edit(edit: EditRecord, model: Model) -> None:
    """:func:`apply`, for who has the model's turn."""
    ledger = ledger_of(model)
    check_absent(edit, model)
    ledger.check_untouched()
    if not ledger.others_untouched():
        raise InputError(
            f"weights of {model.name} were changed by something else while {ledger[-1].title} was applied: "
            "revert that first, then apply this one"
        )
    check_fits(edit, model)
    set_edits(model, (*ledger, edit))


def revert(edit: EditRecord, model: Model) -> None:
    """Take an edit out of a model's weights, which become, bit for bit, what the other edits alone would give.

    Args:
        edit: one that is applied, or its like from a file.
        model: which.

    Raises: InputError: not applied, or values that something else changed meanwhile; nothing is changed then. BusyError
        as :func:`apply`.
    """
    with model.turns.changing(f"reverting {edit.title}", changed_by(edit, model)):
        if not is_applied(edit, model):
            whole = next((other for other in model.edits for part in edit.parts if part in other.parts), None)
            sums = "" if whole is None else f" by itself, but in {whole.title}, which can be reverted as one"
            raise InputError(f"{edit.title} is not applied to {model.name}{sums}")
        set_edits(model, edits_without(edit, model))


def is_applied(edit: EditRecord, model: Model) -> bool:
    """Whether a model's weights hold an edit, or its like from a file."""
    return any(held.digest == edit.digest for held in model.edits)


def edits_without(edit: EditRecord, model: Model) -> list[EditRecord]:
    """A model's edits but this one."""
    return [held for held in model.edits if held.digest != edit.digest]


@contextmanager
def applied(edit: EditRecord, model: Model) -> Iterator[Model]:
    """A block in which a model has an edit; after it the edit is reverted, unless the block did that itself.

    The block belongs to the thread that opened it, as one of :func:`ffnmem.intervene` does: other threads that run the
    model, or read it through ffnmem, are refused while it is open.

    Raises: as :func:`apply` and :func:`revert`.
    """
    with model.turns.changing(f"edit {edit.digest} ({edit.title}) applied", changed_by(edit, model)) as block:
        check_absent(edit, model)  # or leaving the block would take out what somebody else put in
        block.callback(put_back, model, lambda: edits_without(edit, model))
        add_edit(edit, model)
        yield model


def put_back(model: Model, edits: Callable[[], Sequence[EditRecord]]) -> None:
    """:func:`set_edits` at the end of a block, done although an interrupt comes in its middle."""
    try:
        set_edits(model, edits())
    except KeyboardInterrupt:
        set_edits(model, edits())
        raise


@contextmanager
def with_edit(edit: EditRecord, model: Model, present: bool = True) -> Iterator[None]:
    """A block in which a model has an edit, or has not, whatever it had before; then again what it had before.

    Raises: as :func:`apply` and :func:`revert`.
    """
    if is_applied(edit, model) == present:
        yield
        return
    before, words = tuple(model.edits), f"edit {edit.digest} ({edit.title}) {'applied' if present else 'taken out'}"
    with model.turns.changing(words, changed_by(edit, model)) as block:
        block.callback(put_back, model, lambda: before)
        if present:
            add_edit(edit, model)
        else:
            set_edits(model, edits_without(edit, model))
        yield


def check_absent(edit: EditRecord, model: Model) -> None:
    """Raise InputError if a model has an edit, or a part of it, in its weights or as hooks: it would act twice."""
    marks = [hook for ffn in model.ffn for hook in ffn.project_out._forward_pre_hooks.values()]
    hooked = [mark.edit for mark in marks if isinstance(mark, EditMark)]
    for held, how, mend in (
        (list(model.edits), "applied to", "revert it first"),
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


@contextmanager
def hooked(edit: EditRecord, model: Model) -> Iterator[Model]:
    """A block in which hooks on a model write what an edit would, in every pass, its weights untouched.

    All that runs the model sees it, generation too. What runs the layers by themselves refuses to run inside, and
    attribution, which reads values off the weights, does not add up there: that is for :meth:`Edit.applied`. The block
    belongs to the thread that opened it, as one of :func:`ffnmem.intervene` does: other threads are refused.

    Args:
        edit: made for this model, without edits or with those that it has now.
        model: which.

    Raises: ModelError: an edit of another model. InputError: one that is applied, or acts as hooks, already.
        BusyError: another thread changes or reads the model.
    """
    with model.turns.changing(f"edit {edit.digest} ({edit.title}) as hooks", changed_by(edit, model)) as block:
        check_absent(edit, model)
        check_fits(edit, model)
        for change in edit.changes:
            module = model.ffn[change.layer].project_out
            block.hook(module, EditHook(change, model.ffn[change.layer].values))
            block.hook(module, EditMark(edit), before=True)
        yield model
