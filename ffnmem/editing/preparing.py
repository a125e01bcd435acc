"""What editors share: requests, second moments, v*, and an ``Edit`` with all it was made with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch

from ..core.errors import InputError, check_choice, counted, quoted, warn
from ..core.neuron_names import LayerName
from ..core.progress import Progress
from ..core.types import Range
from ..facts.fact import Fact, facts_or_text
from ..facts.questions import doubt_word, own_answer
from ..models.model import Model
from ..models.replaying import PlainLayers
from ..prompts.captures import warn_of_trailing_space
from .changes import EditedLayer
from .edit import Edit
from .moments import RIDGE, SecondMoment, load_second_moment
from .requests import LENGTHS, PLAIN, Request, check_contexts, make_requests, write_contexts
from .settings import EditSettings, check_settings, settings_for
from .values import Directions, FoundValue, optimise
from .verifying import verify

CHANGE = 0.35
"""Of ‖ΔW‖/‖W‖, from which on an edit is warned of. Of 90 edits of atlas's own facts by rome, the 40 with the least
likely of 4,000 targets among them, none changes its layer by more than .34, half of them by less than .15; " paris" in
three pieces takes .40."""

Moment = SecondMoment | str | Path | None
Settings = Mapping[str, Any] | EditSettings | str | None
Ridge = Annotated[float, Range(least=0, below=math.inf)]
BASES = ("published",)
CHANGE_LIMIT = 2.0  # of ‖ΔW‖/‖W‖


@dataclass(frozen=True, eq=False)
class EditPlan:
    """Requests and all that is needed to fulfil them.

    Attributes:
        model: to edit, as it is now. layers: its plain layers.
        requests: what is to be rewritten.
        contexts: in which keys are averaged and targets are trained. seed: of their sampling.
        unseen: contexts that no search has, in which edits are looked at as in the prompt itself.
        settings: how v* is found. published: whether the editor's published program is followed in everything else.
        source: what the second moment is read from.
        expert: the one expert whose values are changed; None: those of the whole layer.
    """

    model: Model
    layers: PlainLayers
    requests: tuple[Request, ...]
    contexts: tuple[str, ...]
    seed: int
    settings: EditSettings
    source: Moment
    published: bool = False
    unseen: tuple[str, ...] = ()
    expert: int | None = None

    @cached_property
    def moment(self) -> SecondMoment:
        """The second moment of the model's coefficients; loaded where an editor needs it."""
        return load_second_moment(self.source, self.model)

    @cached_property
    def norms(self) -> dict[int, float]:
        """‖W‖ of the layers that were asked for so far; see :meth:`norm`."""
        return {}

    def norm(self, layer: int) -> float:
        """‖W‖ of a layer's values, computed once for all edits of the plan."""
        if layer not in self.norms:
            self.norms[layer] = weight_norm(self.model, layer)
        return self.norms[layer]

    def largest(self, changes: Sequence[EditedLayer]) -> tuple[float, int]:
        """‖ΔW‖/‖W‖ of the layer that changes most, and which it is."""
        return max((change.norm / self.norm(change.layer), change.layer) for change in changes)

    def check_moment(self, layers: Iterable[int]) -> None:
        """Raise what an editor would meet after minutes of work: no second moment, or not of these layers."""
        for layer in layers:
            self.moment.width(layer)

    def keys(self, given: str | None) -> str:
        """Which key v* is written for, see :func:`ffnmem.rome`: the one that was given, else ours or the program's."""
        return given or ("original" if self.published else "consistent")

    def ridge(self, given: float | None) -> float:
        """The ridge that was given, else ours; the published programs have none."""
        return given if given is not None else 0.0 if self.published else RIDGE

    @property
    def neurons(self) -> range | None:
        """The neurons of the layer whose values are changed: those of an expert, or None for all."""
        return None if self.expert is None else self.model.ffn[self.settings.layer].experts[self.expert].neurons

    def value_words(self) -> dict[str, Any]:
        """How v* is found, as an edit records it."""
        expert = {} if self.expert is None else {"expert": self.expert}
        return {**self.settings.to_dict(), **expert, "contexts": list(self.contexts), "context_seed": self.seed}

    def moment_words(self) -> dict[str, Any]:
        """Which second moment is used, as an edit records it."""
        return {"second_moment": {"tokens": self.moment.count, "corpus": self.moment.corpus_hash}}

    def of(self, some: Iterable[int]) -> tuple[Request, ...]:
        return tuple(self.requests[i] for i in some)


def plan_edits(
    model: Model,
    facts: Fact | str | Iterable[Fact],
    target: str | None = None,
    subject: str | None = None,
    layer: LayerName | None = None,
    moment: Moment = None,
    contexts: Sequence[str] | None = None,
    seed: int = 0,
    settings: Settings = None,
    *,
    procedure: str | None = None,
) -> EditPlan:
    """What the editors' arguments mean; see :func:`ffnmem.rome`. Mistakes are told before contexts are sampled.

    Args:
        procedure: the editor, whose published program ``settings="published"`` means; a second moment must be there for
            it. None: rome's, without a second moment.

    Raises: InputError: facts without target, a text without its subject, contexts without ``{}``, unknown settings;
        where a second moment is needed, none for this model.
        OutOfRangeError: no such layer.
        UnsupportedModelError: a model whose layers cannot be run by themselves, or under an intervention.
    """
    some = [with_truth(model, fact) for fact in facts_or_text(facts, subject, target)]
    own, published = read_settings(model, layer, settings, procedure or "rome")
    warn_of_trailing_space(model, *(fact.text for fact in some))
    make_requests(model, some, target, (PLAIN,))  # tells mistakes about facts and targets
    if procedure is not None:
        moment = load_second_moment(moment, model, [own.layer] if procedure == "rome" else [])
        moment.width(own.layer)
    texts, unseen = choose_contexts(model, contexts, seed)
    requests = make_requests(model, some, target, texts)
    layers = PlainLayers(model)
    return EditPlan(model, layers, tuple(requests), texts, seed, own, moment, published=published, unseen=unseen)


def with_truth(model: Model, fact: Fact) -> Fact:
    """A fact with its true target: where nobody says what is true, what the model says itself, if that can be a fact.

    Where it is likely none, that is warned of once: what has no true target is not compared with one.
    """
    if fact.target_true:
        return fact
    try:
        word = own_answer(model, fact.text)
        doubt = doubt_word(model, fact.text, word)
    except InputError as error:
        doubt = str(error)
    if doubt:
        warn(doubt)
        return fact
    return replace(fact, target_true=word)


def read_settings(
    model: Model, layer: LayerName | None, settings: Settings, procedure: str, published: bool = False
) -> tuple[EditSettings, bool]:
    """The settings that an editor's arguments ask for, and whether they ask for its published program.

    Args:
        procedure: the editor. published: whether to follow its program in any case.
    """
    if isinstance(settings, EditSettings):
        changed = check_settings(model, settings) if layer is None else settings_for(model, layer, settings.changed())
        return changed, published
    changes = {"base": settings} if isinstance(settings, str) else dict(settings or {})
    base = changes.pop("base", None)
    if base is not None:
        check_choice("settings", base, BASES)
    published = published or base is not None
    return settings_for(model, layer, changes or None, procedure, published), published


SAMPLED, UNSEEN = 20, 4  # contexts, half of them of each length; others, a token longer than the longest


def choose_contexts(model: Model, contexts: Sequence[str] | None, seed: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Contexts given or sampled, the first being the prompt alone; and of sampled ones others, which no search has."""
    if contexts is not None:
        return (PLAIN, *(text for text in check_contexts(contexts) if text != PLAIN)), ()
    lengths = [length for length in LENGTHS for _ in range(SAMPLED // len(LENGTHS))]
    texts = write_contexts(model, [*lengths, *[max(LENGTHS) + 1] * UNSEEN], seed)
    return (PLAIN, *texts[:SAMPLED]), texts[SAMPLED:]


def find_values(
    plan: EditPlan, progress: Progress | None = None, directions: Directions | None = None
) -> list[FoundValue]:
    """δ for each request of a plan; with ``directions``, as :func:`ffnmem.editing.values.optimise` takes them."""
    return optimise(plan.layers, plan.requests, plan.settings, directions=directions, progress=progress)


def edit_each(
    plan: EditPlan, facts: Fact | str | Iterable[Fact], make: Callable[[int], Edit], progress: Progress | None
) -> Edit | tuple[Edit, ...]:
    """The edits that ``make`` makes of each request of a plan."""
    edits = []
    for i in range(len(plan.requests)):
        if progress is not None:
            progress("edit", i, len(plan.requests))
        edits.append(make(i))
    if progress is not None:
        progress("edit", len(edits), len(edits))
    return finish_edits(facts, edits)


def weight_norm(model: Model, layer: int) -> float:
    """‖W‖ of a layer's values."""
    return float(torch.linalg.matrix_norm(model.ffn[layer].values.detach().double()))


def check_reaches(plan: EditPlan, request: Request, found: FoundValue) -> None:
    """Raise InputError where there is no v* to write: no step moved it, as the layer writes where no answer is read."""
    if found.steps and not bool((found.delta != 0).any()):
        raise InputError(
            f"what layer {plan.settings.layer} writes at the last token of {quoted(request.fact.subject)} reaches no "
            f"answer, or nothing in {counted(found.steps, 'step')} made {quoted(f' {request.target}')} likelier: edit "
            "an earlier layer, or give more steps"
        )


def value_numbers(request: Request, found: FoundValue) -> dict[str, Any]:
    """What an edit's numbers say of a v*."""
    return {
        "id": request.fact.id,
        "steps": found.steps,
        "loss": found.loss,
        "delta": float(found.delta.norm()) / found.scale,
        "after_delta": found.after,
    }


def make_edit(
    plan: EditPlan,
    which: Sequence[int],
    method: str,
    changes: Sequence[EditedLayer],
    rows: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
    force: bool,
) -> Edit:
    """The edit of some of a plan's requests, with everything that its editor was run with, verified.

    Args:
        plan: the requests. which: of them. method: the editor's name. changes: one a layer.
        rows: what was measured of each request; how much the edit changes, and what it does in the request's prompt,
            is added to them. settings: to be recorded. force: make it whatever its size.

    Raises: InputError: a layer changed by more than CHANGE_LIMIT times its norm, unless forced: single edits that are
        far larger than others are what breaks a model (Gupta et al. 2024, 2403.07175).
    """
    requests = plan.of(which)
    ratio, layer = plan.largest(changes)
    if not force and not ratio <= CHANGE_LIMIT:
        name = quoted(requests[0].fact.text) if len(requests) == 1 else f"{len(requests)} facts"
        raise InputError(
            f"the edit of {name} would change layer {layer} by {ratio:.3g} times its own norm (at most "
            f"{CHANGE_LIMIT:g}): it would likely break the model; force=True (--force) makes it all the same"
        )
    edit = Edit.of(
        plan.model,
        list(changes),
        method=method,
        facts=[request.fact for request in requests],
        targets=[request.target for request in requests],
        settings=settings,
    )
    verified = verify(plan.layers, requests, edit, plan.unseen)
    numbers = [{**row, "change": ratio, **one.numbers()} for row, one in zip(rows, verified, strict=True)]
    doubts = []
    if ratio > CHANGE:
        doubts.append(
            f"the edit changes layer {layer} by {ratio:.0%} of its norm, where edits to targets that the model finds "
            f"plausible need less than {CHANGE:.0%}: look at what else moved"
        )
    return replace(edit, numbers=pd.DataFrame(numbers), warnings=tuple(doubts))


def announce(edits: Sequence[Edit]) -> None:
    """Warn of the first edit that changes a layer much, and say how many more there are."""
    doubtful = [warning for edit in edits for warning in edit.warnings]
    if doubtful:
        more = len(doubtful) - 1
        warn(doubtful[0] + (f"; {more} more of {len(edits)} edits are doubtful" if more else ""))


def finish_edits(facts: Fact | str | Iterable[Fact], edits: list[Edit]) -> Edit | tuple[Edit, ...]:
    """One edit for one fact, as many as facts for some; what they change much is warned of, once they are there."""
    announce(edits)
    return edits[0] if isinstance(facts, Fact | str) else tuple(edits)
