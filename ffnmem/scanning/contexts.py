"""Texts of tokens and the text around a position, cut from the packed corpus when somebody looks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsIndex

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
