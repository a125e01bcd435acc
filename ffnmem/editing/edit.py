"""``Edit``: a change of the values of some layers as a small object, kept apart from the model that it was made for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ..arguments import public
from ..attribution import plain_records
from ..core.sheets import Content, Facts, Origin, Sheet, Words, line, of_frame
from ..errors import InputError, check_count, listed
from ..facts import Fact
from ..models import Model
from ..provenance import Provenance
from ..show.result import Result
from .showing import plain

if TYPE_CHECKING:
    from .differing import EditDiff

SHOWN = 20  # rows of a table


@dataclass(frozen=True, eq=False)
class LayerChange:
    """What is added to the values of one layer: ``leftᵀ @ right``, so that its FFN writes ``(m @ leftᵀ) @ right`` more.

    In the papers' orientation (W = valuesᵀ) ΔW is ``rightᵀ left``. The factors are kept in float64 on the CPU.

    Attributes:
        layer: which.
        left: ``[rank, d_mlp]``, how much of each row of ``right`` a coefficient adds.
        right: ``[rank, d_model]``, directions in the residual stream.
    """

    layer: int
    left: Float[Tensor, "rank d_mlp"]
    right: Float[Tensor, "_ d_model"]  # as many rows: checked below, with a message

    def __post_init__(self) -> None:
        object.__setattr__(self, "layer", check_count("layer", self.layer, least=0))
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

    def __repr__(self) -> str:
        return f"LayerChange(layer={self.layer}, rank={self.rank}, norm={self.norm:.4g})"


@public
@dataclass(frozen=True, eq=False, repr=False)
class Edit(Result):
    """A rewrite of facts. Made by an editor such as ``fm.rome``, or :meth:`load`; nothing of it changes.

    Attributes:
        changes: one a layer, ascending.
        fingerprint: of the model that it was made for.
        method: the editor's name.
        facts: what was rewritten.
        targets: for each fact the new target, a plain word.
        settings: everything that the editor was run with, as plain values.
        numbers: one row a fact: what the editor measured.
        provenance: of the model and the run.
        under: digests of the edits that the model already had; :meth:`of` fills it in.
        parts: digests of the edits that it is the sum of; its own where it is no sum.
        warnings: what is doubtful about it, a line each: a target that the model finds absurd, a layer that changes
            much (:mod:`ffnmem.editing.doubts`).
    """

    changes: tuple[LayerChange, ...]
    fingerprint: str
    method: str
    facts: tuple[Fact, ...]
    targets: tuple[str, ...]
    settings: Mapping[str, Any]
    numbers: pd.DataFrame
    provenance: Provenance
    under: tuple[str, ...] = ()
    parts: tuple[str, ...] = field(default=())
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.changes:
            raise InputError("an edit needs at least one change of a layer")
        layers = [change.layer for change in self.changes]
        if sorted(set(layers)) != layers:
            raise InputError(f"an edit has one change a layer, ascending, not of layers {listed(layers)}")
        if len(self.facts) != len(self.targets):
            raise InputError(f"{len(self.facts)} facts have {len(self.targets)} targets: give each its own")
        if len(self.numbers) not in (0, len(self.facts)):
            raise InputError(f"numbers have {len(self.numbers)} rows for {len(self.facts)} facts: one row a fact")
        object.__setattr__(self, "settings", plain(dict(self.settings)))
        object.__setattr__(self, "parts", self.parts or (self.digest,))

    @classmethod
    def of(
        cls,
        model: Model,
        changes: Sequence[LayerChange],
        *,
        method: str,
        facts: Sequence[Fact] = (),
        targets: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
        numbers: pd.DataFrame | None = None,
        warnings: Sequence[str] = (),
    ) -> Edit:
        """An edit made for a model as it is now, with the edits that it has.

        Args:
            model: which.
            changes: one a layer.
            method, facts, targets, settings, numbers, warnings: as the attributes.

        Raises: InputError: changes that do not fit the model, targets that do not match facts.
        """
        edit = cls(
            changes=tuple(sorted(changes, key=lambda change: change.layer)),
            fingerprint=model.fingerprint,
            method=method,
            facts=tuple(facts),
            targets=tuple(targets),
            settings={} if settings is None else settings,
            numbers=pd.DataFrame() if numbers is None else numbers.reset_index(drop=True),
            provenance=model.provenance(method=method),
            under=tuple(digest for held in model.edits for digest in held.parts),
            warnings=tuple(warnings),
        )
        from .applying import check_fits

        check_fits(edit, model)
        return edit

    # -- what it is ----------------------------------------------------------------------------------------------

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that it changes."""
        return tuple(change.layer for change in self.changes)

    @property
    def rank(self) -> int:
        """The largest rank of a layer's change."""
        return max(change.rank for change in self.changes)

    @property
    def norm(self) -> float:
        """The Frobenius norm of the change of all layers together."""
        return float(sum(change.norm**2 for change in self.changes) ** 0.5)

    @cached_property
    def digest(self) -> str:
        """Twelve hexadecimal digits of the model's fingerprint and the factors: the same ones make the same edit."""
        found = hashlib.sha256(self.fingerprint.encode())
        for change in self.changes:
            found.update(f"{change.layer}:{list(change.left.shape)}:{list(change.right.shape)}".encode())
            for factor in (change.left, change.right):
                found.update(factor.numpy().tobytes())
        return found.hexdigest()[:12]

    @property
    def title(self) -> str:
        """Method and facts on one line: ``rome: Eiffel Tower → Rome``."""
        rewrites = [f"{fact.subject} → {target}" for fact, target in zip(self.facts, self.targets, strict=True)]
        return f"{self.method}: {listed(rewrites, 3)}" if rewrites else self.method

    def __add__(self, other: Edit) -> Edit:
        """Both edits as one: changes side by side in each layer. Raises InputError where they were not made together.

        They fit where both were made for the same weights, or the second for a model that has the first.
        """
        from .stacking import stacked

        return stacked(self, other)

    def to_frame(self) -> pd.DataFrame:
        """One row a fact: fact (its id), subject, prompt, target_true, target, and what the editor measured."""
        about = pd.DataFrame(
            [
                (fact.id, fact.subject, fact.prompt, fact.target_true, target)
                for fact, target in zip(self.facts, self.targets, strict=True)
            ],
            columns=["fact", "subject", "prompt", "target_true", "target"],
        )
        kept = [name for name in self.numbers.columns if name not in about.columns]
        frame = pd.concat([about, self.numbers[kept]], axis=1)
        frame.attrs = {"method": self.method, "settings": self.settings, "provenance": self.provenance.as_dict()}
        return frame

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; the factors by their shape and norm alone."""
        return {
            "method": self.method,
            "digest": self.digest,
            "fingerprint": self.fingerprint,
            "layers": [{"layer": c.layer, "rank": c.rank, "norm": c.norm} for c in self.changes],
            "facts": [fact.to_dict() for fact in self.facts],
            "targets": list(self.targets),
            "settings": plain(self.settings),
            "numbers": plain_records(self.numbers),
            "warnings": list(self.warnings),
            "under": list(self.under),
            "parts": list(self.parts),
            "provenance": plain(self.provenance.as_dict()),
        }

    # -- in a model ----------------------------------------------------------------------------------------------

    def apply(self, model: Model) -> None:
        """Write it into a model's weights; ``model.edits`` holds it then. See :func:`ffnmem.editing.applying.apply`."""
        from .applying import apply

        apply(self, model)

    def revert(self, model: Model) -> None:
        """Take it out again, bit for bit. See :func:`ffnmem.editing.applying.revert`."""
        from .applying import revert

        revert(self, model)

    def applied(self, model: Model) -> AbstractContextManager[Model]:
        """A ``with`` block in which the model has it; it is reverted after the block, whatever happens in it.

        The block belongs to the context that opened it: what runs in that context, also by ``asyncio.to_thread`` or
        ``contextvars.copy_context().run`` in another thread, sees the edit; any other thread or context that runs the
        model, or reads it through ffnmem, is refused by BusyError. :meth:`apply` is for every thread.
        """
        from .applying import applied

        return applied(self, model)

    def hooks(self, model: Model) -> AbstractContextManager[Model]:
        """A ``with`` block in which hooks write what it would write, the weights untouched.

        The block belongs to the context that opened it, as that of :meth:`applied` does.

        See :func:`ffnmem.editing.per_row.hooked`.
        """
        from .per_row import hooked

        return hooked(self, model)

    def diff(
        self,
        model: Model,
        prompt: str | Fact,
        k: int | None = 20,
        *,
        target: str | None = None,
        foil: str | None = None,
        position: SupportsIndex = -1,
    ) -> EditDiff:
        """Which memories' coefficients and contributions it changes on a prompt.

        See :func:`ffnmem.editing.differing.diff`.
        """
        from .differing import diff

        return diff(self, model, prompt, k, target=target, foil=foil, position=position)

    # -- on disk -------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write it as safetensors with a JSON header. See :func:`ffnmem.editing.saving.save_edit`."""
        from .saving import save_edit

        return save_edit(self, path)

    @staticmethod
    def load(path: str | Path) -> Edit:
        """The edit that :meth:`save` wrote. See :func:`ffnmem.editing.saving.load_edit`."""
        from .saving import load_edit

        return load_edit(path)

    def export(self, model: Model, folder: str | Path) -> Path:
        """Write the edited model as a plain Hugging Face checkpoint. See :func:`ffnmem.editing.exporting.export`."""
        from .exporting import export

        return export(self, model, folder)

    def export_lora(self, model: Model, folder: str | Path) -> Path:
        """Write it as a PEFT adapter. See :func:`ffnmem.editing.exporting.export_lora`."""
        from .exporting import export_lora

        return export_lora(self, model, folder)

    def summary(self) -> str:
        layers = f"layer{'s' * (len(self.layers) > 1)} {listed(self.layers, 6)}"
        return f"{self.title}; {layers}, rank {self.rank}, norm {self.norm:.4g}, for {self.fingerprint}"

    def sheet(self) -> Sheet:
        """What is rewritten, what is doubtful about it, what the editor measured, and the layers that it changes."""
        rows: dict[str, Content] = {"edit": self.title, "digest": self.digest}
        if self.warnings:
            rows["warnings"] = tuple(map(line, self.warnings))
        settings = " · ".join(f"{name} {value}" for name, value in self.settings.items())
        layers = pd.DataFrame([(c.layer, c.rank, c.norm) for c in self.changes], columns=["layer", "rank", "norm"])
        numbers = of_frame(self.to_frame(), SHOWN) if self.facts else None
        return Sheet.of(
            Facts(rows), numbers, of_frame(layers, SHOWN), Words.of(settings, "soft"), Origin(self.provenance.as_dict())
        )
