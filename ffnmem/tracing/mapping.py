"""What tracing, silencing and knockout share: a fact asked, its map made, and the same of many facts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ..core.checked_files import digest
from ..core.errors import InputError, quoted
from ..core.folders import Kind
from ..core.progress import Phase, Progress
from ..core.provenance import Provenance
from ..core.run_folders import run_folder
from ..facts.answers import Answer, read_answer
from ..facts.fact import Fact, Facts, as_facts
from ..facts.questions import SubjectPrompt, ask_about, find_subject
from ..facts.templates import check_marked_once
from ..models.chat import prompt_provenance
from ..models.model import Model
from ..models.replaying import PlainLayers, Replay
from ..prompts.captures import warn_of_trailing_space
from .maps import FactMap
from .places import Place, group_places, token_places
from .restoring import Imposing, cell_batches, cells_of, probability

BATCH_TOKENS = 4096
MapKind = TypeVar("MapKind", bound=FactMap)
Question = tuple[SubjectPrompt, str, str | None]
"""A prompt with its subject found, what it is called, and what is known to be true, if that is."""


class Mapper(Generic[MapKind]):
    """What the maps of all facts have in common: the settings, checked, and the model's layers.

    Args:
        model: the model.
        window: in layers.
        prepend_bos: None for the model's own way.
        batch_tokens: tokens that are run at once.
        recorded: what a provenance says of the settings.
        deciding: further settings that results depend on.
        layers: of the model, to be run one by one.
    """

    ONE: type[MapKind]
    PHASE: ClassVar[Phase]
    FOLDER: ClassVar[Kind]
    MANY_PHASE: ClassVar[Phase]

    def __init__(
        self,
        model: Model,
        window: int,
        prepend_bos: bool | None,
        batch_tokens: int,
        recorded: dict[str, Any],
        deciding: dict[str, Any],
        layers: PlainLayers | None = None,
    ) -> None:
        self.model, self.window, self.batch_tokens, self.recorded = model, window, batch_tokens, recorded
        self.prepend_bos = model.prepend_bos if prepend_bos is None else prepend_bos
        self.deciding = {**deciding, "window": window, "prepend_bos": self.prepend_bos}
        self.layers = PlainLayers(model) if layers is None else layers

    @abstractmethod
    def measure(
        self, asked: SubjectPrompt, answer: Answer, alone: bool, progress: Callable[[int, int], None]
    ) -> dict[str, Any]:
        """The scores of one prompt, by ``clean`` and the other fields of its map that are this kind's own.

        ``alone``: whether its tokens are looked at one by one, not only the groups that many facts have.
        """

    def map_fact(
        self,
        question: Question,
        target: str | None = None,
        first_token: bool = False,
        alone: bool = True,
        progress: Progress | None = None,
    ) -> MapKind:
        """The map of one fact or prompt; InputError if the model does not say the answer."""
        model, (asked, name, known) = self.model, question
        given, word = (known if target is None else target), target is None and known is not None
        answer = read_answer(model, asked.tokens, given, first_token=first_token, word=word)

        def report(done: int, total: int) -> None:
            if progress is not None:
                progress(self.PHASE, done, total)

        with torch.no_grad():
            measured = self.measure(asked, answer, alone, report)
        return self.ONE(
            **measured,
            answer=answer.target_text,
            answer_ids=answer.target,
            text=asked.text,
            tokens=tuple(model.token_strings(asked.tokens)),
            subject=asked.subject,
            fact=name,
            window=self.window,
            provenance=prompt_provenance(
                model.provenance(self.prepend_bos, **self.recorded), asked.text, model.begins(asked.tokens)
            ),
        )

    def map_facts(
        self, facts: Facts, out: str | Path | None, progress: Progress | None
    ) -> tuple[tuple[MapKind, ...], pd.DataFrame, Provenance]:
        """The maps of those of some facts that the model knows, of the others fact, subject and reason, and the
        provenance: the fields of a result. What the folder ``out`` holds is not measured again."""
        some, model = as_facts(facts), self.model

        def map_or_reason(fact: Fact) -> MapKind | str:
            try:
                return self.map_fact(find_question(model, fact, None, self.prepend_bos), alone=False)
            except InputError as error:
                return str(error)

        maps, skipped = [], []
        dtype = str(model.dtype).removeprefix("torch.")
        run = {"model": model.name, "fingerprint": model.fingerprint, "dtype": dtype, "settings": self.deciding}
        with run_folder(out, self.FOLDER, run) as folder:
            for done, fact in enumerate(some, start=1):
                key = fact.to_dict()
                result = folder.kept(f"facts/{digest(key)}", self.ONE | str, key, partial(map_or_reason, fact))
                if isinstance(result, str):
                    skipped.append((fact.id, fact.subject, result))
                else:
                    maps.append(result)
                if progress is not None:
                    progress(self.MANY_PHASE, done, len(some))
        provenance = model.provenance(self.prepend_bos, **self.recorded, facts=len(some))
        return tuple(maps), pd.DataFrame(skipped, columns=["fact", "subject", "reason"]), provenance

    def probabilities(self, replay: Replay, asked: SubjectPrompt, answer: Answer) -> list[float]:
        """The answer's, of each row of a replay, of which the first is clean. InputError if the model says another."""
        final = replay.stream[len(self.layers)][:, -len(answer.read) :]
        check_said(self.layers, final[0], asked, answer)
        values: list[float] = probability(self.layers, final, answer.read).tolist()
        return values

    def find_places(
        self,
        asked: SubjectPrompt,
        together: Sequence[str],
        groups: Sequence[str],
        alone: bool,
        chosen: Sequence[int] = (),
    ) -> tuple[Place, ...]:
        """A prompt's ``groups`` or, ``alone``, each of its tokens, the groups ``together``, and what is chosen."""
        tokens, bos = self.model.token_strings(asked.tokens), self.model.begins(asked.tokens)
        if alone:
            return token_places(tokens, together, asked.subject, bos, chosen)
        return group_places(groups, asked.subject, len(tokens), bos)

    def score_layers(
        self, imposing: Imposing, kind: str, answer: Answer, unchanged: float
    ) -> Float[np.ndarray, " n_layers"]:
        """The answer's mean probability with each layer's window changed; ``unchanged``: where nothing is."""
        layers, replay, positions = self.layers, imposing.replay, imposing.positions
        cells = cells_of(kind, len(layers), self.window)
        if positions[-1] < replay.length - len(answer.read):  # what the last layer writes there, nothing reads
            cells = [cell for cell in cells if cell.start < len(layers) - 1]
        scores = np.full(len(layers), unchanged)
        for chunk in cell_batches(cells, imposing.samples * (replay.length - positions[0]), self.batch_tokens):
            probabilities = probability(layers, imposing.run(chunk), answer.read)
            scores[[cell.layer for cell in chunk]] = probabilities.mean(-1).cpu().numpy()
        return scores

    def score_columns(
        self,
        kinds: Sequence[str],
        places: Sequence[Any],
        impose: Callable[[str, Any], Imposing],
        answer: Answer,
        unchanged: float,
        progress: Callable[[int, int], None],
    ) -> dict[str, np.ndarray]:
        """Each kind's ``[n_layers, places]``, by what is imposed for a kind at a place."""
        scores = {}
        for number, kind in enumerate(kinds):
            columns = []
            for done, place in enumerate(places, start=1):
                columns.append(self.score_layers(impose(kind, place), kind, answer, unchanged))
                progress(number * len(places) + done, len(kinds) * len(places))
            scores[kind] = np.stack(columns, axis=1)
        return scores


def find_question(model: Model, fact: Fact | str, subject: str | None, prepend_bos: bool | None) -> Question:
    """The question about a fact, or of a prompt of the user's; InputError if it cannot be asked."""
    if isinstance(fact, Fact):
        if subject is not None:
            raise InputError(
                f"the fact has a subject, {quoted(fact.subject)}: give a prompt to trace {quoted(subject)}"
            )
        return ask_about(model, fact.prompt, fact.subject, prepend_bos=prepend_bos), fact.name, fact.target_true or None
    if subject is None:
        raise InputError(f"a subject is needed to trace {quoted(fact)}: which of its words to hide")
    check_marked_once(fact, subject)
    asked = (ask_about if "{}" in fact else find_subject)(model, fact, subject, prepend_bos=prepend_bos)
    warn_of_trailing_space(model, asked.text)
    return asked, asked.text, None


def check_said(
    layers: PlainLayers, final: Float[Tensor, "reads d_model"], asked: SubjectPrompt, answer: Answer
) -> None:
    """Raise InputError if another token than the answer's is the likeliest after what reaches the final norm."""
    for token, said in zip(answer.read, layers.logits(final).argmax(-1).tolist(), strict=True):
        if said != token:
            model = layers.model
            other, wanted = model.token_strings([said, token])
            of = f" of {quoted(answer.target_text)}" if answer.whole else ""
            raise InputError(
                f"{model.name} answers {quoted(other)}, not {quoted(wanted)}{of}, to {quoted(asked.text)}: it does not "
                "know this"
            )
