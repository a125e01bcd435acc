"""Token text for eyes: whitespace and control characters become visible marks. Nothing here is escaped for HTML."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from typing import Any, SupportsIndex

MARKS = {" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍"}
EMPTY = "∅"
BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # the name of a token that is one byte
JOINED = 8  # tokens that may make up one character, or such as share bytes
LETTER = "x"


def token_texts(tokenizer: Any, ids: Iterable[SupportsIndex]) -> list[str]:
    """The text of each token as it stands within a text: one that begins a word has its space, whatever its tokenizer
    writes for that.

    A token of one byte shows its name, such as ``<0x41>``, where the byte is no character or another token is the
    character. Of other tokens, bytes that are no character by themselves show as ``�``. A token without text, and an
    id without a token (a row of the embedding behind the vocabulary), shows its id: ``[50280]``.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``, the one inside a fast tokenizer.
    """
    numbers = [int(i) for i in ids]
    names = [tokenizer.id_to_token(i) or "" for i in numbers]
    decoder = tokenizer.decoder
    if decoder is None:
        return [name or f"[{i}]" for i, name in zip(numbers, names, strict=True)]
    if getattr(decoder, "cleanup", False):  # WordPiece's would take the space of "." and not that of words
        decoder = type(decoder)(decoder.prefix, cleanup=False)
    # After a letter: of a text's first token, decoders may drop the space.
    texts = [decoder.decode([LETTER, name])[len(LETTER) :] if name else "" for name in names]
    for at, (name, text) in enumerate(zip(names, texts, strict=True)):
        if BYTE.fullmatch(name) and ("�" in text or tokenizer.token_to_id(text.replace(" ", "▁")) is not None):
            texts[at] = name
    return [text or f"[{i}]" for i, text in zip(numbers, texts, strict=True)]


def running_texts(tokenizer: Any, ids: Sequence[int], texts: Sequence[str], at: int = -1) -> list[str]:
    """The texts of tokens that follow each other, where several make up one character (emoji, accents): all of it in
    place of one of them, the one at ``at`` if it is among them, else the first; the others are empty.

    Args:
        tokenizer: as of :func:`token_texts`. ids, texts: of the tokens, and what that gives for each.
    """
    found, start = list(texts), 0
    if tokenizer.decoder is None or not is_partial("".join(texts)):
        return found
    while start < len(found):
        for end in range(start + 2, min(start + JOINED, len(found)) + 1) if is_partial(found[start]) else ():
            names = [LETTER, *(tokenizer.id_to_token(int(i)) or "" for i in ids[start:end])]
            whole = tokenizer.decoder.decode(names)[len(LETTER) :]
            if "�" not in whole:
                found[start:end] = [""] * (end - start)
                found[at if start <= at < end else start] = whole
                start = end - 1
                break
        start += 1
    return found


def is_partial(text: str) -> bool:
    """Whether some of a text shows that it is only a part of a character."""
    return "�" in text or ("<0x" in text and BYTE.search(text) is not None)


def printable(text: str, keep: str = "") -> str:
    """A text with Python's escapes for all that would not show, or would do something where it is shown: controls,
    which terminals obey, and characters that turn the direction of writing or take no room."""
    if text.isprintable():
        return text
    return "".join(c if c in keep or c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def page_text(text: str) -> str:
    """Text of the user's or of a file for HTML: escaped, and printable but for its spaces and line breaks."""
    return escape(printable(text, keep="\n\t\u00a0\u2009\u202f\u3000"))


def token_id(typed: str) -> int | None:
    """The number of a token that is named by it, ``id:417``; None of any other text."""
    number = re.fullmatch(r"id:(\d{1,18})", typed, re.ASCII)
    return None if number is None else int(number[1])


def pieces(token: str) -> list[tuple[str, bool]]:
    """A token as runs of ``(text, is_mark)``: marks stand for characters that would not show by themselves.

    Spaces, newlines and tabs have signs of their own; anything else unprintable (controls, direction overrides, lone
    surrogates) is written as its Python escape, so that no token can bend the text around it.
    """
    if not token:
        return [(EMPTY, True)]
    if " " not in token and reads_as_it_is(token):
        return [(token, False)]
    return runs(marked_characters(token))


def flowing(text: str) -> list[tuple[str, bool]]:
    """Running text in the same way, but with its spaces as they are; nothing for an empty one."""
    return [(text, False)] if text and reads_as_it_is(text) else runs(marked_characters(text, spaces=False))


def reads_as_it_is(text: str) -> bool:
    """Whether nothing of a text needs a mark, but for its spaces: true of most, and quickly told."""
    return text.isprintable() and not unicodedata.combining(text[0])


def runs(parts: Iterable[tuple[str, bool]]) -> list[tuple[str, bool]]:
    return [("".join(text for text, _ in run), mark) for mark, run in groupby(parts, key=lambda part: part[1])]


def marked_characters(token: str, spaces: bool = True) -> Iterator[tuple[str, bool]]:
    for index, char in enumerate(token):
        if char == " " and not spaces:
            yield char, False
        elif char in MARKS:
            yield MARKS[char], True
        elif not char.isprintable():
            yield char.encode("unicode_escape").decode("ascii"), True
        elif index == 0 and unicodedata.combining(char):
            yield "◌" + char, False  # an accent without its letter would sit on whatever stands before the token
        else:
            yield char, False


def visible(token: str, limit: int | None = None) -> str:
    """A token as one line of text with marks; longer than ``limit`` characters, it ends in an ellipsis."""
    text = "".join(text for text, _ in pieces(token))
    return text if limit is None or len(text) <= limit else text[: max(limit - 1, 0)] + "…"
