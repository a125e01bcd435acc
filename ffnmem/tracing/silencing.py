"""``silence_fact`` and ``silence_facts``: what FFNs or attention write somewhere taken away, and the answer read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..core.checked_files import array_checksum
from ..core.errors import InputError
from ..core.folders import Kind
from ..core.progress import Progress
from ..core.run_folders import run_folder
from ..core.types import Count, checked
from ..facts.answers import Answer
from ..facts.fact import Fact, as_facts
from ..facts.questions import SubjectPrompt
from ..models.chat import prompt_provenance
from ..models.model import Model
from ..models.replaying import PlainLayers, Replay
from ..models.turns import in_turn
from ..prompts.captures import Capture, warn_of_trailing_space
from ..prompts.means import check_source, means_of, source_name
from ..scanning.store import Store
from .restoring import Imposing, cell_batches, cells_of, probability
from .settings import check_parts, check_window
from .silences import Place, Silencing, Silencings, places_of_groups, places_of_tokens
from .tracing import (
    BATCH_TOKENS,
    answer_fields,
    check_said,
    conditions,
    expected_answer,
    for_each_fact,
    question,
)

SILENCINGS = Kind("manifest.json", "ffnmem silencings", 1, "the silencings", subfolders=("facts",))


@checked
@in_turn
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
    asked, name, known = question(model, fact, subject, prepend_bos)
    if isinstance(fact, str):
        warn_of_trailing_space(model, asked.text)
    asking = Asking(model, kinds, window, mean, prepend_bos, batch_tokens)
    places = places_of_tokens(model.token_strings(asked.tokens), asked.subject, model.begins(asked.tokens))
    answer = expected_answer(model, asked, known, target, first_token)
    return asking.silenced(asked, name, answer, places, progress)


@checked
@in_turn
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
    some = as_facts(facts)
    asking = Asking(model, kinds, window, mean, prepend_bos, batch_tokens)

    def silence(asked: SubjectPrompt, name: str, answer: Answer) -> Silencing:
        places = places_of_groups(asked.subject, len(asked.tokens), model.begins(asked.tokens))
        return asking.silenced(asked, name, answer, places)

    with run_folder(out, SILENCINGS, conditions(model, asking.deciding)) as folder:
        results, skipped = for_each_fact(model, some, prepend_bos, silence, folder, Silencing, "silences", progress)
    provenance = model.provenance(asking.prepend_bos, **asking.recorded, facts=len(some))
    return Silencings(results, skipped, provenance)


class Asking:
    """What all prompts have in common: the settings, checked, and what silenced parts write, by layer."""

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
        self.window = check_window(window, model.n_layers)
        self.prepend_bos = model.prepend_bos if prepend_bos is None else prepend_bos
        self.replaced_by = "zero" if mean is None else f"mean over {source_name(mean)}"
        self.recorded = {"kinds": ", ".join(self.kinds), "window": self.window, "replaced_by": self.replaced_by}
        self.layers = PlainLayers(model)
        self.batch_tokens = batch_tokens
        with torch.no_grad():
            self.means = None if mean is None else [self.mean_output(mean, layer) for layer in range(model.n_layers)]

    @property
    def deciding(self) -> dict[str, Any]:
        """All of the settings that results depend on; of a mean, what it writes."""
        means = None if self.means is None else array_checksum(torch.stack(self.means).double().cpu().numpy())
        settings = {"kinds": self.kinds, "window": self.window, "replaced_by": self.replaced_by}
        return {**settings, "means": means, "prepend_bos": self.prepend_bos}

    def mean_output(self, mean: Store | Capture, layer: int) -> Float[Tensor, " d_model"]:
        """What a layer's FFN writes of its neurons' mean coefficients."""
        model = self.layers.model
        found: Tensor = self.layers.parts[layer].project_out(means_of(mean, model, layer).to(model.dtype))
        return found

    def silenced(
        self,
        asked: SubjectPrompt,
        name: str,
        answer: Answer,
        places: tuple[Place, ...],
        progress: Progress | None = None,
    ) -> Silencing:
        """One prompt's maps; InputError if the model does not say the answer."""
        model = self.layers.model
        replay = Replay(self.layers, torch.tensor([answer.tokens], device=model.device))
        with torch.no_grad():
            final = replay.stream[len(self.layers)][:, -len(answer.read) :]
            check_said(self.layers, final[0], asked, answer)
            clean = float(probability(self.layers, final, answer.read))
            scores: dict[str, np.ndarray] = {}
            for number, kind in enumerate(self.kinds):
                columns = []
                for done, place in enumerate(places, start=1):
                    columns.append(self.column(replay, kind, place.positions, answer, clean))
                    if progress is not None:
                        progress("silence", number * len(places) + done, len(self.kinds) * len(places))
                scores[kind] = np.stack(columns, axis=1)
        return Silencing(
            scores=scores,
            places=places,
            clean=clean,
            **answer_fields(model, asked, name, answer),
            window=self.window,
            replaced_by=self.replaced_by,
            provenance=prompt_provenance(
                model.provenance(self.prepend_bos, **self.recorded), asked.text, model.begins(asked.tokens)
            ),
        )

    def column(
        self, replay: Replay, kind: str, positions: tuple[int, ...], answer: Answer, clean: float
    ) -> Float[np.ndarray, " n_layers"]:
        """The answer's probability with each layer's window silenced at some positions."""
        layers, means = self.layers, self.means

        def written(_part: str, layer: int) -> Tensor:
            own = replay.stream[layer][:, list(positions)]
            return torch.zeros_like(own) if means is None else means[layer].expand_as(own)

        reads = len(answer.read)
        imposing = Imposing(replay, kind, positions, slice(0, 1), written, reads)
        cells = cells_of(kind, len(layers), self.window)
        if positions[-1] < replay.length - reads:  # what the last layer writes there, no later position reads
            cells = [cell for cell in cells if cell.start < len(layers) - 1]
        found = np.full(len(layers), clean)
        for chunk in cell_batches(cells, replay.length - positions[0], self.batch_tokens):
            probabilities = probability(layers, imposing.run(chunk), answer.read)
            found[[cell.layer for cell in chunk]] = probabilities[:, 0].cpu().numpy()
        return found
