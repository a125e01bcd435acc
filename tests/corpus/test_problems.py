"""Values become documents or counted problems, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffnmem.corpus import Document, Problem
from ffnmem.corpus.readers import MEANINGS, Problems, clean, decoded, problems_from


@pytest.mark.parametrize(
    ("raw", "text", "kinds"),
    [
        ("plain", "plain", []),
        ("zwei – deux 🙂", "zwei – deux 🙂", []),
        (b"zwei \xe2\x80\x93", "zwei –", []),
        (b"bad \xff byte", "bad � byte", ["invalid_utf8"]),
        ("half \ud83d a pair", "half � a pair", ["invalid_utf8"]),
        ("two halves \ud83d\ude42", "two halves 🙂", ["invalid_utf8"]),
        ("nul \0", "nul \0", ["nul"]),
        (b"\0\xff", "\0�", ["invalid_utf8", "nul"]),
        ("", None, ["empty"]),
        (" \n\u3000", None, ["empty"]),
        (None, None, ["missing_text"]),
        (3.5, None, ["not_text"]),
        (["a"], None, ["not_text"]),
    ],
    ids=repr,
)
def test_clean(raw: Any, text: str | None, kinds: list[str]) -> None:
    """Every kind of value is kept, mended or skipped as MEANINGS says, and counted once."""
    problems = Problems()
    found = clean(raw, "file.txt", 7, problems)
    assert found == (None if text is None else Document(text, "file.txt", 7))
    assert problems.table() == tuple(Problem(kind, 1, "file.txt:7") for kind in kinds)


@given(st.one_of(st.binary(), st.text(st.characters())))
def test_what_is_decoded_can_be_encoded(raw: str | bytes) -> None:
    """A tokenizer takes no half surrogates; valid text must stay as it is."""
    text, valid = decoded(raw)
    assert valid == (text.encode() == (raw if isinstance(raw, bytes) else raw.encode("utf-8", "surrogatepass")))


def test_counts_and_first_places() -> None:
    problems = Problems([Problem("nul", 2, "a:1")])
    problems.add("nul", "b", 5)
    problems.add("skipped_file", "x.pdf")
    problems.add("empty", "b", 2)
    problems.add("empty", "b", 3)
    table = problems.table()
    assert table == (Problem("nul", 3, "a:1"), Problem("empty", 2, "b:2"), Problem("skipped_file", 1, "x.pdf"))
    assert problems_from([p.record() for p in table]) == table
    assert all(p.meaning == MEANINGS[p.kind] for p in table)


def test_an_unknown_kind_is_a_mistake_of_ours() -> None:
    with pytest.raises(KeyError, match="surprise"):
        Problems().add("surprise", "x")
