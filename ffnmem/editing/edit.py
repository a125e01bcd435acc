"""``Edit``: a change of the values of some layers as a small object, kept apart from the model that it was made for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, SupportsIndex

import pandas as pd
from jaxtyping import Int
from torch import Tensor, nn

from ..core.errors import InputError, ModelError, listed
from ..core.files import check_new_folder
from ..core.plain_values import plain_value
from ..core.provenance import Provenance
from ..core.types import Count, checked
from ..facts.fact import Fact
from ..models.hooks import OpenBlock, UndoList
from ..models.model import Model
from ..prompts.attribution import attribute
from ..prompts.captures import capture, with_answer
from ..show.result import Result
from .changes import EditedLayer, RowChanges
from .differing import EditDiff, read_first
from .exporting import write_adapter, write_checkpoint
from .ledger import check_unchanged, set_edits
from .wording import missed_words


@checked
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
        numbers: one row a fact: what the editor measured. ``before`` and ``after``, the target's probability in the
            fact's prompt (the geometric mean over its tokens) without the change of the weights and with it; and with
            it ``reached``, whether greedy decoding gives the target; ``says``, the likeliest next token; ``unseen``,
            the share of contexts that no search had behind which the target is said; ``tried``, what each try came to,
            where there were several; ``gain``, how much of what the change writes at the subject's last token it
            writes at another position (:class:`ffnmem.editing.verifying.Verified`).
        provenance: of the model and the run.
        under: digests of the edits that the model already had.
        parts: digests of the edits that it is the sum of; its own where it is no sum.
        warnings: what is doubtful about it, a line each: a layer that changes much.
    """

    changes: tuple[EditedLayer, ...]
    fingerprint: str
    method: str
    facts: tuple[Fact, ...]
    targets: tuple[str, ...]
    settings: Mapping[str, Any]
    numbers: pd.DataFrame
    provenance: Provenance
    under: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    heading = "digest layers rank norm fingerprint"
    tables: ClassVar = {"rewrites": "*", "doubts": "warning", "changed": "*", "made_with": "|*"}
    uncut, only_data = "changed", "title"

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
        object.__setattr__(self, "settings", plain_value(dict(self.settings)))
        object.__setattr__(self, "parts", self.parts or (self.digest,))

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
        edit.check_fits(model)
        return edit

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
    def unreached(self) -> tuple[int, ...]:
        """The places of those facts whose target the model does not say with the edit, where its editor looked."""
        return tuple(i for i, reached in enumerate(self.numbers.get("reached", ())) if reached == 0)

    @property
    def unreached_words(self) -> str:
        """What is to be said of an edit that does not do what it is for; empty where it does, or nobody looked."""
        if not self.unreached:
            return ""
        first = self.unreached[0]
        row = self.numbers.iloc[first]
        others = len(self.unreached) - 1
        more = f"; {others} more of {len(self.facts)} facts are not" if others else ""
        if isinstance(tried := row.get("tried"), str):
            more = f"; tried, with its probability: {tried}{more}"
        return missed_words(self.facts[first], self.targets[first], row["after"], row["says"]) + more

    @property
    def title(self) -> str:
        """Method and facts on one line: ``rome: Eiffel Tower → Rome``."""
        rewrites = [f"{fact.subject} → {target}" for fact, target in zip(self.facts, self.targets, strict=True)]
        return f"{self.method}: {listed(rewrites, 3)}" if rewrites else self.method

    def __add__(self, other: Edit) -> Edit:
        """Both edits as one, for the weights that the first was made for: changes side by side in each layer.

        Raises: InputError: made for other weights (they fit where both were made for the same ones, or the second for
            a model that has the first); parts that both have; layers of other sizes.
        """
        shared = [part for part in other.parts if part in self.parts]
        if shared:
            raise InputError(f"edit {shared[0]} is in both: an edit stands in a sum once")
        on_top = other.under == (*self.under, *self.parts)
        if other.fingerprint != self.fingerprint and not on_top:
            raise InputError(
                f"{other.title} was made for weights {other.fingerprint} and {self.title} for {self.fingerprint}: "
                "edits add up where both were made for the same weights, or the second for a model that has the first"
            )
        changes = {change.layer: change for change in self.changes}
        for change in other.changes:
            changes[change.layer] = changes[change.layer] + change if change.layer in changes else change
        return Edit(
            changes=tuple(changes[layer] for layer in sorted(changes)),
            fingerprint=self.fingerprint,
            method=self.method if self.method == other.method else f"{self.method} + {other.method}",
            facts=self.facts + other.facts,
            targets=self.targets + other.targets,
            settings=settings_of_both(self, other),
            numbers=numbers_of_both(self, other),
            provenance=self.provenance.with_settings(edits=self.parts + other.parts),
            under=self.under,
            parts=self.parts + other.parts,
            warnings=self.warnings + other.warnings,
        )

    @property
    def rewrites(self) -> pd.DataFrame:
        """What is rewritten, and what the editor measured of it."""
        about = pd.DataFrame(
            [
                (fact.id, fact.subject, fact.prompt, fact.target_true, target)
                for fact, target in zip(self.facts, self.targets, strict=True)
            ],
            columns=["fact", "subject", "prompt", "target_true", "target"],
        )
        kept = [name for name in self.numbers.columns if name not in about.columns]
        frame = pd.concat([about, self.numbers[kept]], axis=1)
        frame.attrs = {"method": self.method, "settings": self.settings, "provenance": self.provenance.to_dict()}
        return frame

    @property
    def doubts(self) -> pd.DataFrame:
        """What is doubtful about it."""
        return pd.DataFrame({"warning": list(filter(None, (*self.warnings, self.unreached_words)))}, dtype=object)

    @property
    def changed(self) -> pd.DataFrame:
        """The layers that it changes."""
        return pd.DataFrame([(c.layer, c.rank, c.norm) for c in self.changes], columns=["layer", "rank", "norm"])

    @property
    def made_with(self) -> pd.DataFrame:
        """What the editor was run with, and of a sum each part's."""
        rows = [(name, value) for some in self.settings.get("edits") or [self.settings] for name, value in some.items()]
        return pd.DataFrame(rows, columns=["setting", "is"], dtype=object)

    # -- in a model ------------------------------------------------------------------------------------------------

    def apply(self, model: Model) -> None:
        """Write it into a model's weights; ``model.edits`` holds it until :meth:`revert`.

        Args:
            model: that it was made for, without edits or with those that it has now.

        Raises:
            InputError: applied already, by itself or in a sum, or acting as hooks; weights that something else changed
                meanwhile; values too large for the model's dtype. ModelError: an edit of another model. Nothing is
                changed then.
        """
        add_edit(self, model)

    def revert(self, model: Model) -> None:
        """Take it out again: the weights become, bit for bit, what the other edits alone would give.

        What is applied may be its like from a file.

        Raises: InputError: not applied, or values that something else changed meanwhile; nothing is changed then.
        """
        if not self.is_applied(model):
            whole = next((other for other in model.edits for part in self.parts if part in other.parts), None)
            sums = "" if whole is None else f" by itself, but in {whole.title}, which can be reverted as one"
            raise InputError(f"{self.title} is not applied to {model.name}{sums}")
        set_edits(model, edits_without(self, model))

    def applied(self, model: Model) -> AbstractContextManager[Model]:
        """A ``with`` block in which the model has it; it is reverted after the block, whatever happens in it.

        Raises: as :meth:`apply` and :meth:`revert`.
        """

        def begin(undo: UndoList) -> Model:
            self.check_absent(model)  # or leaving the block would take out what somebody else put in
            undo.callback(lambda: set_edits(model, edits_without(self, model)))
            add_edit(self, model)
            return model

        return OpenBlock(begin)

    def hooks(self, model: Model) -> AbstractContextManager[Model]:
        """A ``with`` block in which hooks write what it would write, in every pass, the weights untouched.

        All that runs the model sees it, generation too. What runs the layers by themselves refuses to run inside, and
        attribution, which reads values off the weights, does not add up there and warns: that is for :meth:`applied`.

        Raises: as :meth:`apply`.
        """
        words = f"edit {self.digest} ({self.title}) as hooks"

        def begin(undo: UndoList) -> Model:
            self.check_absent(model)
            self.check_fits(model)
            rows = RowChanges([self.changes])
            for layer in self.layers:
                undo.hook(model.ffn[layer].project_out, rows.hook(layer))
                undo.hook(model.ffn[layer].project_out, EditMark(self, words), before=True)
            modules = {layer: model.ffn[layer].project_out for layer in self.layers}
            undo.require(model.layout.decoder or model.layout.body, modules, model.name)
            return model

        return OpenBlock(begin)

    def is_applied(self, model: Model) -> bool:
        """Whether a model's weights hold it, or its like from a file."""
        return any(held.digest == self.digest for held in model.edits)

    def check_absent(self, model: Model) -> None:
        """Raise InputError if a model has an edit, or a part of it, in its weights or as hooks: it would act twice."""
        marks = [hook for ffn in model.ffn for hook in ffn.project_out._forward_pre_hooks.values()]
        hooked = [mark.edit for mark in marks if isinstance(mark, EditMark)]
        for held, how, mend in (
            (list(model.edits), "applied to", "revert it first"),
            (hooked, "acting as hooks on", "leave their block first"),
        ):
            whole = next((other for part in self.parts for other in held if part in other.parts), None)
            if whole is not None:
                what = "it" if whole.digest == self.digest else f"a part of it ({whole.title})"
                raise InputError(f"{self.title}: {what} is {how} {model.name} already: {mend}")

    def check_fits(self, model: Model) -> None:
        """Raise ModelError if an edit was made for other weights than a model has, with its edits or without them.

        OutOfRangeError or ModelError where its layers are not the model's.
        """
        for change in self.changes:
            ffn = model.ffn[model.layer(change.layer)]
            sizes = [change.left.shape[1], change.right.shape[1]]
            if sizes != [ffn.d_mlp, ffn.d_model]:
                raise ModelError(
                    f"{self.title} changes values of shape {sizes}, and layer {change.layer} of {model.name} has "
                    f"{[ffn.d_mlp, ffn.d_model]}"
                )
        pristine: Any = getattr(model.edits, "fingerprint", None)
        if self.fingerprint != pristine and self.fingerprint != model.fingerprint:
            first = f"; it was made on top of {listed(self.under, 3)}: apply that first" if self.under else ""
            raise ModelError(
                f"{self.title} was made for a model with fingerprint {self.fingerprint}, and {model.name} has "
                f"{model.fingerprint}{'' if pristine is None else f' (without its edits {pristine})'}{first}"
            )

    # -- what it changes ---------------------------------------------------------------------------------------------

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
        """Which memories' coefficients and contributions it changes on a prompt, before and after.

        Args:
            model: that it was made for; applied or not, which stays as it is.
            prompt: a text, or a fact whose prompt is taken.
            k: neurons to keep, by \\|change\\|; None for all.
            target: a word or some; default: the edit's target for the fact whose subject is in the prompt, or for its
                first fact. Without a foil all its tokens are attributed, each at its own position, and their sums
                compared; with one that token in which the two part.
            foil: a word to attribute against; default: that fact's true target, if a token tells them apart.
            position: where the answer is predicted.

        Raises:
            InputError: no target given for an edit without facts, or one that the model has no token for; a foil that
                begins as the target does.
            OutOfRangeError: no such position. ModelError: an edit of another model.
        """
        text, foils = prompt.text if isinstance(prompt, Fact) else prompt, [foil]
        if own := target is None:
            if not self.facts:
                raise InputError(f"{self.title} names no facts, so there is no default target: give target=")
            place = next((i for i, fact in enumerate(self.facts) if fact.subject in text), 0)
            target = self.targets[place]
            if foil is None and self.facts[place].target_true:
                foils.insert(0, self.facts[place].target_true)
        if not self.is_applied(model):
            self.check_absent(model)  # as hooks it would act before, too
        with with_edit(self, model, present=False):
            before = capture(model, text)
            answer = read_first(before, str(target), foils, position, word=own)
            before, _ = with_answer(before, answer, 0)
            old = attribute(before, answer)
        with with_edit(self, model):
            after, _ = with_answer(capture(model, text), answer, 0)
            new = attribute(after, answer)
            found = EditDiff.of(self.changes, answer, before, after, old, new, k)
        return replace(found, provenance=found.provenance.with_settings(edit=self.digest, method=self.method))

    # -- for other programs ------------------------------------------------------------------------------------------

    def export(self, model: Model, folder: str | Path) -> Path:
        """Write the model with this edit as a plain Hugging Face checkpoint, which ``transformers`` loads like any.

        The weights written are those of :meth:`applied`, bit for bit, with the other edits that the model has now.

        Args:
            model: that it was made for; applied or not, which stays as it is.
            folder: a new one.

        Returns: The folder, which appears whole or not at all.

        Raises:
            FileError: the folder holds something already or cannot be made. ModelError: an edit of another model.
            UnsupportedModelError: a model that its Hugging Face class, filled with its weights, does not give again.
        """
        check_new_folder(folder)
        with with_edit(self, model):
            return write_checkpoint(model, folder)

    def export_lora(self, model: Model, folder: str | Path) -> Path:
        """Write it as a PEFT adapter (LoRA) on the down projections of its layers.

        ``peft.PeftModel.from_pretrained(base, folder)`` gives the logits of the edited model, up to float32's rounding.
        LoRA adds (α/r) B A to a weight: here A is ``left``, B ``rightᵀ`` and α = r, whatever each layer's rank.

        Args:
            model: that it was made for; applied or not, which stays as it is.
            folder: a new one.

        Returns: The folder, which appears whole or not at all.

        Raises: FileError: the folder holds something already or cannot be made. ModelError: an edit of another model.
            InputError: an edit made on top of others, or a model that has others: their sum can be exported.

        Source: Hu et al. 2021 (2106.09685), eq. 3, for LoRA; Meng et al. 2022 (2202.05262), eq. 2, for the rank-one
            change.
        """
        self.check_fits(model)
        others = [held.title for held in model.edits if held.digest != self.digest]
        if self.under or others:
            what = (
                f"made on top of {listed(self.under, 3)}" if self.under else f"not the only one ({listed(others, 3)})"
            )
            raise InputError(
                f"{self.title} is {what}: an adapter of it alone would not give this model: export the sum, "
                "first + second"
            )
        return write_adapter(self.changes, model, folder)


class EditMark:
    """A hook that changes nothing and says that one beside it does: ``Model.interventions`` reads these."""

    def __init__(self, edit: Edit, words: str) -> None:
        self.edit, self.intervention = edit, words

    def __call__(self, _module: nn.Module, _args: tuple[Any, ...]) -> None:
        return None


def add_edit(edit: Edit, model: Model) -> None:
    """Write an edit into a model's weights, for who has the model's turn; raises as :meth:`Edit.apply`."""
    edit.check_absent(model)
    check_unchanged(model)
    edit.check_fits(model)
    set_edits(model, (*model.edits, edit))


def edits_without(edit: Edit, model: Model) -> list[Edit]:
    """A model's edits but this one."""
    return [held for held in model.edits if held.digest != edit.digest]


def with_edit(edit: Edit, model: Model, present: bool = True) -> OpenBlock:
    """A block in which a model has an edit, or has not, whatever it had before; then again what it had before.

    Raises: as :meth:`Edit.apply` and :meth:`Edit.revert`.
    """

    def begin(undo: UndoList) -> None:
        if edit.is_applied(model) == present:
            return
        undo.callback(set_edits, model, tuple(model.edits))
        if present:
            add_edit(edit, model)
        else:
            set_edits(model, edits_without(edit, model))

    return OpenBlock(begin)


def row_changes(model: Model, edits: Sequence[Edit], rows: Int[Tensor, " rows"] | Sequence[int]) -> RowChanges:
    """What edits of a model make its FFNs write, each row's own: ``rows`` has its place among them, −1 for none.

    Raises: ModelError: edits of another model. InputError: no edits, edits of other weights. OutOfRangeError: no such
        edit.
    """
    made_for = sorted({edit.fingerprint for edit in edits})
    if len(made_for) > 1:
        raise InputError(f"the edits were made for other weights: {', '.join(made_for)}")
    for edit in edits[:1]:  # the others are for the same weights
        edit.check_fits(model)
    return RowChanges([edit.changes for edit in edits], rows)


def settings_of_both(first: Edit, second: Edit) -> dict[str, Any]:
    """The settings of both where they are the same, else those of each part."""
    if dict(first.settings) == dict(second.settings):
        return dict(first.settings)
    lists = [e.settings["edits"] if "edits" in e.settings else [dict(e.settings)] for e in (first, second)]
    return {"edits": [*lists[0], *lists[1]]}


def numbers_of_both(first: Edit, second: Edit) -> pd.DataFrame:
    """The rows of both, in the order of the facts; missing where one did not measure what the other did."""
    rows = [row for e in (first, second) for row in e.numbers.to_dict("records") or [{}] * len(e.facts)]
    return pd.DataFrame(rows if any(rows) else [])
