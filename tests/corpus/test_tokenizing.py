"""Tokens of texts: the tokenizer's own, with nothing added, wherever a text is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.corpus import Document, tokenizing
from ffnmem.corpus.tokenizing import Encoder, cut, pieces, tokenizer_hash

from ..helpers import BOS, REPOSITORY, build_tokenizer
from .packs import Counting, tokens_of

WORDS = st.text(alphabet="ab \n\tß🙂.", max_size=80)


@pytest.fixture(scope="module")
def real() -> Any:
    return transformers.AutoTokenizer.from_pretrained(REPOSITORY / "data" / "atlas")


def whole(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


def tokens(encoder: Encoder, texts: list[str]) -> list[list[int]]:
    """What the encoder makes of each text."""
    documents = [Document(text, "x", number) for number, text in enumerate(texts)]
    found = [pair for batch in encoder.encode(documents) for pair in batch]
    assert [document for document, _ in found] == documents
    return [ids.tolist() for _, ids in found]


@given(st.lists(WORDS, max_size=8), st.integers(3, 40), st.integers(1, 60))
def test_pieces_and_batches_change_nothing_but_a_token_at_a_forced_cut(
    texts: list[str], limit: int, batch: int
) -> None:
    """Whatever the sizes of pieces and batches, documents come back whole and in order."""
    tokenizer = build_tokenizer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizing, "BATCH", batch)
        patch.setattr(tokenizing, "BATCH_TEXTS", 3)
        found = tokens(Encoder(tokenizer), texts)
    assert [tokenizer.decode(ids) for ids in found] == texts
    assert found == [whole(tokenizer, text) for text in texts]
    for text in texts:
        parts = list(pieces(text, limit))
        assert "".join(part for part, _ in parts) == text
        assert [last for _, last in parts] == [False] * (len(parts) - 1) + [True]
        assert all(0 < len(part) <= limit for part, _ in parts[:-1])


def test_cuts_between_words_keep_every_token(real: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long document would otherwise have other tokens than the model saw at the cuts."""
    text = " ".join(fact.text for fact in fm.load_facts("atlas")[:300])
    parts = [part for part, _ in pieces(text, 500)]
    assert len(parts) > 20
    assert [t for part in parts for t in whole(real, part)] == whole(real, text)


@pytest.mark.parametrize(
    ("text", "start", "stop", "place"),
    [
        ("one two three", 0, 9, 7),
        ("one two three", 0, 7, 7),
        ("one two  three", 0, 9, 3),
        ("one  two", 0, 5, 4),
        ("one\ntwo", 0, 5, 3),
        ("onetwo", 0, 4, 4),
        ("aaaa bbbb cccc", 5, 8, 8),
        (" aaaa", 0, 3, 3),
    ],
)
def test_where_a_text_is_cut(text: str, start: int, stop: int, place: int) -> None:
    """Before a single space between words; else before other whitespace; else anywhere, and never at the start."""
    assert cut(text, start, stop) == place


def test_special_names_are_ordinary_text(tokenizer: Any, real: Any) -> None:
    """The name of a special token in a web page would end the model's document there."""
    for each in (tokenizer, real):
        encoder = Encoder(each)
        (ids,) = encoder.ids([f"The{BOS} city"])
        assert each.bos_token_id not in ids
        assert each.decode(ids) == f"The{BOS} city"
        assert encoder.has_special_text(f"a{BOS}b")
        assert not encoder.has_special_text("a<|b")


def test_the_tokenizer_stays_as_it_is(tokenizer: Any) -> None:
    """Its owner's truncation must not cut documents, nor be switched off for its owner."""
    mine = build_tokenizer()
    mine("x", truncation=True, max_length=2)
    before = mine.backend_tokenizer.to_str()
    (ids,) = Encoder(mine).ids(["a long text"])
    assert len(ids) > 2
    assert mine.backend_tokenizer.to_str() == before
    assert before != tokenizer.backend_tokenizer.to_str()
    assert tokenizer_hash(mine) == tokenizer_hash(tokenizer)


def test_width_follows_the_vocabulary(tokenizer: Any) -> None:
    encoder = Encoder(tokenizer)
    assert encoder.size == max(tokenizer.get_vocab().values()) + 1
    assert encoder.dtype == np.dtype("<u2")
    encoder.size = 65_536
    assert encoder.dtype == np.dtype("<u2")
    encoder.size = 65_537
    assert encoder.dtype == np.dtype("<u4")


def test_a_tokenizer_without_a_fast_one() -> None:
    encoder = Encoder(Counting())
    assert tokens(encoder, ["3", "0", "12"]) == [tokens_of(3), [], tokens_of(12)]


def test_hash_is_of_what_it_does(tiny: fm.Model, tokenizer: Any, tiny_folder: Any, real: Any) -> None:
    """Equal wherever it was read from; different for one token more."""
    read = transformers.AutoTokenizer.from_pretrained(tiny_folder)
    assert tokenizer_hash(tiny) == tokenizer_hash(tokenizer) == tokenizer_hash(read)
    other = build_tokenizer()
    other.add_tokens(["Colosseum"])
    assert len({tokenizer_hash(each) for each in (tokenizer, other, real, Counting())}) == 4
