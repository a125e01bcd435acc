"""``EditedLayer``, what an edit adds to the values of a layer, and ``RowChanges``, what several edits add to the FFNs'
outputs of a batch, each row by its own edit, the weights untouched."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..core.errors import InputError, OutOfRangeError, listed
from ..core.types import Whole, checked
from ..models.hooks import first_tensor
from ..models.norms import at_least_float32
from ..models.replaying import Change, Replay


@checked
@dataclass(frozen=True, eq=False)
class EditedLayer:
    """What is added to the values of one layer: ``leftᵀ @ right``, so that its FFN writes ``(m @ leftᵀ) @ right`` more.

    In the papers' orientation (W = valuesᵀ) ΔW is ``rightᵀ left``. The factors are kept in float64 on the CPU.

    Attributes:
        layer: which.
        left: ``[rank, d_mlp]``, how much of each row of ``right`` a coefficient adds.
        right: ``[rank, d_model]``, directions in the residual stream.
    """

    layer: Whole
    left: Float[Tensor, "rank d_mlp"]
    right: Float[Tensor, "_ d_model"]  # as many rows: checked below, with a message

    def __post_init__(self) -> None:
        if len(self.left) != len(self.right):
            raise InputError(
                f"the change of layer {self.layer} has {len(self.left)} rows in left and {len(self.right)} in right"
            )
        for name in ("left", "right"):
            factor = getattr(self, name).detach().to("cpu", torch.float64, copy=True).contiguous()
            if not len(factor) or not bool(factor.isfinite().all()):
                what = "no rows" if not len(factor) else "NaN or infinite values"
                raise InputError(f"the change of layer {self.layer} has {what} in its {name} factor")
            object.__setattr__(self, name, factor)

    @property
    def rank(self) -> int:
        """How many rank-one changes it is the sum of."""
        return len(self.left)

    @cached_property
    def norm(self) -> float:
        """The Frobenius norm of the change: ‖leftᵀ right‖² = tr(left leftᵀ · right rightᵀ), never made in full."""
        square = ((self.left @ self.left.T) * (self.right @ self.right.T)).sum()
        return float(square.clamp(min=0).sqrt())

    def delta(self) -> Float[Tensor, "d_mlp d_model"]:
        """What is added to the layer's values, in full, in float64."""
        return self.left.T @ self.right

    def __add__(self, other: EditedLayer) -> EditedLayer:
        """Both changes of a layer; raises InputError where they are of other sizes."""
        sizes = [[change.left.shape[1], change.right.shape[1]] for change in (self, other)]
        if sizes[0] != sizes[1]:
            raise InputError(f"the changes of layer {self.layer} are of other sizes: {listed(sizes)}")
        return EditedLayer(self.layer, torch.cat([self.left, other.left]), torch.cat([self.right, other.right]))

    def __repr__(self) -> str:
        return f"EditedLayer(layer={self.layer}, rank={self.rank}, norm={self.norm:.4g})"


Factors = tuple[Float[Tensor, "edits rank d_mlp"], Float[Tensor, "edits rank d_model"]]


class RowChanges:
    """What each row's own edit makes the FFNs write: a ``change`` for ``Replay.finish``.

    Args:
        edits: the changes of each edit, of the same weights.
        rows: for each row which of the edits it has, −1 for none; None where every row has the only one.

    Attributes:
        stacks: by layer, the factors of every edit, padded with zeros to one rank; the last ones are zeros: no edit.

    Raises: InputError: no edits, or edits of other sizes. OutOfRangeError: no such edit.
    """

    def __init__(
        self, edits: Sequence[Sequence[EditedLayer]], rows: Int[Tensor, " rows"] | Sequence[int] | None = None
    ) -> None:
        if not edits:
            raise InputError("there are no edits: give at least one")
        self.rows = None if rows is None else torch.as_tensor(rows, dtype=torch.long, device="cpu")
        strange = [] if self.rows is None else self.rows[(self.rows < -1) | (self.rows >= len(edits))].tolist()
        if strange:
            raise OutOfRangeError(f"edit {strange[0]} is out of range: there are 0 to {len(edits) - 1}, −1 for none")
        layers = sorted({change.layer for changes in edits for change in changes})
        self.stacks = {layer: stack_factors(edits, layer) for layer in layers}
        self.ready: dict[tuple[int, torch.device, torch.dtype], Factors] = {}

    @property
    def lowest(self) -> int:
        """The lowest layer that any edit changes: ``start`` for ``Replay`` and ``answer``."""
        return min(self.stacks)

    def __call__(self, layer: int, part: str, first: int, written: Tensor, coefficients: Tensor | None) -> Tensor:
        """What an FFN writes, with what each row's edit adds; what is no changed FFN's stays."""
        if part != "ffn" or layer not in self.stacks:
            return written
        assert coefficients is not None
        m = at_least_float32(coefficients)
        left, right = self.factors(layer, m)
        if self.rows is None:
            more = (m @ left[0].T) @ right[0]
            return (at_least_float32(written) + more).to(written.dtype)
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

    def hook(self, layer: int) -> Callable[[nn.Module, tuple[Any, ...], Any], Tensor]:
        """A forward hook that adds the same to what a layer's down projection writes."""

        def add(_module: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor:
            written, m = first_tensor(output), args[0]
            if self.rows is None or written.ndim > 2:
                return self(layer, "ffn", 0, written, m)
            written, m = (rearrange(x, "(row pos) d -> row pos d", row=len(self.rows)) for x in (written, m))
            return rearrange(self(layer, "ffn", 0, written, m), "row pos d -> (row pos) d")

        return add

    def keep(self, rows: Int[Tensor, " some"]) -> None:
        """Go on with some of the rows, in their order."""
        assert self.rows is not None
        self.rows = self.rows[rows.cpu()]

    def changing(self, questions: Int[Tensor, " rows"], _replay: Replay) -> Change:
        """The change for a batch whose rows are each of one of the questions that this has as its rows: what
        :func:`ffnmem.models.answers.answer` takes."""
        batch = copy.copy(self)  # which shares what is ready
        batch.keep(questions)
        return batch


def stack_factors(edits: Sequence[Sequence[EditedLayer]], layer: int) -> Factors:
    """A layer's factors of every edit, padded with zeros to one rank, and zeros for none behind them."""
    changes = {i: change for i, every in enumerate(edits) for change in every if change.layer == layer}
    sizes = {(change.left.shape[1], change.right.shape[1]) for change in changes.values()}
    if len(sizes) > 1:
        raise InputError(f"the edits change values of other shapes in layer {layer}: {sorted(sizes)}")
    (d_mlp, d_model), rank = sizes.pop(), max(change.rank for change in changes.values())
    left = torch.zeros(len(edits) + 1, rank, d_mlp, dtype=torch.float64)
    right = torch.zeros(len(edits) + 1, rank, d_model, dtype=torch.float64)
    for i, change in changes.items():
        left[i, : change.rank], right[i, : change.rank] = change.left, change.right
    return left, right
