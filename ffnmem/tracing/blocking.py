"""``knockout`` and ``knockout_facts``: attention from the last token blocked, and the answer read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core.errors import InputError, UnsupportedModelError, check_index, listed, quoted
from ..core.folders import Kind
from ..core.progress import Progress
from ..core.types import Count, checked
from ..facts.answers import Answer
from ..facts.fact import Fact, Facts
from ..facts.questions import SubjectPrompt
from ..models.attention import Blocking
from ..models.hooks import OpenBlock
from ..models.model import Model
from ..models.replaying import PlainLayers, Replay
from .mapping import BATCH_TOKENS, Mapper, find_question
from .maps import Knockout, Knockouts
from .places import VIEWS, Place
from .restoring import RestoredCell, cell_batches, cells_of, probability
from .settings import WIDEST_KNOCKOUT, check_window

KNOCKOUTS = Kind("manifest.json", "ffnmem knockouts", 1, "the knockouts", subfolders=("facts",))


@checked
def knockout(
    model: Model,
    fact: Fact | str,
    subject: str | None = None,
    *,
    target: str | None = None,
    first_token: bool = False,
    window: Count | None = None,
    positions: Sequence[SupportsIndex] | None = None,
    prepend_bos: bool | None = None,
    batch_tokens: Count = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Knockout:
    """What an answer loses where its position cannot look at a token.

    Attention from the last position to a place is blocked in a window of layers, in an otherwise plain forward pass;
    its weights go to what is left. Where that takes the answer away, its position fetches something there, in these
    layers.

    Args:
        model: from :func:`ffnmem.load`.
        fact, subject, target, first_token, prepend_bos: as :func:`ffnmem.trace_fact` takes them.
            Of an answer of several tokens, the attention of each position that one of them is read after is blocked.
        window: in layers; default 9 of every 48, but at least 3 unless that is more than half of all.
        positions: of the prompt, blocked together as one more place, ``"chosen"``; 0 is the first token, -1 the last.
        batch_tokens: keys that are looked at at once; memory grows with it, results do not depend on it.
        progress: called with "knockout", the cells done and all of them.

    Returns: A :class:`Knockout`; its places are the prompt's tokens, the whole subject, all but the subject and the
        last token, and what is chosen.

    Raises: As :func:`ffnmem.trace_fact`. InputError, too: a prompt of one token, or a place that is all that the last
        token sees. UnsupportedModelError: attention that shows no softmax.

    Source: Geva et al. 2023 (2304.14767), section 4.

    Example:
        $ ffnmem knockout "The Eiffel Tower is located in the city of" \\
            "Eiffel Tower" --window 1 --plot eiffel.png
        $ ffnmem knockout "The capital of France is" France \\
            --positions 1 --positions 2
    """
    blocker = Blocker(model, window, positions or (), prepend_bos, batch_tokens)
    question = find_question(model, fact, subject, prepend_bos)
    return blocker.map_fact(question, target, first_token, progress=progress)


@checked
def knockout_facts(
    model: Model,
    facts: Facts,
    *,
    out: str | Path | None = None,
    window: Count | None = None,
    prepend_bos: bool | None = None,
    batch_tokens: Count = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Knockouts:
    """What answers of many facts lose where their position cannot look.

    The shares are averaged by where tokens stand towards the subject; facts that the model does not know are skipped.
    A group's positions are blocked together: those of :func:`ffnmem.tracing.trace_facts`, the beginning-of-sequence
    token, what stands before the subject, the whole subject, and all but the subject and the last token.

    Args:
        model, window, prepend_bos, batch_tokens: as :func:`ffnmem.knockout` takes them.
        facts: to ask, one or some.
        out: a folder to keep each fact's result in as soon as it is there, made if missing. The same call goes on
            where one was stopped; other facts may be added.
        progress: called with "knockouts", the facts done and all of them.

    Returns: :class:`Knockouts`: ``.knockouts``, ``.groups``, ``.skipped``.

    Raises: As :func:`ffnmem.knockout`. InputError, too: no facts. FileError: a folder that cannot be written,
        holds something else, or was made by another model or with other settings.

    Source: Geva et al. 2023 (2304.14767), figure 2.

    Example:
        $ ffnmem knockout-facts atlas --known --limit 3
    """
    return Knockouts(*Blocker(model, window, (), prepend_bos, batch_tokens).map_facts(facts, out, progress))


class LastPositions(Replay):
    """A prompt whose last positions, those that an answer is read after, are run again with less to look at.

    Nothing before them changes, whatever they see, so a run is of these tokens, from the first layer of its window on:
    the keys and values of the others are those of the clean pass.
    """

    hidden: Bool[Tensor, "rows key"] | None = None
    reads: int = 1

    def attend(
        self, layer: int, normed: Float[Tensor, "rows reads d_model"], first: int, rows: Int[Tensor, " rows"]
    ) -> Float[Tensor, "rows reads d_model"]:
        if self.hidden is None:
            return super().attend(layer, normed, first, rows)
        with OpenBlock() as block:
            blocking = block.mode(Blocking(self.hidden, self.reads))
            found = super().attend(layer, normed, first, rows)
        if blocking.taken != 1:
            raise UnsupportedModelError(
                f"{self.model.name} ({self.model.architecture}): attention of layer {layer} shows no softmax of its "
                "own, so nothing can be hidden from it"
            )
        if blocking.empty:
            hidden = listed(self.hidden[blocking.empty[0]].nonzero().flatten().tolist())
            raise InputError(
                f"without positions {hidden} the last token of the prompt has nothing left to look at in layer {layer}"
            )
        return found

    def run(self, cells: Sequence[tuple[Place, RestoredCell]]) -> Float[Tensor, "cells reads d_model"]:
        """What reaches the final norm at the last positions, for each place and window; by rising start."""
        device = self.stream[0].device
        hidden = torch.zeros(len(cells), self.length, dtype=torch.bool, device=device)
        for row, (place, _) in enumerate(cells):
            hidden[row, list(place.positions)] = True
        starts = torch.tensor([cell.start for _, cell in cells], device=device)
        ends = torch.tensor([cell.end for _, cell in cells], device=device)
        x = self.stream[0][:0, -self.reads :]
        for layer in range(int(starts[0]), len(self.layers)):
            running = int((starts <= layer).sum())
            entering = self.stream[layer][:, -self.reads :].expand(running - len(x), -1, -1)
            x = torch.cat([x, entering])
            inside = (ends[:running] > layer).unsqueeze(-1)
            self.hidden = hidden[:running] & inside
            try:
                rows = torch.zeros(running, dtype=torch.long, device=device)
                x = self.run_layer(layer, x, self.length - self.reads, rows)
            finally:
                self.hidden = None
        return x


class Blocker(Mapper[Knockout]):
    """Knockout with the same settings, and the layers with attention that can be blocked."""

    ONE, FOLDER, PHASE, MANY_PHASE = Knockout, KNOCKOUTS, "knockout", "knockouts"

    def __init__(
        self,
        model: Model,
        window: int | None,
        positions: Sequence[SupportsIndex],
        prepend_bos: bool | None,
        batch_tokens: int,
    ) -> None:
        self.positions = positions
        width = check_window(window, model.n_layers, WIDEST_KNOCKOUT)
        super().__init__(model, width, prepend_bos, batch_tokens, {"window": width}, {}, PlainLayers(model, "eager"))

    def measure(
        self, asked: SubjectPrompt, answer: Answer, alone: bool, progress: Callable[[int, int], None]
    ) -> dict[str, Any]:
        length = len(asked.tokens)
        chosen = sorted({check_index("position", position, length, "the prompt") for position in self.positions})
        places = self.find_places(asked, ("whole subject", "non-subject"), VIEWS, alone, chosen)
        if length < 2:
            raise InputError(f"{quoted(asked.text)} is one token, which has no other one to look at")
        replay = LastPositions(self.layers, torch.tensor([answer.tokens], device=self.model.device))
        replay.reads = len(answer.read)
        (clean,) = self.probabilities(replay, asked, answer)
        cells = [
            (place, column, cell)
            for cell in cells_of("attention", len(self.layers), self.window)
            for column, place in enumerate(places)
        ]
        batches = list(cell_batches(cells, replay.length * replay.reads, self.batch_tokens))
        scores = np.empty((len(self.layers), len(places)))
        for done, chunk in enumerate(batches, start=1):
            found = probability(self.layers, replay.run([(place, cell) for place, _, cell in chunk]), answer.read)
            scores[[cell.layer for *_, cell in chunk], [column for _, column, _ in chunk]] = found.cpu().numpy()
            progress(done, len(batches))
        return {"scores": {"edges": scores}, "places": places, "clean": clean}
