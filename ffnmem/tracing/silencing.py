"""Silencing: what FFNs or attention write at a place taken away, in a window of layers, and the answer read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.folders import Kind
from ..facts.answers import Answer
from ..facts.questions import SubjectPrompt
from ..models.model import Model
from ..models.replaying import Replay
from .mapping import Mapper
from .maps import Silencing
from .places import PLACES, TOGETHER, Place
from .restoring import Imposing
from .settings import PARTS, check_kinds, check_window

SILENCINGS = Kind("manifest.json", "ffnmem silencings", 1, "the silencings", subfolders=("facts",))


class Silencer(Mapper[Silencing]):
    """Silencing with the same settings."""

    ONE, FOLDER, PHASE, MANY_PHASE = Silencing, SILENCINGS, "silence", "silences"

    def __init__(
        self,
        model: Model,
        kinds: Sequence[str] | None,
        window: int | None,
        prepend_bos: bool | None,
        batch_tokens: int,
    ) -> None:
        self.kinds = check_kinds(("ffn",) if kinds is None else kinds, PARTS, "silence")
        width = check_window(window, model.n_layers)
        recorded = {"way": "silence", "kinds": ", ".join(self.kinds), "window": width}
        super().__init__(model, width, prepend_bos, batch_tokens, recorded, {"kinds": self.kinds})

    def measure(
        self, asked: SubjectPrompt, answer: Answer, alone: bool, progress: Callable[[int, int], None]
    ) -> dict[str, Any]:
        places = self.find_places(asked, TOGETHER, PLACES, alone)
        replay = Replay(self.layers, torch.tensor([answer.tokens], device=self.model.device))
        (clean,) = self.probabilities(replay, asked, answer)

        def impose(kind: str, place: Place) -> Imposing:
            def nothing(_part: str, layer: int) -> Tensor:
                return torch.zeros_like(replay.stream[layer][:, list(place.positions)])

            return Imposing(replay, kind, place.positions, slice(0, 1), nothing, len(answer.read))

        scores = self.score_columns(self.kinds, places, impose, answer, clean, progress)
        return {"scores": scores, "places": places, "clean": clean}
