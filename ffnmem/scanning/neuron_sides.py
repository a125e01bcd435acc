"""The two sides of a neuron: what it fires at with coefficients of one sign, and what it then writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.number_text import decimals, format_number
from ..core.sheets import Content, Fitting, Line, Span, Style, token
from ..core.types import COEFFICIENT_SIGNS, CoefficientSign
from .contexts import Window

POSITIVE, NEGATIVE = COEFFICIENT_SIGNS
WEAK = 0.25
"""Of a neuron's largest magnitude: a side whose coefficients stay below is near 0, and no side."""
STRONG = 0.5
"""Of the side's largest coefficient: from here on an example counts for what it fires at."""
NAMED, LISTED = 3, 8  # tokens in the sentence, and beside their names

Scores = Sequence[tuple[str, float]]
Counts = tuple[tuple[str, int], ...]


def weak_sign(stats: Mapping[str, Any], gated: bool) -> str:
    """The sign of which a neuron's coefficients stay near 0, if there is one: mostly the negative where the activation
    is GELU. Of a classic neuron never the positive, with which it fires.

    ``stats``: its row of :meth:`Store.stats`.
    """
    low, high = -float(stats["min"]), float(stats["max"])
    if not low > WEAK * high:  # of one that is 0 everywhere, too, or that no token was routed to
        return NEGATIVE
    return POSITIVE if gated and high < WEAK * low else ""


def side_signs(stats: Mapping[str, Any], gated: bool) -> tuple[CoefficientSign, ...]:
    """The signs of a neuron's sides, the stronger first: of a gated neuron one or both, without a weak one; of a
    classic neuron the positive."""
    if not gated:
        return (POSITIVE,)
    order: tuple[CoefficientSign, ...] = (POSITIVE, NEGATIVE) if stats["max"] >= -stats["min"] else (NEGATIVE, POSITIVE)
    return tuple(sign for sign in order if sign != weak_sign(stats, gated))


@dataclass(frozen=True, eq=False)
class NeuronSide:
    """What a neuron does with coefficients of one sign.

    Attributes:
        sign: "positive" or "negative".
        extreme: the coefficient furthest from 0; 0 if it never had the sign.
        promotes, suppresses: the tokens that it then writes towards and against most, with their scores: those of its
            value, or of minus its value where the coefficient is negative.
        examples: how many of those that were read have the sign and at least half of ``extreme``.
        preceded_by, fires_at, followed_by: the tokens before, at and after these, with their numbers, most first.
        excited_by: the frequent tokens with its furthest mean coefficients of the sign: token, mean, occurrences.
        meanings: its :class:`ffnmem.neurons.Meanings` of the sign, where they are kept beside the store.
    """

    sign: str
    extreme: float
    promotes: Scores
    suppresses: Scores
    examples: int
    preceded_by: Counts
    fires_at: Counts
    followed_by: Counts
    excited_by: Sequence[tuple[str, float, int]]
    meanings: Any

    @property
    def title(self) -> str:
        """Which side it is, and how far it reaches."""
        return f"{self.sign} side, to {format_number(self.extreme, decimals([self.extreme], 3))}"

    @property
    def verdict(self) -> str:
        """One meaning or several, or why that is unclear; empty where it was not measured."""
        if self.meanings is None:
            return ""
        return f"{self.meanings.label} ({self.meanings.why})" if self.meanings.why else str(self.meanings.label)

    @property
    def sentence(self) -> Line:
        """In a clause: what it fires at, after and before what, which frequent tokens excite it, what it writes, its
        verdict; nothing if it never had the sign."""
        if not self.extreme:
            return ()
        parts: list[Span] = []

        def add(words: str, texts: Iterable[str], style: Style = "marked", behind: str = "; ") -> None:
            shown = [piece for text in texts for piece in (Span(" "), token(text, style, 24))]
            if shown:
                parts.extend((Span(f"{behind if parts else ''}{words}"), *shown))

        add("fires most strongly at", [text for text, _ in self.fires_at[:NAMED]])
        # A token beside half of them or more may say what the tokens that it fires at do not.
        for words, counts in (("after", self.preceded_by), ("before", self.followed_by)):
            add(words, [text for text, count in counts[:1] if 2 * count >= self.examples > 1], behind=", ")
        known = {text for text, _ in self.fires_at[:NAMED]}
        exciting = [text for text, mean, _ in self.excited_by if mean * self.extreme > 0 and text not in known]
        add("excited by", exciting[:NAMED])
        add("promotes", [text for text, _ in self.promotes[:NAMED]], "adds")
        return (*parts, Span(f"; {self.verdict}")) if self.verdict else tuple(parts)

    def facts(self) -> dict[str, Content]:
        """Its tokens beside their names, of what there is."""
        written = {text.strip().casefold() for text, _ in self.promotes}
        found = {
            "fires at": counted_tokens(self.fires_at),
            "preceded by": counted_tokens(self.preceded_by),
            "followed by": counted_tokens(self.followed_by, written),
            "excited by": means(self.excited_by, decimals([self.extreme]), token=True, limit=24),
            "promotes": scored(self.promotes, "adds"),
            "suppresses": scored(self.suppresses, "takes"),
        }
        return {name: fitting for name, fitting in found.items() if fitting.pieces}


def scored(scores: Scores, style: Style) -> Fitting:
    """Tokens, each with its score for a pointer."""
    return Fitting(tuple((token(text, style, note=f"score {score:+.3f}"),) for text, score in scores))


def counted_tokens(counts: Counts, written: Collection[str] = ()) -> Fitting:
    """Tokens with their numbers; those ``written`` stand out."""
    return Fitting(
        tuple(
            (token(text, "adds" if text.strip().casefold() in written else "", 24), Span(f" {count}", "soft"))
            for text, count in counts[:LISTED]
        )
    )


def means(rows: Iterable[tuple[str, float, int]], places: int, *, whole: bool = False, **looks: Any) -> Fitting:
    """Tokens, or positions, with the mean coefficient there."""
    return Fitting(
        tuple(
            (
                Span(str(text), note=f"{count:,} times", **looks),
                Span(f" {format_number(mean, places, sign=True)}", "soft"),
            )
            for text, mean, count in rows
        ),
        whole,
    )


def count_tokens(windows: Collection[Window], step: int) -> Counts:
    """The tokens ``step`` places from where windows are, with their numbers, most first."""
    places = [(window.tokens, window.at + step) for window in windows]
    return tuple(Counter(tokens[at] for tokens, at in places if 0 <= at < len(tokens)).most_common())
