"""An edit as data: the changes of some layers' values, what they were made for, and what was measured.

Everything that applies, saves or compares edits is written in terms of this, and :class:`ffnmem.Edit` stands on top of
all of it with a method for each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ..core.errors import InputError, listed, quoted
from ..core.json_values import plain
from ..core.number_text import format_value
from ..core.plain_values import plain_value
from ..core.provenance import Provenance
from ..core.sheets import Content, Facts, Origin, Sheet, Table, Words, line
from ..core.types import Whole, checked
from ..facts.fact import Fact
from ..show.result import Result

Record = TypeVar("Record", bound="EditRecord")


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

    @cached_property
    def norms(self) -> Float[Tensor, " d_mlp"]:
        """‖Δvᵢ‖, how long what is added to each neuron's value is, in float64; the change is never made in full."""
        squares = ((self.right @ self.right.T @ self.left) * self.left).sum(0)
        return squares.clamp(min=0).sqrt()

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


SHOWN = 20  # rows of a table
FEW = 8  # values of a setting that are shown one by one
COUNTED = 10_000  # from here on, a whole number of a setting is shown with thousands


@checked
@dataclass(frozen=True, eq=False, repr=False)
class EditRecord(Result):
    """What an edit is, as data: the part of :class:`ffnmem.Edit` that needs no model. Nothing of it changes.

    Attributes:
        changes: one a layer, ascending.
        fingerprint: of the model that it was made for.
        method: the editor's name.
        facts: what was rewritten.
        targets: for each fact the new target, a plain word.
        settings: everything that the editor was run with, as plain values.
        numbers: one row a fact: what the editor measured. With the change of the weights itself: ``after``, the
            target's probability in the fact's prompt (the geometric mean over its tokens); ``reached``, whether greedy
            decoding gives the target; ``says``, the likeliest next token; ``unseen``, the share of contexts that no
            search had behind which the target is said; ``tried``, what each try came to, where there were several;
            ``gain``, how much of what the change writes at the subject's last token it writes at another position
            (:class:`ffnmem.editing.verifying.Verified`).
        provenance: of the model and the run.
        under: digests of the edits that the model already had; :meth:`ffnmem.Edit.of` fills it in.
        parts: digests of the edits that it is the sum of; its own where it is no sum.
        warnings: what is doubtful about it, a line each: a target that the model finds absurd, a layer that changes
            much (:mod:`ffnmem.editing.preparing`).
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
        object.__setattr__(self, "settings", plain_value(dict(self.settings)))
        object.__setattr__(self, "parts", self.parts or (self.digest,))

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
        if "reached" not in self.numbers:
            return ()
        return tuple(i for i, reached in enumerate(self.numbers["reached"]) if reached is False or reached == 0)

    @property
    def title(self) -> str:
        """Method and facts on one line: ``rome: Eiffel Tower → Rome``."""
        rewrites = [f"{fact.subject} → {target}" for fact, target in zip(self.facts, self.targets, strict=True)]
        return f"{self.method}: {listed(rewrites, 3)}" if rewrites else self.method

    def __add__(self: Record, other: Record) -> Record:
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
        return type(self)(
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
        frame.attrs = {"method": self.method, "settings": self.settings, "provenance": self.provenance.to_dict()}
        return frame

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """Plain values, ready for JSON; the factors by their shape and norm alone."""
        return {
            "method": self.method,
            "digest": self.digest,
            "fingerprint": self.fingerprint,
            "layers": [{"layer": c.layer, "rank": c.rank, "norm": c.norm} for c in self.changes],
            "facts": [fact.to_dict() for fact in self.facts],
            "targets": list(self.targets),
            "settings": plain_value(self.settings),
            "numbers": plain(self.numbers),
            "warnings": list(self.warnings),
            "under": list(self.under),
            "parts": list(self.parts),
            "provenance": plain_value(self.provenance.to_dict()),
        }

    def summary(self) -> str:
        layers = f"layer{'s' * (len(self.layers) > 1)} {listed(self.layers, 6)}"
        return f"{self.title}; {layers}, rank {self.rank}, norm {self.norm:.4g}, for {self.fingerprint}"

    def sheet(self) -> Sheet:
        """What is rewritten, what is doubtful about it, what the editor measured, and the layers that it changes."""
        rows: dict[str, Content] = {"edit": self.title, "digest": self.digest}
        if self.warnings:
            rows["warnings"] = tuple(map(line, self.warnings))
        if self.unreached:
            rows["not reached"] = (line(unreached_words(self)),)
        numbers = self.to_frame().drop(columns="id", errors="ignore")  # the fact's, which stands there already
        numbers = numbers.loc[:, (numbers.notna() & (numbers != "")).any()]
        layers = pd.DataFrame([(c.layer, c.rank, c.norm) for c in self.changes], columns=["layer", "rank", "norm"])
        settings = self.settings.get("edits") or [self.settings]  # of a sum, those of each part
        return Sheet.of(
            Facts(rows),
            Table.of(numbers, top=SHOWN) if self.facts else None,
            Table.of(layers, top=SHOWN),
            *(Words.of(settings_in_words(some), "soft") for some in settings if some),
            Origin(self.provenance.to_dict()),
        )


def unreached_words(edit: EditRecord) -> str:
    """What is to be said of an edit that does not do what it is for; empty where it does, or nobody looked."""
    places = edit.unreached
    if not places:
        return ""
    row = edit.numbers.iloc[places[0]]
    more = f"; {len(places) - 1} more of {len(edit.facts)} facts are not" if len(places) > 1 else ""
    if isinstance(tried := row.get("tried"), str):
        more = f"; tried, with its probability: {tried}{more}"
    return missed_words(edit.facts[places[0]], edit.targets[places[0]], row["after"], row["says"]) + more


def missed_words(fact: Fact, target: str, after: float, says: str | None = None) -> str:
    """What is to be said of a fact whose edit does not make the model say its target.

    Args:
        after: the target's probability with the edit. says: the likeliest next token, where it was looked for.
    """
    begun = says is not None and f" {target}".startswith(says) and says.strip() != target
    likeliest = "" if says is None else f", and the likeliest next token is {quoted(says)}"
    likeliest = f" a token, which it begins with {quoted(str(says))} and then leaves" if begun else likeliest
    return (
        f"the edit of {quoted(fact.text)} is not reached: with it {quoted(f' {target}')} has a probability of "
        f"{after:.1%}{likeliest}"
    )


def settings_in_words(settings: Mapping[str, Any], between: str = " · ") -> str:
    """Settings on one line: ``layer 0 · steps 120 · contexts: 21 texts``; what is None or empty is left out."""
    return between.join(
        f"{name.replace('_', ' ')}{in_words(value)}" for name, value in settings.items() if value not in (None, "", [])
    )


def in_words(value: Any) -> str:
    """A setting's value behind its name; of many texts, how many they are."""
    if isinstance(value, Mapping):
        return f" ({settings_in_words(value, ', ')})"
    if isinstance(value, bool):
        return " yes" if value else " no"
    if isinstance(value, list):
        if len(value) > FEW:
            return f": {len(value)} {'texts' if isinstance(value[0], str) else 'values'}"
        return f" {', '.join(quoted(one) if isinstance(one, str) else format_value(one) for one in value)}"
    small = isinstance(value, int) and abs(value) < COUNTED
    return f" {value if small else format_value(value)}"


def settings_of_both(first: EditRecord, second: EditRecord) -> dict[str, Any]:
    """The settings of both where they are the same, else those of each part."""
    if dict(first.settings) == dict(second.settings):
        return dict(first.settings)
    lists = [e.settings["edits"] if "edits" in e.settings else [dict(e.settings)] for e in (first, second)]
    return {"edits": [*lists[0], *lists[1]]}


def numbers_of_both(first: EditRecord, second: EditRecord) -> pd.DataFrame:
    """The rows of both, in the order of the facts; missing where one did not measure what the other did."""
    rows = [e.numbers if len(e.numbers) else pd.DataFrame(index=range(len(e.facts))) for e in (first, second)]
    if all(frame.columns.empty for frame in rows):
        return pd.DataFrame()
    return pd.DataFrame([row for frame in rows for row in frame.to_dict("records")])
