"""How an editor works: published settings by the model's name, derived ones otherwise; as plain values, too."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ..core.errors import InputError, perhaps, quoted
from ..core.neuron_names import LayerName
from ..core.types import Count, NonNegative, Positive, Range, checked
from ..models.model import Model
from .published import STOP, UNNAMED, published

ROME = UNNAMED["rome"]
DERIVED_CLAMP, DERIVED_STOP, DERIVED_PLAIN = 4.0, 0.12, 0.25
DERIVED: Mapping[str, Mapping[str, Any]] = {
    "projections": {
        "steps": 30, "first": 6, "rate": 1.0, "relative": False, "decay": 0.0, "stretch": 1.25, "rare": 2.0,
    },
    "adam": {
        "steps": 120, "first": None, "rate": 0.03, "relative": True, "decay": ROME.decay, "stretch": 1.0, "rare": 0.0,
    },
}  # fmt: skip
"""What an optimiser takes for a model without published settings, unless it is given."""
SHIPPED_LAYERS = {"3f664e6fbce4": 0, "d770ab51bf1f": 2}
"""By fingerprint, the layer that a sweep found best: of atlas, and of SmolLM2-135M as it is fetched, in float32."""
TOLD = ("source", "layer_by")
"""Fields that say where others come from: nobody sets them."""


@checked
@dataclass(frozen=True)
class EditSettings:
    """How v* is found; the defaults are ROME's published procedure.

    Attributes:
        layer: whose FFN is edited.
        optimiser: "adam", which goes down the loss as all published programs do, or "projections", which go to the
            smallest δ with which the target is likely enough in each context
            (:class:`ffnmem.editing.searching.Search`).
        steps: passes forward and back at most; the last one only measures.
        first: contexts, the prompt without one among them, that projections begin with; they go on with all. None:
            all from the first.
        rate: Adam's step size; of projections the longest first step, in units of ‖v₀‖.
        relative: whether ``rate`` is in units of ‖v₀‖/√d_model, the size of a coordinate of what the FFN writes.
        stop: the loss from which down no further step is taken; of projections the target's part of it, and what the
            essence's may be.
        clamp: the largest ‖δ‖ in units of ‖v₀‖.
        stretch: how many times as long an editor makes δ once it is found, within the clamp, where the key is rare
            enough. What other words for the fact need beyond the contexts; what keys like it, of neighbours, pay.
            1: as it was found.
        rare: the rarity of a key (:meth:`ffnmem.editing.SecondMoment.rarity`) from which on δ is stretched: of a rarer
            one neighbours have little. Not where the search did not come down to ``stop``. 0: every key's is.
        kl, decay: weights of the essence's KL divergence and of ‖δ‖/‖v₀‖²; projections have no decay.
        kl_at: where the essence's prediction is held: at the "subject"'s last token, as all published programs do,
            or at the prompt's "last", which asks what the subject is.
        scale_of: what ‖v₀‖ is of for clamp and decay: of what the "ffn" writes for the plain prompt, as in ROME's
            program, or of the residual "stream" above the layer, as in MEMIT's.
        plain: the share of the prompt without context in averages over contexts (of keys and of the loss); None: as
            much as any context has.
        key_plain: its share in averages of keys alone; None: ``plain``.
        source: "published" (by the model's name), "procedure" (a published program's numbers with a layer of ours),
            "derived" or "given".
        layer_by: how the layer was chosen: "given"; by the "name" that it is published for; "shipped", by a sweep of
            ours; else, as a last resort, by the model's "depth"; "tried" where the edit was not reached there.
    """

    layer: int
    optimiser: Literal["adam", "projections"] = "adam"
    steps: Count = ROME.steps
    first: Count | None = None
    rate: Positive = ROME.rate
    relative: bool = False
    stop: NonNegative = STOP
    clamp: Positive = ROME.clamp
    stretch: Annotated[float, Range(1, below=math.inf)] = 1.0
    rare: NonNegative = 0.0
    kl: NonNegative = ROME.kl
    decay: NonNegative = ROME.decay
    kl_at: Literal["subject", "last"] = "subject"
    scale_of: Literal["ffn", "stream"] = "ffn"
    plain: Annotated[float, Range(above=0, below=1)] | None = None
    key_plain: Annotated[float, Range(above=0, below=1)] | None = None
    source: str = "given"
    layer_by: str = "given"

    def step_size(self, scales: Float[Tensor, " requests"], d_model: int) -> Float[Tensor, " requests"]:
        """Adam's step size for each request, given its ‖v₀‖."""
        if self.relative:
            return self.rate * scales / math.sqrt(d_model)
        return self.rate * scales.new_ones(scales.shape)

    def weights(self, contexts: int) -> Float64[Tensor, " contexts"]:
        """Of each context in an average of losses, the first being the plain prompt; they sum to 1."""
        return shares(contexts, self.plain)

    def key_weights(self, contexts: int) -> Float64[Tensor, " contexts"]:
        """Of each context in an average of keys."""
        return shares(contexts, self.plain if self.key_plain is None else self.key_plain)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)

    def changed(self) -> dict[str, Any]:
        """What can be set, as it is."""
        return {name: value for name, value in asdict(self).items() if name not in (*TOLD, "layer")}


def shares(contexts: int, plain: float | None) -> Float64[Tensor, " contexts"]:
    """Weights that sum to 1, of which the first is ``plain`` and the others are alike; None: all are."""
    if plain is None or contexts == 1:
        return torch.full((contexts,), 1.0 / contexts, dtype=torch.float64)
    found = torch.full((contexts,), (1.0 - plain) / (contexts - 1), dtype=torch.float64)
    found[0] = plain
    return found


def is_published(model: Model) -> bool:
    """Whether the papers give settings for a model of this name; their λ, thresholds and bounds hold for it then."""
    return published("rome", model.name) is not None


def early_layer(n_layers: int) -> int:
    """A layer in the first third of a model, where small ones recall."""
    return max(0, round(n_layers / 3) - 2)


def default_settings(name: str, n_layers: int) -> EditSettings:
    """Those of a model of this name and depth."""
    if published("rome", name) is not None:
        return published_settings("rome", name, n_layers)
    return EditSettings(
        early_layer(n_layers),
        optimiser="projections",
        **DERIVED["projections"],
        stop=DERIVED_STOP,
        clamp=DERIVED_CLAMP,
        kl_at="last",
        plain=DERIVED_PLAIN,
        source="derived",
        layer_by="depth",
    )


def published_settings(editor: str, name: str, n_layers: int) -> EditSettings:
    """How an editor's published program finds v*, for a model of this name and depth.

    Models without hyperparameters of their own get those that the editor's files agree on, and a layer by depth.

    Args:
        editor: "rome", "memit" or "alphaedit".
        name: of the model. n_layers: of it.

    Source: Meng et al. 2022 (2202.05262), §3.1, and 2023 (2210.07229), §4.2, with ``compute_v`` and ``compute_z`` of
        their programs; AlphaEdit's finds v* as MEMIT's does.
    """
    found = published(editor, name)
    own = UNNAMED[editor] if found is None else found
    layer = early_layer(n_layers) if found is None else found.layers[-1]
    settings = EditSettings(
        layer,
        steps=own.steps,
        rate=own.rate,
        clamp=own.clamp,
        kl=own.kl,
        decay=own.decay,
        source="procedure" if found is None else "published",
        layer_by="depth" if found is None else "name",
    )
    # MEMIT's adds δ to the stream, and averages keys over kinds of contexts: the plain prompt is one, all others one.
    return settings if editor == "rome" else replace(settings, scale_of="stream", key_plain=0.5)


def settings_for(
    model: Model,
    layer: LayerName | None = None,
    changes: Mapping[str, Any] | None = None,
    editor: str = "rome",
    as_published: bool = False,
) -> EditSettings:
    """The settings of a model: published ones for a name that has them, else derived from its size.

    Derived: the layer that a sweep of ours found best for the model, else one in the first third (the published ones
    lie between .33 and .42 of the depth; small models recall earlier); projections, with six contexts at first and a δ
    that is a quarter longer for rare keys, or, where "adam" is asked for, small steps in units of what the FFN writes,
    since Adam moves every coordinate by one whether it matters or not, and what does not matter leaks into neighbours;
    a quarter of the averages for the prompt without context, where a subject that begins a text has other tokens than
    behind one. Another optimiser brings its own steps, first, rate, relative, decay, stretch and rare.

    Args:
        layer: another one than theirs.
        changes: fields of :class:`EditSettings` to set. A ``stretch`` holds for every key unless ``rare`` is given.
        editor: whose they are. as_published: as its published program has them, not the model's own as above.

    Raises: InputError: an unknown field, a value out of range. OutOfRangeError: no such layer.
    """
    known = model.name, model.n_layers
    found = published_settings(editor, *known) if as_published else default_settings(*known)
    changes = dict(changes or {})
    if "layer" in changes:
        changes["layer"] = model.layer(changes["layer"])
    unchosen = layer is None and "layer" not in changes and found.layer_by == "depth"
    if unchosen and model.unedited_fingerprint in SHIPPED_LAYERS:
        found = replace(found, layer=SHIPPED_LAYERS[model.unedited_fingerprint], layer_by="shipped")
    elif layer is not None:
        found = replace(found, layer=model.layer(layer), layer_by="given")
    if layer is not None and changes.get("layer", found.layer) != found.layer:
        raise InputError(f"layer is {found.layer}, but settings have layer {changes['layer']!r}: name one")
    unknown = set(changes) - {*asdict(found)} | {*TOLD} & set(changes)
    if unknown:
        raise InputError(f"unknown setting {unknown_words(sorted(unknown)[0])}")
    if changes:
        other = changes.get("optimiser", found.optimiser) != found.optimiser
        theirs = DERIVED.get(str(changes["optimiser"]), {}) if other else {}
        given = {"layer_by": "given"} if "layer" in changes else {}
        found = replace(found, **{**theirs, **changes, **given}, source="given")
    if "stretch" in changes:
        found = replace(found, rare=changes.get("rare", 0.0))
    return check_settings(model, found)


def unknown_words(name: str, more: Iterable[str] = ()) -> str:
    """What is to be said of a setting that there is not, given what else may be set."""
    known = [*more, *(one.name for one in fields(EditSettings) if one.name not in TOLD)]
    return f"{quoted(name)}{perhaps(name, known)}: settings are {', '.join(known)}"


def check_settings(model: Model, found: EditSettings) -> EditSettings:
    """Settings that fit each other, with the layer counted from the first."""
    if found.optimiser == "adam" and found.first is not None:
        raise InputError("first is of projections: add optimiser=projections, or leave it out")
    if found.optimiser == "projections" and (found.decay or found.relative):
        raise InputError(f"{'decay' if found.decay else 'relative'} is Adam's: add optimiser=adam, or leave it out")
    if found.stretch == 1.0 and found.rare:
        raise InputError(f"rare is of stretch, which is 1: add a larger one, or leave rare {quoted(found.rare)} out")
    return replace(found, layer=model.layer(found.layer))
