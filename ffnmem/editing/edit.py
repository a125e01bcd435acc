"""``Edit``: a change of the values of some layers as a small object, kept apart from the model that it was made for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsIndex

import pandas as pd

from ..core.types import Count, checked
from ..facts.fact import Fact
from ..models.model import Model
from . import applying, saving
from .applying import hooked
from .differing import EditDiff, diff, value_changes
from .edit_record import EditedLayer, EditRecord
from .saving import load_edit, save_edit


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Edit(EditRecord):
    """A rewrite of facts, with :class:`ffnmem.editing.edit_record.EditRecord` for its attributes.

    Made by an editor such as ``fm.rome``, or :meth:`load`; nothing of it changes.
    """

    @classmethod
    def of(
        cls,
        model: Model,
        changes: Sequence[EditedLayer],
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
        applying.check_fits(edit, model)
        return edit

    # -- in a model ----------------------------------------------------------------------------------------------

    def apply(self, model: Model) -> None:
        """Write it into a model's weights; ``model.edits`` holds it then. See :func:`ffnmem.editing.applying.apply`."""
        applying.apply(self, model)

    def revert(self, model: Model) -> None:
        """Take it out again, bit for bit. See :func:`ffnmem.editing.applying.revert`."""
        applying.revert(self, model)

    def applied(self, model: Model) -> AbstractContextManager[Model]:
        """A ``with`` block in which the model has it; it is reverted after the block, whatever happens in it.

        The block belongs to the thread that opened it: any other thread that runs the model meanwhile, or reads it
        through ffnmem, is refused by BusyError. :meth:`apply` is for every thread.
        """
        return applying.applied(self, model)

    def hooks(self, model: Model) -> AbstractContextManager[Model]:
        """A ``with`` block in which hooks write what it would write, the weights untouched.

        The block belongs to the thread that opened it, as that of :meth:`applied` does.

        See :func:`ffnmem.editing.applying.hooked`.
        """
        return hooked(self, model)

    def diff(
        self,
        model: Model,
        prompt: str | Fact,
        k: Count | None = 20,
        *,
        target: str | None = None,
        foil: str | None = None,
        position: SupportsIndex = -1,
    ) -> EditDiff:
        """Which memories' coefficients and contributions it changes on a prompt.

        See :func:`ffnmem.editing.differing.diff`.
        """
        return diff(self, model, prompt, k, target=target, foil=foil, position=position)

    def value_changes(self, model: Model, k: Count | None = 20) -> pd.DataFrame:
        """How much of each neuron's value it rewrites: layer, neuron, norm, of_value, share; largest norm first.

        See :func:`ffnmem.editing.differing.value_changes`.
        """
        return value_changes(self, model, k)

    # -- on disk -------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write it as safetensors with a JSON header. See :func:`ffnmem.editing.saving.save_edit`."""
        return save_edit(self, path)

    @staticmethod
    def load(path: str | Path) -> Edit:  # type: ignore[override]  # it holds no model
        """The edit that :meth:`save` wrote. See :func:`ffnmem.editing.saving.load_edit`."""
        return load_edit(path, Edit)

    def export(self, model: Model, folder: str | Path) -> Path:
        """Write the edited model as a plain Hugging Face checkpoint. See :func:`ffnmem.editing.saving.export`."""
        return saving.export(self, model, folder)

    def export_lora(self, model: Model, folder: str | Path) -> Path:
        """Write it as a PEFT adapter. See :func:`ffnmem.editing.saving.export_lora`."""
        return saving.export_lora(self, model, folder)
