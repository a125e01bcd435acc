"""How well numbers tell two sets of texts apart, and how well words do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

from ..models.model import Model

Z, STEPS = 1.959964, 60  # of 95%, and of bisection
PRIOR = 0.5  # of each word, in each set


def areas(values: Float[np.ndarray, "... units"], labels: Bool[np.ndarray, "units ..."]) -> Any:
    """The area under the ROC curve, by ranks: the share of pairs of a unit of each set in which the labelled one has
    the larger number, equal ones counting half. Also of many labellings at once."""
    ones = labels.sum(0)
    sums = stats.rankdata(np.asarray(values, np.float32), axis=-1).astype(np.float32) @ labels.astype(np.float32)
    found: Any = (sums - ones * (ones + 1) / 2) / (ones * (len(labels) - ones))
    return found


def interval(area: Any, ones: int, zeros: int) -> tuple[Any, Any]:
    """A 95% interval of areas, which is not empty at 1.

    Source: Newcombe 2006 (Statistics in Medicine 25:559), method 5: the areas from which these are 1.96 of their own
        standard errors away, by Hanley and McNeil's variance with (ones + zeros)/2 − 1 in both terms.
    """
    area, many, ends = np.asarray(area, np.float64), (ones + zeros) / 2 - 1, []
    for end in (0.0, 1.0):
        outside, inside = np.full_like(area, end), area
        for _ in range(STEPS):
            one = (outside + inside) / 2
            spread = one * (1 - one) * (1 + many * (1 - one) / (2 - one) + many * one / (1 + one)) / (ones * zeros)
            out = np.abs(area - one) > Z * np.sqrt(spread)
            outside, inside = np.where(out, one, outside), np.where(out, inside, one)
        ends.append(outside)
    return ends[0], ends[1]


def compare(what: str, scores: Any, labels: np.ndarray, chosen: np.ndarray) -> dict[str, Any]:
    """How well the scores of units tell the sets apart, on the half that was chosen by and on the other."""
    held, own = (
        float(areas(np.asarray(scores)[half], labels[half])) if half.any() else np.nan for half in (~chosen, chosen)
    )
    low, high = interval(held, int(labels[~chosen].sum()), int((~labels[~chosen]).sum()))
    return {"what": what, "auroc": own, "held_out": held, "held_out_low": float(low), "held_out_high": float(high)}


def words_of(model: Model, ids: Sequence[int]) -> list[str]:
    """Tokens without the spaces around them and in small letters; of those that are only space the token itself."""
    return [text.strip().casefold() or text for text in model.token_strings(ids)]


@dataclass(frozen=True, eq=False)
class Words:
    """The words of texts. ``log_odds``: by word, log p(word | concept) − log p(word | others) in the chosen half, each
    counted with a prior of a half; ``unseen``: of a word that it does not have."""

    texts: Sequence[list[str]]
    labels: Bool[np.ndarray, " units"]
    chosen: Bool[np.ndarray, " units"]
    log_odds: dict[str, float]
    unseen: float

    @classmethod
    def of(cls, texts: Sequence[list[str]], labels: np.ndarray, chosen: np.ndarray) -> Words:
        having, without = (
            Counter(word for words, use in zip(texts, chosen & (labels == side), strict=True) if use for word in words)
            for side in (True, False)
        )
        kinds = [*dict.fromkeys([*having, *without])]
        rest = float(np.log((without.total() + PRIOR * len(kinds)) / (having.total() + PRIOR * len(kinds))))
        odds = {word: float(np.log((having[word] + PRIOR) / (without[word] + PRIOR))) + rest for word in kinds}
        return cls(texts, labels, chosen, odds, rest)

    def score(self, words: Sequence[str]) -> float:
        """The mean log-odds of some words."""
        return float(np.mean([self.log_odds.get(word, self.unseen) for word in words])) if words else 0.0

    def shares(self, words: Sequence[str]) -> Float[np.ndarray, "words units"]:
        """How much of each text each word is."""
        rows = {word: at for at, word in enumerate(words)}
        found = np.zeros((len(words), len(self.texts)), np.float32)
        for column, text in enumerate(self.texts):
            for word in text:
                if word in rows:
                    found[rows[word], column] += 1 / len(text)
        return found

    def best(self) -> str:
        """The word whose share of a text tells the chosen half apart best; of equal ones the more frequent."""
        found = self.shares([*self.log_odds])[:, self.chosen]
        told = np.abs(areas(found, self.labels[self.chosen]) - 0.5)
        return [*self.log_odds][int(np.lexsort((-found.sum(1), -told))[0])]
