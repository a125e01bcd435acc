"""Addresses: what they ask for as typed values, every mistake one clear line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ffnmem.core.errors import InputError
from ffnmem.explorer.queries import LONGEST, Query, address, told, variant_of


def test_an_address_is_read_back_as_it_was_written() -> None:
    from urllib.parse import parse_qsl

    made = address("/prompt", ("v", "3.17:0"), ("v", "5.97:2"), text=" a&b=c#<é ", at=0, foil=None, off=False)
    query = Query(parse_qsl(made.partition("?")[2]))
    assert query.text("text") == " a&b=c#<é "
    assert query.whole("at", 5, least=0, most=9) == 0
    assert query.variants() == [{(3, 17): 0.0}, {(5, 97): 2.0}]
    assert "foil" not in query
    assert "off" not in query
    assert query.address("/prompt", v=None, at=None) == address("/prompt", text=" a&b=c#<é ")


def test_a_variant_reads_back() -> None:
    assert variant_of(told({(3, 17): 0.0, (5, 97): -1.5})) == {(3, 17): 0.0, (5, 97): -1.5}
    assert variant_of("L3N17") == {(3, 17): 0.0}


@pytest.mark.parametrize(
    ("asks", "said"),
    [
        (lambda q: q.whole("n", 1, least=0, most=9), "n must be a whole number from 0 to 9, not 'x'"),
        (lambda q: q.whole("big", 1, least=0, most=9), "big must be from 0 to 9, not 10"),
        (lambda q: q.whole("thai", 1, least=0, most=9), "thai must be a whole number"),
        (lambda q: q.number("n", 1, least=0, most=9), "n must be a number from 0 to 9, not 'x'"),
        (lambda q: q.number("nan", 1, least=0, most=9), "nan must be a number from 0 to 9"),
        (lambda q: q.choice("n", ("a", "b"), "a"), "n 'x' is unknown: choose 'a' or 'b'"),
        (lambda q: q.neuron("n"), "'x' names no neuron: write LAYER.NEURON"),
        (lambda q: q.variants("n"), "'x' names no neuron"),
        (lambda q: q.variants("twice"), "names neuron 3.17 twice"),
        (lambda q: q.variants("many"), "5 variants are too many: 4 stand side by side"),
        (lambda q: q.variants("far"), "the factor of 3.17 must be a number from -100 to 100"),
        (lambda q: q.needed("absent", what="the text"), "the text is missing"),
        (lambda q: q.text("long"), f"long has {LONGEST + 1:,} characters, and at most {LONGEST:,}"),
        (lambda q: q.text("half"), "has half a character"),
        (lambda q: q.flag("n"), "choose '0' or '1'"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_would_be_right(asks: Callable[[Query], Any], said: str) -> None:
    pairs = [("n", "x"), ("big", "10"), ("thai", "๓"), ("nan", "nan"), ("twice", "3.17:0,L3N17:1"), ("far", "3.17:1e9")]
    query = Query([*pairs, *[("many", "3.17")] * 5, ("long", "x" * (LONGEST + 1)), ("half", "a\ud800")])
    with pytest.raises(InputError) as caught:
        asks(query)
    assert said in str(caught.value)


def test_addresses_have_a_bound() -> None:
    with pytest.raises(InputError, match="65 parameters"):
        Query([("v", "1.1")] * 65)
