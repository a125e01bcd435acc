"""The text around a firing token, and a neuron's histogram for eyes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
import pandas as pd
from jaxtyping import Float32

from ..core.errors import FileError, OutOfRangeError
from ..core.foreign import foreign
from ..core.number_text import decimals
from ..core.sheets import Context, Shade, Shades, join_bins
from ..core.token_text import JOINED, running_texts, token_texts
from ..corpus.batches import Sequences

TOLD = 0.05
"""Of the largest magnitude: a token from here on tells its number, its parts and its position, a weaker one its number
alone. On SmolLM2 that is one in twenty."""

Columns: TypeAlias = Mapping[str, Iterable[Any]] | pd.DataFrame
"""A table of which columns are asked for: of pandas, or plain lists where a frame would cost more than what is done."""

# Texts of tokens and the text around a position, cut from the packed corpus when somebody looks.


@dataclass(frozen=True)
class Window:
    """Tokens around a position: their texts, which of them is the position, and whether text was cut off at an end."""

    tokens: tuple[str, ...]
    at: int
    cut_before: bool
    cut_after: bool

    @property
    def text(self) -> str:
        return "".join(self.tokens)


@dataclass(frozen=True, eq=False)
class Passage:
    """A whole sequence of the corpus, and one neuron's numbers at every token of it.

    Attributes:
        tokens: their texts; BOS is left out.
        first: the position of the first of them.
        coefficients: ``[pos]``, of each.
        gate, linear: ``[pos]``, of a gated neuron the gate's pre-activation and the linear part; else None.
    """

    tokens: tuple[str, ...]
    first: int
    coefficients: Float32[np.ndarray, " pos"]
    gate: Float32[np.ndarray, " pos"] | None = None
    linear: Float32[np.ndarray, " pos"] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        parts = {"gate": self.gate, "linear": self.linear}
        return {
            "position": self.first,
            "tokens": list(self.tokens),
            "coefficients": self.coefficients.tolist(),
            **{name: part.tolist() for name, part in parts.items() if part is not None},
        }

    def shades(self, start: int, end: int, largest: float) -> tuple[Shade, ...]:
        """The tokens from index ``start`` up to ``end``; ``largest`` as the strongest."""
        places = decimals([largest])
        some = self.coefficients[start:end].astype(np.float64)
        strengths = np.nan_to_num(np.minimum(np.abs(some) / (largest or 1.0), 1.0)).round(2)
        return tuple(
            Shade(
                self.tokens[index],
                strength,
                value < 0,
                self.note(index) if strength >= TOLD else f"{value:.{places}f}",
            )
            for index, strength, value in zip(range(start, end), strengths.tolist(), some.tolist(), strict=True)
        )

    def note(self, index: int) -> str:
        """What a pointer on a token tells."""
        gate, linear = (None if part is None else float(part[index]) for part in (self.gate, self.linear))
        return f"{numbers_in_words(float(self.coefficients[index]), gate, linear)}; position {self.first + index}"

    def bounds(self, position: int, window: Window) -> tuple[int, int]:
        """From which index on, and up to which, the window around a position is."""
        start = position - self.first - window.at
        return start, start + len(window.tokens)

    def within(self, position: int, window: Window) -> Float32[np.ndarray, " window"]:
        """The coefficients in the window around a position."""
        start, end = self.bounds(position, window)
        return self.coefficients[start:end]

    def around(self, position: int, window: Window, largest: float) -> Shades:
        """The tokens around a position: those of its window, and the others."""
        at = position - self.first
        start, end = self.bounds(position, window)
        bounds = ((start, at), (at + 1, end), (0, start), (end, len(self.tokens)))
        # Of a character of several tokens the window has all in place of the one that is marked.
        shown = replace(self, tokens=(*self.tokens[:start], *window.tokens, *self.tokens[end:]))
        return Shades(*(shown.shades(*some, largest) for some in bounds))


@dataclass(frozen=True, eq=False)
class Contexts:
    """Decodes tokens of a corpus with the tokenizer that the store keeps."""

    tokenizer: Any
    sequences: Sequences
    _texts: dict[int, str] = field(default_factory=dict, repr=False)  # at most the vocabulary

    @staticmethod
    def read(path: Path, sequences: Sequences) -> Contexts:
        from tokenizers import Tokenizer

        with foreign(FileError, f"{path} cannot be read"):
            tokenizer = Tokenizer.from_file(str(path))
        return Contexts(tokenizer, sequences)

    def strings(self, ids: Iterable[SupportsIndex]) -> list[str]:
        """The text of each token, as :meth:`ffnmem.Model.token_strings` has it."""
        return token_texts(self.tokenizer, ids)

    def kept(self, ids: Sequence[int]) -> list[str]:
        """:meth:`strings`, each different token decoded once."""
        new = sorted({*ids}.difference(self._texts))
        self._texts.update(zip(new, self.strings(new), strict=True))
        return [self._texts[i] for i in ids]

    def running(self, ids: Sequence[int], at: int = -1) -> tuple[str, ...]:
        """The texts of tokens that follow each other, characters of several tokens whole (:func:`running_texts`)."""
        return tuple(running_texts(self.tokenizer, ids, self.kept(ids), at))

    def window(self, sequence: int, position: int, width: int) -> Window:
        """At most ``width`` tokens before a position of a sequence and after it, and that token. BOS is left out."""
        (found,) = self.windows([(sequence, position)], width)
        return found

    def windows(self, places: Iterable[tuple[int, int]], width: int) -> list[Window]:
        """:meth:`window` of many places. A character that the token at a place is part of stands there whole."""
        wanted = list(places)
        cut: list[tuple[list[int], int, int, bool, bool]] = []
        lead = self.sequences.lead
        # Many places are in the same few sequences, of which those in a row are read most quickly.
        read = {sequence: self.sequences.sequence_tokens(sequence) for sequence in sorted({row for row, _ in wanted})}
        for sequence, position in wanted:
            ids = read[sequence]
            if not lead <= position < len(ids):
                raise OutOfRangeError(f"sequence {sequence} has positions {lead} to {len(ids) - 1}, and no {position}")
            first, last = max(lead, position - width), min(len(ids), position + width + 1)
            begin = max(lead, first - JOINED)  # a character may be cut in two
            around = ids[begin : last + JOINED].tolist()
            cut.append((around, position - begin, first - begin, first > lead, last < len(ids)))
        return [
            Window(self.running(around, at)[start : at + width + 1], at - start, *ends)
            for around, at, start, *ends in cut
        ]


@dataclass(frozen=True, kw_only=True)
class Example(Context):
    """One place in the corpus with the text around it. ``strength``: the share of the neuron's largest magnitude, 0 to
    1. ``gate`` and ``linear``: of a gated neuron, its gate's pre-activation and its linear part there."""

    coefficient: float
    sequence: int
    position: int
    gate: float | None = None
    linear: float | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Sequence and position."""
        return self.sequence, self.position

    @property
    def text(self) -> tuple[str, str, str]:
        """Its text: that of several places may be the same."""
        return self.before, self.token, self.after

    @property
    def parts(self) -> tuple[float, ...]:
        """Gate and linear part; nothing of a classic neuron."""
        return () if self.gate is None or self.linear is None else (self.gate, self.linear)


def example_list(
    rows: Columns, windows: Sequence[Window], largest: float, passages: Mapping[int, Passage] | None = None
) -> list[Example]:
    """Rows with the columns coefficient, sequence and position, of gated neurons gate and linear too, each with its
    window; ``largest`` as the strongest. Of the sequences that ``passages`` has, every token is shaded."""
    columns = (rows[name] for name in ("coefficient", "sequence", "position"))
    nothing, found = [None] * len(windows), passages or {}
    parts = (rows.get(name, nothing) for name in ("gate", "linear"))
    return [
        Example(
            coefficient=coefficient,
            strength=round(min(abs(coefficient) / (largest or 1.0), 1.0), 3),
            negative=coefficient < 0,
            before="".join(window.tokens[: window.at]),
            token=window.tokens[window.at],
            after="".join(window.tokens[window.at + 1 :]),
            cut_before=window.cut_before,
            cut_after=window.cut_after,
            note=f"{numbers_in_words(coefficient, gate, linear)}; sequence {sequence}, position {position}",
            shades=None if sequence not in found else found[sequence].around(position, window, largest),
            sequence=sequence,
            position=position,
            gate=gate,
            linear=linear,
        )
        for coefficient, sequence, position, gate, linear, window in zip(*columns, *parts, windows, strict=True)
    ]


def numbers_in_words(coefficient: float, gate: float | None, linear: float | None) -> str:
    """The coefficient at a token, and of a gated neuron its two parts."""
    parts = "" if gate is None or linear is None else f", gate {gate:.4g}, linear part {linear:.4g}"
    return f"coefficient {coefficient:.4g}{parts}"


# A neuron's histogram for eyes: fewer bins, none over zero.


@dataclass(frozen=True)
class Bin:
    """How many tokens had a coefficient from ``low`` up to ``high``."""

    low: float
    high: float
    count: int

    @property
    def density(self) -> float:
        """Tokens per unit of the coefficient, so that wide bins look no fuller than narrow ones."""
        return self.count / (self.high - self.low) if self.high > self.low else 0.0


Counts = tuple[list[float], list[int]]
"""Edges of bins that lie side by side, and the counts between them: one fewer, or none of either."""


def clipped(histogram: Columns, least: float, largest: float) -> Counts:
    """The bins of :meth:`ffnmem.scanning.Store.histogram`, the outer ones as wide as what was seen in them."""
    low, high, counts = (list(histogram[name]) for name in ("low", "high", "count"))
    if not any(counts):
        return [], []
    edges = [*low, high[-1]]
    # A lower edge may be the least value itself; then the bin keeps its width, where it has one.
    if edges[0] < least < edges[1]:
        edges[0] = least
    if edges[-2] < largest < edges[-1]:
        edges[-1] = largest
    first, last = int(not math.isfinite(edges[0])), len(counts) - int(not math.isfinite(edges[-1]))
    return edges[first : last + 1], counts[first:last]


def merged(found: Counts, most: int) -> tuple[Bin, ...]:
    """At most ``most`` (two or more) bins, as :func:`ffnmem.core.sheets.join_bins` joins them."""
    edges, counts = join_bins(*found, most)
    return tuple(Bin(low, high, count) for (low, high), count in zip(pairwise(edges), counts, strict=True))
