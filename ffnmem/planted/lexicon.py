"""A vocabulary whose embeddings say how frequent a word is and what letters it has, and text drawn from it.

Every word has a direction of its own. Besides, all share one direction on which log-frequency lies, and one for each
attribute, a split of the words in two by one of their letters. A few directions of the residual stream hold next to
nothing of any word, so that no unembedding row reads what is written there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor

from .skeleton import CONSONANTS, SPECIAL, VOWELS, Room, stems, unit_rows

ATTRIBUTE = 0.022  # of an embedding's square, on the direction of each attribute
FREQUENT = 0.003  # of an embedding's square, on the direction of log-frequency
WAVES, WEAKER = 10, 0.5  # directions kept for positions, and what an embedding has there, against one of its own
FAINT = 0.05  # what an embedding has on an unread direction, against one of its own
FLATTER = 10  # of the Zipf–Mandelbrot law 1/(rank + 10): no word makes up more than some 2% of the text
PLACES = ("1st", "2nd", "3rd", "4th")
SHORTEST = 40  # words of a document; the longest fill the context


@dataclass(frozen=True, eq=False)
class Lexicon:
    """Words, their text and their embeddings. Made by :func:`draw_lexicon`.

    Attributes:
        words: with token ids from ``len(SPECIAL)`` on.
        rows: the text, documents as word numbers. counts: how often each word occurs there.
        splits: by attribute, the letters of the + side, as words. signs: by attribute, +1 or −1 for each word.
        embeddings: of all tokens, special ones too; nearly of length 1. own: the part that each shares with no other.
        attributes, frequency, unread, waves: directions, orthonormal; the last are for positions.
    """

    words: tuple[str, ...]
    rows: tuple[np.ndarray, ...]
    counts: Int64[np.ndarray, " words"]
    splits: tuple[str, ...]
    signs: Float64[np.ndarray, "attributes words"]
    embeddings: Float[Tensor, "vocab d_model"]
    own: Float[Tensor, "vocab d_model"]
    attributes: Float[Tensor, "attributes d_model"]
    frequency: Float[Tensor, " d_model"]
    unread: Float[Tensor, "unread d_model"]
    waves: Float[Tensor, "waves d_model"]

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(" ".join(self.words[i] for i in row) for row in self.rows)


def draw_lexicon(
    rng: np.random.Generator, *, n_words: int, n_tokens: int, d_model: int, unread: int, longest: int
) -> Lexicon:
    """Words, text and embeddings.

    Args:
        rng: draws everything.
        n_words: how many words. n_tokens: about how long the text is.
        d_model: of the embeddings. unread: how many directions hold next to nothing of any word.
        longest: words of a document at most.

    Raises: InputError where ``d_model`` has no room or there are not enough words.
    """
    words = stems(n_words, rng)
    rows = draw_text(rng, n_words, n_tokens, longest)
    counts = np.bincount(np.concatenate(rows), minlength=n_words)
    splits, signs = split_words(words, rng)
    room = Room(d_model, rng)
    attributes, frequency, faint = room.take(len(splits)), room.take(1)[0], room.take(unread)
    waves = room.take(WAVES)
    kept = torch.cat([WEAKER * waves, room.take(len(room.free))])
    vocabulary = len(SPECIAL) + n_words
    own = (1 - ATTRIBUTE * len(splits) - FREQUENT) ** 0.5 * unit_rows(vocabulary, kept, rng)
    rare = np.log1p(np.concatenate([np.zeros(len(SPECIAL)), counts]))
    rare = FREQUENT**0.5 * (rare - rare.mean()) / rare.std()
    sides = np.concatenate([np.zeros((len(splits), len(SPECIAL))), signs], axis=1)
    traces = FAINT * len(kept) ** -0.5 * rng.standard_normal((vocabulary, unread))
    shared = torch.tensor(ATTRIBUTE**0.5 * sides.T) @ attributes + torch.outer(torch.tensor(rare), frequency)
    return Lexicon(
        words=tuple(words),
        rows=tuple(rows),
        counts=counts,
        splits=splits,
        signs=signs,
        embeddings=own + shared + torch.tensor(traces) @ faint,
        own=own,
        attributes=attributes,
        frequency=frequency,
        unread=faint,
        waves=waves,
    )


def draw_text(rng: np.random.Generator, n_words: int, n_tokens: int, longest: int) -> list[np.ndarray]:
    """Documents of ``SHORTEST`` to ``longest`` words, word 0 the most frequent."""
    weight = 1 / (1 + np.arange(n_words) + FLATTER)
    weight /= weight.sum()
    rows = []
    left = n_tokens
    while left > 0:
        length = int(rng.integers(SHORTEST, longest + 1))
        rows.append(rng.choice(n_words, length, p=weight))
        left -= length
    return rows


def split_words(
    words: list[str], rng: np.random.Generator
) -> tuple[tuple[str, ...], Float64[np.ndarray, "attributes words"]]:
    """Four splits of words in two halves: by which consonant or vowel is their 1st, 2nd, 3rd and 4th letter."""
    splits, signs = [], []
    for place, name in enumerate(PLACES):
        letters = CONSONANTS if place % 2 == 0 else VOWELS
        side = sorted(rng.choice(list(letters), len(letters) // 2, replace=False))
        splits.append(f"{name} letter {' '.join(side)}")
        signs.append([1.0 if word[place] in side else -1.0 for word in words])
    return tuple(splits), np.array(signs)


def even_rows(rng: np.random.Generator, n_words: int, rounds: int, longest: int) -> Int[Tensor, "rows pos"]:
    """Token ids, BOS in front, in which every word occurs about ``rounds`` times whatever its frequency in the text."""
    line = np.concatenate([rng.permutation(n_words) for _ in range(rounds)]) + len(SPECIAL)
    line = line[: len(line) // longest * longest].reshape(-1, longest)
    return torch.tensor(np.concatenate([np.zeros((len(line), 1), dtype=np.int64), line], axis=1))
