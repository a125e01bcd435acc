"""Joining second moments of different text."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from ffnmem.core.errors import InputError
from ffnmem.editing import SecondMoment
from ffnmem.editing.moments import Part, fewest, joined

from ..helpers import allclose, refuses
from .made import made, rows_of

M = rows_of(90)


@pytest.fixture
def three() -> list[SecondMoment]:
    return [made(M[:20], first=0), made(M[20:70], first=20), made(M[70:], first=70)]


def test_merged_is_all_of_it(three: list[SecondMoment]) -> None:
    """Shards would be averaged without their sizes."""
    whole = SecondMoment.merge(three)
    assert whole.count == 90
    assert allclose(whole.matrix(0), M.T @ M / 90, 1e-13)
    assert whole.parts == (Part("c", "text.txt", ((0, 90),)),)
    assert whole.provenance["tokens"] == 90
    assert whole.corpus_hash == "c"


def test_order_does_not_matter(three: list[SecondMoment]) -> None:
    """Two people who merge the same shards would get different edits."""
    first = SecondMoment.merge(three)
    for order in itertools.permutations(three):
        found = SecondMoment.merge(order)
        assert torch.equal(found.matrix(0), first.matrix(0))
        assert (found.parts, found.provenance) == (first.parts, first.provenance)


def test_nesting_changes_rounding_only(three: list[SecondMoment]) -> None:
    """Merging in steps would be something else than merging at once."""
    a, b, c = three
    left, right = (
        SecondMoment.merge([SecondMoment.merge([a, b]), c]),
        SecondMoment.merge([a, SecondMoment.merge([b, c])]),
    )
    assert allclose(left.matrix(0), right.matrix(0), 1e-14)
    assert left.parts == right.parts == SecondMoment.merge(three).parts
    assert left.count == right.count


def test_one_alone_is_itself(three: list[SecondMoment]) -> None:
    """A merge of one would change it, or share its kept factors."""
    alone = SecondMoment.merge(three[:1])
    assert torch.equal(alone.matrix(0), three[0].matrix(0))
    three[0].factor(0)
    assert not alone._kept


def test_sums_are_copied(three: list[SecondMoment]) -> None:
    """Merging would add into the first one's own sums."""
    before = three[0].matrix(0)
    SecondMoment.merge(three)
    assert torch.equal(three[0].matrix(0), before)


def test_different_corpora(three: list[SecondMoment]) -> None:
    """More text from elsewhere could not be added."""
    other = made(M[:20], parts=(Part("a", "more.txt", ((0, 20),)),))
    both = SecondMoment.merge([three[0], other])
    assert both.corpus_hash == "a+c"
    assert both.count == 40
    with refuses(InputError, ValueError, "more.txt", "twice"):
        SecondMoment.merge([both, other])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"fingerprint": "f" * 12}, "fingerprint"),
        ({"tokenizer_hash": "u"}, "tokenizer_hash"),
        ({"context": 64}, "context"),
        ({"prepend_bos": False}, "prepend_bos"),
    ],
)
def test_others_are_refused(three: list[SecondMoment], changes: dict[str, Any], named: str) -> None:
    """Another model's numbers, or text that was cut otherwise, would be mixed in."""
    with refuses(InputError, ValueError, named):
        SecondMoment.merge([three[0], made(M[20:70], first=20, **changes)])


def test_overlaps_are_refused(three: list[SecondMoment]) -> None:
    """Text would count twice."""
    with refuses(InputError, ValueError, "text.txt", "twice"):
        SecondMoment.merge([*three, made(M[60:80], first=60)])
    with refuses(InputError, ValueError, "at least one"):
        SecondMoment.merge([])


def test_ranges_are_joined() -> None:
    """Headers would grow with every merge."""
    assert fewest([(5, 7), (0, 2), (2, 3)]) == ((0, 3), (5, 7))
    parts = [Part("b", "x", ((4, 6),)), Part("a", "y", ((0, 1),)), Part("b", "x", ((0, 4),))]
    assert joined(parts) == (Part("a", "y", ((0, 1),)), Part("b", "x", ((0, 6),)))
