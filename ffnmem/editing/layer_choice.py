"""``LayerChoice``: which layer to edit, as a sweep over held-out facts found it; kept for the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..core.checked_files import digest
from ..core.errors import InputError, counted, warn
from ..core.files import make_folder
from ..core.provenance import Provenance
from ..core.resources import cache_folder
from ..core.sheets import Facts, Origin, Sheet
from ..core.types import checked
from ..facts.fact import Fact
from ..models.model import Model
from ..models.turns import in_turn
from ..show.result import Result
from .moments import SecondMoment

if TYPE_CHECKING:
    from pathlib import Path


# The layer that a sweep chose, kept for the model.


@checked
@dataclass(frozen=True, eq=False, repr=False)
class LayerChoice(Result):
    """The layer to edit in a model, as a sweep over facts found it. Made by :func:`ffnmem.evaluation.choose_layer`.

    Attributes:
        layer: the best one by the metric, the lowest of equal ones.
        editor: whose edits were measured. metric: by which.
        frame: the sweep's: layer, metric, mean, low, high, n.
        facts: a digest of each fact that it was chosen with: scores of these are not held out.
        seconds: what the sweep took.
        provenance: of the model.
        asked: a digest of all that the sweep depends on besides: whole facts and the options of the call.
    """

    layer: int
    editor: str
    metric: str
    frame: pd.DataFrame
    facts: tuple[str, ...]
    seconds: float
    provenance: Provenance
    asked: str = ""

    main = "frame"
    in_json = "layer editor metric frame facts seconds"

    @property
    def layers(self) -> tuple[int, ...]:
        """Those that were swept."""
        return tuple(map(int, self.frame["layer"].unique()))

    def summary(self) -> str:
        return f"layer {self.layer} of {self.provenance.model}, {self.cost}"

    @property
    def cost(self) -> str:
        """What it was chosen by, and what that took."""
        return (
            f"the best {self.metric} of {self.editor} in {counted(len(self.layers), 'layer')} over "
            f"{counted(len(self.facts), 'fact')}: {len(self.layers) * len(self.facts):,} edits in {self.seconds:,.0f} s"
        )

    def sheet(self) -> Sheet:
        """The layer, how it was found, and what that took."""
        return Sheet.of(Facts({"layer": str(self.layer), "chosen by": self.cost}), Origin(self.provenance.to_dict()))


def choice_file(model: Model) -> Path:
    """Where the choice for a model is kept; its edits do not matter."""
    return cache_folder("layers") / f"{model.unedited_fingerprint}.zip"


@checked
@in_turn
def keep_choice(model: Model, choice: LayerChoice) -> Path:
    """Keep a choice for a model, in place of an earlier one, as ``choose_layer`` does.

    Args:
        model: whose weights it is for. choice: a :class:`LayerChoice`.

    Returns: The file.

    Raises: FileError: the cache cannot be written.
    """
    path = choice_file(model)
    make_folder(path.parent, parents=True)  # the first thing in the cache, maybe
    return choice.save(path)


@checked
@in_turn
def kept_choice(model: Model) -> LayerChoice:
    """The layer that was chosen for a model of these weights and kept.

    Args:
        model: from :func:`ffnmem.load`, with edits or without.

    Raises: InputError: none was. FileError: a file that is damaged.
    """
    path = choice_file(model)
    if not is_kept(model):
        raise InputError(
            f"no layer was chosen for {model.name} ({model.unedited_fingerprint}): choose_layer (ffnmem evaluate "
            "sweep --keep) chooses one by edits of facts that are not judged later"
        )
    return LayerChoice.load(path)


def is_kept(model: Model) -> bool:
    """Whether a layer was chosen for a model of these weights and kept."""
    return choice_file(model).exists()


def fact_digests(facts: Sequence[Fact]) -> tuple[str, ...]:
    """What tells each fact from others, whatever its id: subject and prompt."""
    return tuple(digest([fact.subject, fact.prompt]) for fact in facts)


def asked_digest(facts: Sequence[Fact], options: Mapping[str, Any]) -> str:
    """What tells a sweep from others of the same model, editor and layers."""
    told = {
        name: (one.count, one.corpus_hash) if isinstance(one, SecondMoment) else one for name, one in options.items()
    }
    return digest([[fact.to_dict() for fact in facts], told], default=str)


def warn_of_seen(choice: LayerChoice, facts: Sequence[Fact]) -> None:
    """Say so where a layer was chosen with facts that it is judged by."""
    seen = sum(digest in choice.facts for digest in fact_digests(facts))
    if seen:
        warn(
            f"layer {choice.layer} was chosen with {seen} of these {counted(len(facts), 'fact')}: their scores are not "
            "held out"
        )


def candidates(n_layers: int, most: int = 8) -> list[int]:
    """Layers to sweep: up to ``most`` of the first two thirds, evenly spaced.

    Published layers lie between .33 and .42 of the depth, and small models recall earlier.
    """
    last = max(1, round(n_layers * 2 / 3))
    return sorted({int(place) for place in np.linspace(0, last - 1, min(most, last)).round()})
