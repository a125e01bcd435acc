"""Two sets of texts: read, checked, and as tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64

from ..core.errors import InputError, counted, quoted
from ..core.types import Division, TextUnit
from ..corpus.packed import Packed
from ..corpus.sources import open_corpus
from ..models.model import Model

LEAST = 8
"""Texts of each set."""
OPEN, CLOSE = "[[", "]]"
"""What stands around a marked span."""
Sets = tuple[tuple[str, ...], tuple[str, ...]]


def read_sets(
    texts: Any, against: Any, label: str | None, unit: TextUnit, text: str, documents: Division | None
) -> Sets:
    """The texts of a concept, and others, each once. Raises InputError: a set with too few, a text in both, nothing to
    tell them apart by, a text without its span."""
    if (against is None) == (label is None):
        raise InputError(
            "give the texts to compare with (against, --against), or the column that says which are which "
            f"(label, --label){'' if label is None else ': one of both'}"
        )
    if label is None:
        sets: Sets = (tuple(read(texts, text, documents).values()), tuple(read(against, text, documents).values()))
    else:
        sets = by_label(read(texts, text, documents), read(texts, label.partition("=")[0], documents), label)
    mine, others = tuple(dict.fromkeys(sets[0])), tuple(dict.fromkeys(sets[1]))
    for name, some in (("texts", mine), ("texts to compare with", others)):
        if len(some) < LEAST:
            raise InputError(f"there are {len(some) or 'no'} {name}: give {LEAST} different ones or more of each set")
    known = {" ".join(one.split()) for one in mine}
    if both := [one for one in others if " ".join(one.split()) in known]:
        raise InputError(f"{counted(len(both), 'text')} stand in both sets, {quoted(both[0])}: leave them out of one")
    for one in (*mine, *others) if unit == "span" else ():
        if one.count(OPEN) != 1 or not one.partition(OPEN)[2].partition(CLOSE)[0]:
            raise InputError(f"{quoted(one)} has not one span between {OPEN} and {CLOSE}: mark one in every text")
    return mine, others


def read(source: Any, column: str, documents: Division | None) -> dict[tuple[str, int], str]:
    """By place, the texts of a corpus."""
    corpus = open_corpus(source, text=column, documents=documents)
    if isinstance(corpus, Packed):
        raise InputError("a packed corpus has no texts but tokens: give the files that it was made of")
    return {(one.source, one.number): one.text for one in corpus}


def by_label(texts: dict[tuple[str, int], str], values: dict[tuple[str, int], str], label: str) -> Sets:
    """The texts of the records with the value that is named, or with the first of two, and the others."""
    column, _, wanted = label.partition("=")
    kinds = list(dict.fromkeys(values.values()))
    if not wanted and len(kinds) != 2:
        example = f"{column}={kinds[0] if kinds else 'VALUE'}"
        raise InputError(f"{column} has {counted(len(kinds), 'value')}: say which is the concept's, such as {example}")
    pairs = [(values[place] == (wanted or kinds[0]), one) for place, one in texts.items() if place in values]
    return tuple(one for mine, one in pairs if mine), tuple(one for mine, one in pairs if not mine)


def unmarked(text: str, unit: str) -> str:
    """A text without what marks its span."""
    return text.replace(OPEN, "", 1).replace(CLOSE, "", 1) if unit == "span" else text


class TextTokens(NamedTuple):
    """A text's ids; the positions of its unit, and of all its content: no beginning of sequence, no special tokens."""

    ids: list[int]
    unit: Int64[np.ndarray, " some"]
    content: Int64[np.ndarray, " content"]


def tokenise(model: Model, text: str, unit: TextUnit, context: int) -> TextTokens:
    """A text as the model reads it: its first ``context`` tokens, or all of them where the unit is a part of it. Raises
    InputError: no token that counts, or more than the model reads."""
    before, _, rest = text.partition(OPEN) if unit == "span" else ("", "", text)
    span, _, after = rest.partition(CLOSE) if unit == "span" else (rest, "", "")
    own = model.ids_of(before + span + after)
    ids = model.begun(own) if model.prepend_bos else own
    lead = len(ids) - len(own)
    ids = ids[:context] if unit in ("mean", "max") else ids
    if len(ids) > model.n_ctx:
        raise InputError(f"{quoted(text)} has {len(ids)} tokens; {model.name} reads at most {model.n_ctx}")
    content = [at for at, one in enumerate(ids) if one not in model.special_token_ids]
    chosen = content[-1:] if unit == "last" else content
    if unit == "span":
        ends = np.cumsum([len(one) for one in model.token_strings(own)])
        skip = int(ends[-1]) - len(before + span + after)  # a space that the tokenizer puts in front
        low, high = len(before) + skip, len(before) + len(span) + skip
        inside = {at + lead for at, end in enumerate(ends) if end > low and (ends[at - 1] if at else 0) < high}
        chosen = [at for at in content if at in inside]
    if not chosen:
        raise InputError(f"{quoted(text)} has no token that counts")
    return TextTokens(ids, np.array(chosen), np.array(content))
