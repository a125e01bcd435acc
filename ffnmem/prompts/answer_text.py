"""What results say of a prompt and the answer to it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.errors import quoted
from ..core.number_text import format_probability
from ..core.provenance import Provenance
from ..core.sheets import Content, Prompt, place, token
from ..facts.answers import Answer
from ..models.model import Model
from ..show.result import Result


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AnswerResult(Result):
    """A result about one answer to a prompt.

    Attributes:
        tokens: the prompt's tokens, and those of the answer, up to ``position``; later ones cannot reach it.
        starts_with_bos: whether the first of them is the beginning of sequence.
        position: the last one that is read.
        target, foil: as they stand in the text; no foil is None.
        answer: which tokens answer the prompt.
        model: which one was asked; None of what was loaded without it.
    """

    heading = "prompt after target foil logit"

    tokens: tuple[str, ...]
    starts_with_bos: bool
    position: int
    target: str
    foil: str | None
    answer: Answer
    provenance: Provenance
    model: Model | None = None

    if TYPE_CHECKING:
        logit: Any

    @property
    def prompt(self) -> Prompt:
        """The prompt's tokens, where the answer is read."""
        return answered_prompt(self)

    @property
    def after(self) -> str | None:
        """The token at which the answer is read, where that is not the last one."""
        return self.tokens[self.position] if self.position < len(self.tokens) - 1 else None

    @property
    def quantity(self) -> str:
        """What its number of the answer is: the log-probability of an answer of several tokens without a foil, or the
        logit."""
        return "log_probability" if self.answer.whole and self.foil is None else "logit"

    @property
    def logit_words(self) -> str:
        """What is said behind its logit: of what it is a sum, and that it is one before a soft cap."""
        summed = self.answer.whole and self.foil is None
        return f", the sum over its {len(self.answer.target)} tokens" * summed + self.provenance.before_cap

    @property
    def none_kept(self) -> Any:
        """Its number of the answer where no firing is kept, of those results that have one."""
        return getattr(self, "without", None)

    @property
    def log_probability(self) -> float:
        """What ``logit`` is of an answer of several tokens."""
        return self.logit

    @property
    def target_id(self) -> int:
        """The id of the target's token that is read at ``position``."""
        return self.answer.read[-1]

    @property
    def foil_id(self) -> int | None:
        """The foil's, read there too."""
        return self.answer.foil_id


def answered_prompt(one: Any) -> Prompt:
    """The tokens of a result's prompt, and where its answer is read, or begins to be."""
    answer: Answer | None = one.answer
    whole = answer is not None and answer.whole
    tokens = one.tokens[: len(answer.prompt)] if answer is not None and whole else one.tokens
    bos = getattr(one, "starts_with_bos", one.provenance.prepend_bos is True)
    return Prompt(tokens, len(tokens) - 1 if whole else one.position, bos)


def describe_answer(one: Any, summed: bool = False) -> dict[str, Content | None]:
    """The prompt and the answer of a result, at the head of its sheet. ``summed``: logits of several tokens are.

    Args:
        one: an :class:`AnswerResult` or an attribution of one position; with a ``logit`` where it has one.
    """
    answer: Answer | None = one.answer
    whole = answer is not None and answer.whole
    tokens = one.tokens[: len(answer.prompt)] if answer is not None and whole else one.tokens
    position = len(tokens) - 1 if whole else one.position
    quantity, how = name_quantity(one, summed)
    foil, logit = one.foil, getattr(one, "logit", None)
    if foil is not None:
        parting = ""
        if answer is not None and answer.parting:  # target and foil begin alike
            parting = f", after {quoted(''.join(one.tokens[len(answer.prompt) : one.position + 1]))}"
        how = f", the target’s minus the foil’s{parting}{how}"
    elif answer is not None and whole:
        count = len(answer.target)
        chance = "" if summed or logit is None else format_probability(math.exp(logit))
        how = f", the sum over its {count} tokens{how}" if summed else f" of its {count} tokens, {chance}"
    return {
        "prompt": Prompt(tokens, position, getattr(one, "starts_with_bos", one.provenance.prepend_bos is True)),
        "after": None if position == len(tokens) - 1 else place(tokens, position),
        "target": token(one.target, "strong"),
        "foil": None if foil is None else token(foil, "strong"),
        quantity: None if logit is None else f"{logit:.3f}{how}",
    }


def name_quantity(one: Any, summed: bool = False) -> tuple[str, str]:
    """What a result's number of its answer is, and what is said behind it: that a logit is one before a soft cap."""
    if one.answer is not None and one.answer.whole and one.foil is None and not summed:
        return "log-probability", ""
    return "logit", one.provenance.before_cap
