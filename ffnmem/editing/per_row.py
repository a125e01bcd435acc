"""Edits without touching weights: other ones for each row of a batch, or one as hooks on the live model."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import InputError, OutOfRangeError
from ..hooks import first_tensor
from ..models import Model
from ..models.final_norm import at_least_float32
from ..models.replaying import Change, Replay
from .applying import EditMark, changed_by, check_absent, check_fits
from .edit_record import EditRecord, LayerChange

Factors = tuple[Float[Tensor, "edits rank d_mlp"], Float[Tensor, "edits rank d_model"]]


class Rows:
    """What each row's own edit makes the FFNs write: a ``change`` for ``Replay.finish``.

    ``rows.changing`` is what :func:`ffnmem.models.scoring.answer` takes, the rows being questions then.

    Args:
        edits: made for the same weights.
        rows: for each row which of them it has, −1 for none.

    Attributes:
        lowest: the lowest layer that any edit changes: ``start`` for ``Replay`` and ``answer``.

    Raises: InputError: no edits, or edits for other weights or of other sizes. OutOfRangeError: no such edit.
    """

    def __init__(self, edits: Sequence[EditRecord], rows: Int[Tensor, " rows"] | Sequence[int]) -> None:
        self.edits, self.stacks = tuple(edits), stacks(edits)
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

    def of(self, rows: Int[Tensor, " some"]) -> Rows:
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


def stacks(edits: Sequence[EditRecord]) -> dict[int, Factors]:
    """By layer, the factors of every edit, padded with zeros to one rank; the last ones are all zeros: no edit."""
    if not edits:
        raise InputError("there are no edits: give at least one")
    made_for = {edit.fingerprint for edit in edits}
    if len(made_for) > 1:
        raise InputError(f"the edits were made for other weights: {', '.join(sorted(made_for))}")
    found: dict[int, Factors] = {}
    for layer in sorted({layer for edit in edits for layer in edit.layers}):
        changes = {i: change for i, edit in enumerate(edits) for change in edit.changes if change.layer == layer}
        found[layer] = padded(changes, len(edits) + 1, layer)
    return found


def padded(changes: dict[int, LayerChange], count: int, layer: int) -> Factors:
    """The factors of changes at their places among ``count``."""
    sizes = {(change.left.shape[1], change.right.shape[1]) for change in changes.values()}
    if len(sizes) > 1:
        raise InputError(f"the edits change values of other shapes in layer {layer}: {sorted(sizes)}")
    (d_mlp, d_model), rank = sizes.pop(), max(change.rank for change in changes.values())
    left = torch.zeros(count, rank, d_mlp, dtype=torch.float64)
    right = torch.zeros(count, rank, d_model, dtype=torch.float64)
    for i, change in changes.items():
        left[i, : change.rank], right[i, : change.rank] = change.left, change.right
    return left, right


class EditHook:
    """Adds what a change of a layer's values would write; ``intervention`` tells whoever looks."""

    def __init__(self, edit: EditRecord, change: LayerChange, like: Tensor) -> None:
        wanted = at_least_float32(like.detach()).dtype
        self.left, self.right = change.left.to(like.device, wanted), change.right.to(like.device, wanted)
        self.edit = edit

    def __call__(self, _module: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor:
        written = first_tensor(output)
        more = (at_least_float32(args[0]) @ self.left.T) @ self.right
        return (at_least_float32(written) + more).to(written.dtype)


@contextmanager
def hooked(edit: EditRecord, model: Model) -> Iterator[Model]:
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
    words = f"edit {edit.digest} ({edit.title}) as hooks"
    with model.turns.changing(words, changed_by(edit, model)) as undo:
        check_absent(edit, model)
        check_fits(edit, model)
        for change in edit.changes:
            module = model.ffn[change.layer].project_out
            hook = EditHook(edit, change, model.ffn[change.layer].values)
            undo.callback(module.register_forward_hook(hook).remove)
            undo.callback(module.register_forward_pre_hook(EditMark(edit)).remove)
        yield model
