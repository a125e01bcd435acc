"""From texts to token ids: a tokenizer without special tokens, in batches, in flat memory."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt

from .readers import Document

PIECE = 1 << 18  # characters tokenised as one text
BATCH = 1 << 19  # characters tokenised in one call, which takes up to 1 kB a token
BATCH_TEXTS = 1000


class Encoder:
    """A tokenizer as a corpus needs it: nothing added, nothing cut off, the names of special tokens ordinary text.

    Args:
        tokenizer: a Hugging Face tokenizer. A fast one is copied, so that its own settings stay as they are.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.fast = fast_copy(tokenizer)
        self.size = 1 + max(tokenizer.get_vocab().values())
        """One more than the highest token id."""
        names = sorted(map(str, tokenizer.all_special_tokens), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, names))) if names else None

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint16 where every id fits, else uint32; little endian."""
        return np.dtype("<u2" if self.size <= 1 << 16 else "<u4")

    def has_special_text(self, text: str) -> bool:
        """Whether the name of a special token stands in a text."""
        return self._special is not None and self._special.search(text) is not None

    def ids(self, texts: list[str]) -> list[list[int]]:
        """The token ids of each text."""
        if self.fast is not None:
            return [encoding.ids for encoding in self.fast.encode_batch_fast(texts, add_special_tokens=False)]
        return list(self.tokenizer(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"])

    def encode(self, documents: Iterable[Document]) -> Iterator[list[tuple[Document, UInt[np.ndarray, " tokens"]]]]:
        """A stream of documents with their tokens, some at a time."""
        batch: list[tuple[Document, str, bool]] = []
        begun: list[UInt[np.ndarray, " tokens"]] = []  # of the document whose last piece is to come

        def finish() -> list[tuple[Document, UInt[np.ndarray, " tokens"]]]:
            found = []
            for (document, _, last), ids in zip(batch, self.ids([piece for _, piece, _ in batch]), strict=True):
                begun.append(np.array(ids, self.dtype))
                if last:
                    found.append((document, np.concatenate(begun)))
                    begun.clear()
            batch.clear()
            return found

        size = 0
        for document in documents:
            for piece, last in pieces(document.text):
                batch.append((document, piece, last))
                size += len(piece)
                if size >= BATCH or len(batch) >= BATCH_TEXTS:
                    yield finish()
                    size = 0
        if batch:
            yield finish()


def fast_copy(tokenizer: Any) -> Any:
    """The Rust tokenizer inside, copied, without truncation and padding, special names split; None if there is none."""
    if not getattr(tokenizer, "is_fast", False):
        return None
    from tokenizers import Tokenizer

    copy = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    copy.encode_special_tokens = True
    return copy


def tokenizer_hash(model: Any) -> str:
    """32 hexadecimal digits of what decides which tokens a text becomes. Equal for equal tokenizers, wherever they
    were read from and whichever class wraps them.

    Args:
        model: a :class:`ffnmem.Model`, or a Hugging Face tokenizer.
    """
    tokenizer = getattr(model, "tokenizer", model)
    digest = hashlib.blake2b(digest_size=16)
    if getattr(tokenizer, "is_fast", False):
        state = json.loads(tokenizer.backend_tokenizer.to_str())
        # What calls change in passing, and what only adds special tokens or turns ids back into text.
        for part in ("truncation", "padding", "post_processor", "decoder"):
            state.pop(part, None)
        digest.update(json.dumps(state, sort_keys=True).encode())
        return digest.hexdigest()
    digest.update(type(tokenizer).__name__.encode())
    with tempfile.TemporaryDirectory() as folder:
        for name in sorted(tokenizer.save_vocabulary(folder)):
            digest.update(Path(name).read_bytes())
    digest.update(json.dumps(sorted(tokenizer.get_added_vocab().items())).encode())
    return digest.hexdigest()


def pieces(text: str, limit: int = PIECE) -> Iterator[tuple[str, bool]]:
    """A text in pieces of at most ``limit`` characters, and whether each is its last.

    A cut falls before a single space between two words if there is one, where byte-level tokenizers begin a new token
    anyway; else before other whitespace; else anywhere, which may split one token. A tokenizer that puts a space of
    its own in front of every text does so for every piece.
    """
    start = 0
    while len(text) - start > limit:
        end = cut(text, start, start + limit)
        yield text[start:end], False
        start = end
    yield text[start:], True


CUTS = [re.compile(pattern) for pattern in (r"(?<!\s) (?!\s)", " ", r"\n")]
"""Where a text is best cut, the best first."""


def cut(text: str, start: int, stop: int) -> int:
    """The best place in ``(start, stop]`` to cut a text that goes on after ``stop``."""
    for pattern in CUTS:
        places = [found.start() for found in pattern.finditer(text, start + 1, stop + 2) if found.start() <= stop]
        if places:
            return places[-1]
    return stop
