import math

import pytest

from ffnmem.show.notebook import (
    percent,
    plain,
    probability,
    provenance_line,
    running_html,
    setting,
    signed,
    tiny,
    token_html,
)


def test_token_html_escapes_text_and_marks_whitespace() -> None:
    assert token_html(" <b>") == '<span class="fm-mark">·</span>&lt;b&gt;'
    assert token_html("\"&'") == "&#34;&amp;&#39;"
    assert token_html("\n") == '<span class="fm-mark">↵</span>'


def test_running_html_escapes_and_keeps_spaces() -> None:
    assert running_html(" <b> x") == " &lt;b&gt; x"
    assert running_html("\n") == '<span class="fm-mark">↵</span>'


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.234, "+1.23"), (-1.236, "−1.24"), (0.0, "0.00"), (-0.001, "0.00"), (0.001, "0.00"), (math.nan, "–")],
)
def test_signed_shows_the_sign_of_what_is_not_zero(value: float, text: str) -> None:
    assert signed(value) == text


def test_plain_and_percent() -> None:
    assert plain(12.5, 3) == "12.500"
    assert plain(-0.25, 1) == "−0.2"
    assert percent(0.126, 1) == "12.6%"
    assert percent(-0.5) == "−50%"
    assert percent(math.nan) == percent(math.inf) == "–"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.95123, "95.1%"),
        (0.0021, "0.2%"),
        (0.0019, "0.19%"),
        (0.0014, "0.14%"),
        (0.001, "0.1%"),
        (0.00054, "0.054%"),
        (0.00012, "0.012%"),
        (0.0000003, "3.0e−5%"),
        (0.000000092, "9.2e−6%"),  # never a share beside percents
        (0.0, "0.0%"),
        (0.99999, "> 99.9%"),
        (1.0, "100.0%"),
    ],
)
def test_probability_never_rounds_to_nothing_or_to_certainty(value: float, text: str) -> None:
    assert probability(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(1.23e-7, "1.2e−7"), (4e-12, "4.0e−12"), (2.5, "2.5"), (12.0, "1.2e1"), (0.0, "0")]
)
def test_tiny(value: float, text: str) -> None:
    assert tiny(value) == text


def test_provenance_in_words() -> None:
    assert provenance_line({"model": "atlas", "prepend_bos": True}) == "model atlas · prepend_bos yes"
    assert [setting(value) for value in (False, None, 3)] == ["no", "–", "3"]
