"""``silence_fact`` and ``silence_facts``: what FFNs or attention write somewhere taken away, and the answer read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.checked_files import array_checksum
from ..core.errors import InputError
from ..core.folders import Kind
from ..core.progress import Progress
from ..core.types import Count, checked
from ..facts.answers import Answer
from ..facts.fact import Fact
from ..facts.questions import SubjectPrompt
from ..models.model import Model
from ..models.replaying import PlainLayers, Replay
from ..prompts.captures import Capture
from ..prompts.means import check_source, name_source, read_means
from ..scanning.store import Store
from .mapping import BATCH_TOKENS, Mapper, find_question
from .maps import Silencing, Silencings
from .places import PLACES, TOGETHER, Place
from .restoring import Imposing
from .settings import check_parts, check_window

SILENCINGS = Kind("manifest.json", "ffnmem silencings", 1, "the silencings", subfolders=("facts",))


@checked
def silence_fact(
    model: Model,
    fact: Fact | str,
    subject: str | None = None,
    *,
    target: str | None = None,
    first_token: bool = False,
    kinds: Sequence[str] = ("ffn",),
    window: Count | None = None,
    mean: Store | Capture | None = None,
    prepend_bos: bool | None = None,
    batch_tokens: Count = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Silencing:
    """What an answer loses where FFNs write nothing at one token, or at all of the subject, in a window of layers.

    A trace says what is enough to bring an answer back; this says what it cannot do without.

    Args:
        model: from :func:`ffnmem.load`.
        fact, subject, target, first_token: as :func:`ffnmem.trace_fact` takes them.
        kinds: ``"ffn"``, or ``"attention"`` for what attention writes.
        window: in layers; default 10 of every 48, but at least 3 unless that is more than half of all.
        mean: a Store or a Capture: silenced FFNs write what their neurons' mean coefficients over it write (its content
            positions), in place of nothing.
        prepend_bos: whether the prompt gets the beginning-of-sequence token; None for the model's own way.
        batch_tokens: tokens that are run at once; memory grows with it, results do not depend on it.
        progress: called with "silence", the maps' columns done and all of them.

    Returns: A :class:`Silencing`; its places are the prompt's tokens, the whole subject, and the whole prompt.

    Raises: As :func:`ffnmem.trace_fact`. InputError, too: a source of another model, or a mean of attention.

    Source: the windows are those of Meng et al. 2022 (2202.05262); taking outputs away as Geva et al. 2023
    (2304.14767), section 5.
    """
    silencer = Silencer(model, kinds, window, mean, prepend_bos, batch_tokens)
    question = find_question(model, fact, subject, prepend_bos)
    return silencer.map_fact(question, target, first_token, progress=progress)


@checked
def silence_facts(
    model: Model,
    facts: Fact | Iterable[Fact],
    *,
    out: str | Path | None = None,
    kinds: Sequence[str] = ("ffn",),
    window: Count | None = None,
    mean: Store | Capture | None = None,
    prepend_bos: bool | None = None,
    batch_tokens: Count = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Silencings:
    """What is lost of the answers of many facts, by groups of positions; those that are not known are skipped.

    A group's positions are silenced together: the six of :func:`ffnmem.tracing.trace_facts`, the
    beginning-of-sequence token, what stands before the subject, the whole subject, and the whole prompt.

    Args:
        model, kinds, window, mean, prepend_bos, batch_tokens: as of :func:`silence_fact`.
        facts: to ask, one or some.
        out: a folder to keep each fact's result in as soon as it is there, made if missing. The same call goes on
            where one was stopped; other facts may be added.
        progress: called with "silences", the facts done and all of them.

    Returns: :class:`Silencings`: ``.silencings``, ``.groups``, ``.skipped``.

    Raises: As :func:`silence_fact`. InputError, too: no facts. FileError: a folder that cannot be written,
        holds something else, or was made by another model or with other settings.
    """
    silencer = Silencer(model, kinds, window, mean, prepend_bos, batch_tokens)
    return Silencings(*silencer.map_facts(facts, out, progress))


class Silencer(Mapper[Silencing]):
    """Silencing with the same settings, and what silenced parts write, by layer."""

    ONE, FOLDER, PHASE, MANY_PHASE = Silencing, SILENCINGS, "silence", "silences"

    def __init__(
        self,
        model: Model,
        kinds: Sequence[str],
        window: int | None,
        mean: Store | Capture | None,
        prepend_bos: bool | None,
        batch_tokens: int,
    ) -> None:
        self.kinds = check_parts(kinds)
        if mean is not None:
            check_source("mean", mean)
            if self.kinds != ("ffn",):
                raise InputError("mean is of coefficients, so it replaces what FFNs write: kinds must be ('ffn',)")
        width, layers = check_window(window, model.n_layers), PlainLayers(model)
        self.replaced_by = "zero" if mean is None else f"mean over {name_source(mean)}"
        self.means: list[Tensor] | None = None
        if mean is not None:
            with torch.no_grad():  # what a layer's FFN writes of its neurons' mean coefficients
                self.means = [
                    part.project_out(read_means(mean, model, layer).to(model.dtype))
                    for layer, part in enumerate(layers.parts)
                ]
        recorded = {"kinds": ", ".join(self.kinds), "window": width, "replaced_by": self.replaced_by}
        means = None if self.means is None else array_checksum(torch.stack(self.means).double().cpu().numpy())
        deciding = {"kinds": self.kinds, "replaced_by": self.replaced_by, "means": means}
        super().__init__(model, width, prepend_bos, batch_tokens, recorded, deciding, layers)

    def measure(
        self, asked: SubjectPrompt, answer: Answer, alone: bool, progress: Callable[[int, int], None]
    ) -> dict[str, Any]:
        places = self.find_places(asked, TOGETHER, PLACES, alone)
        replay = Replay(self.layers, torch.tensor([answer.tokens], device=self.model.device))
        (clean,) = self.probabilities(replay, asked, answer)

        def impose(kind: str, place: Place) -> Imposing:
            def written(_part: str, layer: int) -> Tensor:
                own = replay.stream[layer][:, list(place.positions)]
                return torch.zeros_like(own) if self.means is None else self.means[layer].expand_as(own)

            return Imposing(replay, kind, place.positions, slice(0, 1), written, len(answer.read))

        scores = self.score_columns(self.kinds, places, impose, answer, clean, progress)
        return {"scores": scores, "places": places, "clean": clean, "replaced_by": self.replaced_by}
