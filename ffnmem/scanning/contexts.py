"""Texts of tokens and the text around a position, cut from the packed corpus when somebody looks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsIndex

import pandas as pd

from ..core.sheets import Context
from ..corpus import Sequences
from ..errors import FileError, OutOfRangeError
from ..foreign import foreign


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
class Contexts:
    """Decodes tokens of a corpus with the tokenizer that the store keeps."""

    tokenizer: Any
    sequences: Sequences

    @staticmethod
    def read(path: Path, sequences: Sequences) -> Contexts:
        from tokenizers import Tokenizer

        with foreign(FileError, f"{path} cannot be read"):
            tokenizer = Tokenizer.from_file(str(path))
        return Contexts(tokenizer, sequences)

    def strings(self, ids: Iterable[SupportsIndex]) -> list[str]:
        """The text of each token on its own; bytes that are no character by themselves show as ``�``."""
        return list(self.tokenizer.decode_batch([[int(i)] for i in ids], skip_special_tokens=False))

    def window(self, sequence: int, position: int, width: int) -> Window:
        """At most ``width`` tokens before a position of a sequence and after it, and that token. BOS is left out."""
        (found,) = self.windows([(sequence, position)], width)
        return found

    def windows(self, places: Iterable[tuple[int, int]], width: int) -> list[Window]:
        """:meth:`window` of many places, each different token decoded once."""
        cut: list[tuple[list[int], int, bool, bool]] = []
        lead = self.sequences.lead
        for sequence, position in places:
            ids = self.sequences.sequence_tokens(sequence)
            if not lead <= position < len(ids):
                raise OutOfRangeError(f"sequence {sequence} has positions {lead} to {len(ids) - 1}, and no {position}")
            first, last = max(lead, position - width), min(len(ids), position + width + 1)
            cut.append((ids[first:last].tolist(), position - first, first > lead, last < len(ids)))
        different = sorted({i for ids, *_ in cut for i in ids})
        text = dict(zip(different, self.strings(different), strict=True))
        return [Window(tuple(text[i] for i in ids), at, before, after) for ids, at, before, after in cut]


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
    def parts(self) -> tuple[float, ...]:
        """Gate and linear part; nothing of a classic neuron."""
        return () if self.gate is None or self.linear is None else (self.gate, self.linear)


def example_list(rows: pd.DataFrame, windows: Sequence[Window], largest: float) -> list[Example]:
    """Rows with the columns coefficient, sequence and position, of gated neurons gate and linear too, each with its
    window; ``largest`` as the strongest."""
    columns = (rows[name].tolist() for name in ("coefficient", "sequence", "position"))
    nothing = [None] * len(rows)
    parts = (rows[name].tolist() if name in rows.columns else nothing for name in ("gate", "linear"))
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
            note=f"coefficient {coefficient:.4g}; sequence {sequence}, position {position}",
            sequence=sequence,
            position=position,
            gate=gate,
            linear=linear,
        )
        for coefficient, sequence, position, gate, linear, window in zip(*columns, *parts, windows, strict=True)
    ]
