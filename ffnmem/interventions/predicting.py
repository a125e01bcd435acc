"""``changed_predictions``: what a model says next, and how a text goes on, when coefficients are changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, SupportsIndex

import pandas as pd
import torch

from ..core.errors import InputError
from ..core.provenance import Provenance
from ..core.sheets import Prompt
from ..core.types import Count, Positive, Seed, checked
from ..models.answers import generate as continue_text
from ..models.model import Model
from ..prompts.captures import Capture
from ..prompts.captures import capture as capture_prompt
from ..show.result import Result
from .changes import NeuronChanges
from .intervening import intervene

SHOWN = 40  # tokens whose probabilities are told


@checked
@dataclass(frozen=True, eq=False, repr=False)
class ChangedPredictions(Result):
    """What a model says next as it is and with changed coefficients. Made by
    :func:`ffnmem.interventions.changed_predictions`.

    Attributes:
        predictions: one row a token, those likeliest before or after: token, token_id, probability_before,
            probability_after, change (after minus before), rank_before, rank_after, logit_before, logit_after.
        changed: what was changed, in words.
        tokens: the prompt's; position: where the next token is read off; starts_with_bos: whether the first of them is
            the beginning of sequence.
        continued: the ids that follow the prompt, before and after; empty where it was not continued.
        model: which one; None of what was loaded without it.
    """

    heading = "prompt changed"
    tables: ClassVar = {"predictions": "token probability> change rank> | logit>", "continuations": "run text"}

    predictions: pd.DataFrame
    changed: str
    tokens: tuple[str, ...]
    position: int
    starts_with_bos: bool
    continued: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    provenance: Provenance
    model: Model | None = None

    @property
    def prompt(self) -> Prompt:
        """The prompt, and the token after which the next one is read."""
        return Prompt(self.tokens, self.position, self.starts_with_bos)

    @property
    def continuations(self) -> pd.DataFrame | None:
        """How the text goes on, as it is and with the changes."""
        columns = {"run": ("before", "after"), "text": self.texts, "token_ids": [list(ids) for ids in self.continued]}
        return pd.DataFrame(columns) if self.continued else None


@checked
def changed_predictions(
    capture: Capture,
    changes: NeuronChanges,
    *,
    at: Iterable[SupportsIndex] | None = None,
    position: SupportsIndex = -1,
    generate: Count | None = None,
    temperature: Positive | None = None,
    seed: Seed | None = None,
    prompt: SupportsIndex | None = None,
) -> ChangedPredictions:
    """What a model says when coefficients are changed.

    Changes coefficients of neurons and says what the model says next, before and after. What a model knows of a subject
    depends on many neurons: of one that is set to 0 little shows. The first example removes all of layer 0 at the
    subject.

    Args:
        capture: of the prompt, as the model is.
        changes: what to change, as :func:`ffnmem.intervene` takes it, of one prompt.
        at: change neurons at these positions of the prompt only; -1 is the last. [default: at every position, and at
            every token generated]
        position: where the next token is read off: 0 is the first token, -1 the last.
        generate: also continue the prompt by so many tokens, both ways.
        temperature: sample the continuations with this temperature. [default: the likeliest token each time]
        seed: of the sampling.
        prompt: which one, of a capture of several.

    Returns: A :class:`ChangedPredictions`: ``.predictions``, ``.continuations``.

    Raises: as :func:`ffnmem.intervene`; InputError: a temperature without
        ``generate``, a seed without a temperature.

    Example:
        $ ffnmem intervene "The Eiffel Tower is located in the city of" \\
            0.all=0 --at 2 --at 3
        $ ffnmem intervene "The capital of France is" \\
            0.895=x-2 1.594=x-2 4.163+=3 --at 4
        $ ffnmem intervene "The capital of France is" 1.all=0 --generate 8
    """
    if generate is None and (temperature is not None or seed is not None):
        raise InputError("a temperature and a seed are of what is generated: say how many tokens, or leave them out")
    if temperature is None and seed is not None:
        raise InputError("a seed goes with a temperature: without it nothing is drawn")
    model, row = capture.model, capture.row(prompt)
    tokens = capture.tokens[row, : capture.length(prompt)]
    with intervene(model, changes, positions=None if at is None else list(at)):
        after = capture_prompt(model, tokens)
        continued = [continue_both(model, tokens.tolist(), generate, temperature, seed)]
    continued.insert(0, continue_both(model, tokens.tolist(), generate, temperature, seed))
    ids = tuple(map(tuple, continued)) if generate else ()
    place = capture.position(position, prompt)
    return ChangedPredictions(
        predictions=compare_predictions(capture, after, place, SHOWN, prompt),
        changed=dict(after.provenance.settings)["interventions"],
        tokens=tuple(capture.token_strings(row)),
        position=place,
        starts_with_bos=capture.starts_with_bos,
        continued=ids,
        texts=tuple(model.tokenizer.decode(list(one)) for one in ids),
        provenance=after.provenance,
        model=model,
    )


def continue_both(
    model: Model, tokens: list[int], new: int | None, temperature: float | None, seed: int | None
) -> list[int]:
    """How a text goes on; nothing where it is not to."""
    return [] if new is None else continue_text(model, tokens, new, temperature=temperature, seed=seed or 0)


def compare_predictions(
    before: Capture, after: Capture, position: int, k: int, prompt: SupportsIndex | None = None
) -> pd.DataFrame:
    """The tokens likeliest before or after, with their probabilities, ranks and logits in both: see
    :class:`ChangedPredictions`; by falling larger probability, ties by id. ``before``, ``after``: of one prompt."""
    ends = before.logits_at(before.row(prompt), position), after.logits_at(0, position)
    logits = torch.stack([one.double() for one in ends])
    chances = logits.softmax(-1)
    ranks = logits.argsort(descending=True, stable=True).argsort() + 1
    ids = chances.amax(0).argsort(descending=True, stable=True)[:k]
    numbers: Mapping[str, torch.Tensor] = {
        "probability_before": chances[0],
        "probability_after": chances[1],
        "change": chances[1] - chances[0],
        "rank_before": ranks[0],
        "rank_after": ranks[1],
        "logit_before": logits[0],
        "logit_after": logits[1],
    }
    columns = {name: values[ids].tolist() for name, values in numbers.items()}
    return pd.DataFrame({"token": before.model.token_strings(ids), "token_id": ids.tolist(), **columns})
