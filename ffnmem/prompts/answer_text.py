"""What results say of a prompt and the answer to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.provenance import Provenance
from ..core.sheets import Prompt
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


def words_behind(one: Any, summed: bool = False) -> str:
    """What is said behind a result's number of its answer: that a logit is one before a soft cap. ``summed``: of
    several tokens it is the sum of their logits, and not their log-probability."""
    if one.answer is not None and one.answer.whole and one.foil is None and not summed:
        return ""
    return one.provenance.before_cap
