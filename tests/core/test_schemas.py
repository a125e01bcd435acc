"""Checks of JSON: what fits passes, and what does not is named with its place, its value and what would be right."""

from __future__ import annotations

from typing import Any

import pytest

from ffnmem.core import schemas
from ffnmem.core.schemas import DEEPEST, Check, Misfit, check_plain


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (schemas.flag, [True, False], [0, 1, None, "true"]),
        (schemas.whole(1), [1, 7], [0, -1, True, 1.0, "1", None, 10**30]),
        (schemas.whole(0, 3), [0, 3], [4, -1]),
        (schemas.number(), [0, -1.5, 3], [float("nan"), float("inf"), True, "1", None, 10**400]),
        (schemas.number(0), [0.0], [-1e-9]),
        (schemas.text(), ["", "a\nb"], [None, 3, ["a"]]),
        (schemas.word, ["c0de", "2.1.0+cpu"], ["", "a b", "a\n", "x" * 129, "é", None]),
        (schemas.hexadecimal(4), ["0a9f"], ["0A9F", "0a9", "0a9f\n", 3]),
        (schemas.one_of("a", 1), ["a", 1], ["b", True, 1.0, None]),
        (schemas.maybe(schemas.flag), [None, True], [0]),
        (schemas.items(schemas.flag, least=1), [[True]], [[], [1], None, {"0": True}]),
        (schemas.ascending(schemas.whole()), [[0], [1, 5]], [[], [1, 1], [2, 1], ["a"]]),
        (schemas.row(schemas.whole(), schemas.text()), [[1, "a"]], [[1], ["a", 1], [1, "a", 2], None]),
        (schemas.table(schemas.text("a+"), schemas.flag), [{}, {"aa": True}], [{"b": True}, {"a": 1}, []]),
        (
            schemas.fields({"a": schemas.flag}, {"b": schemas.flag}),
            [{"a": True}, {"a": True, "c": 3}],
            [{}, {"a": 1}, 3],
        ),
        (schemas.fields({"a": schemas.flag}, closed=True), [{"a": True}], [{"a": True, "c": 3}]),
        (schemas.rule(bool, "something"), [[1]], [[]]),
        (schemas.together(schemas.whole(), schemas.rule(bool, "above 0")), [1], [0, "a"]),
        (schemas.anything, [None, [], 3], []),
    ],
)
def test_what_fits_and_what_does_not(check: Check, good: list[Any], bad: list[Any]) -> None:
    """A manifest with the wrong thing in it would end in another library's traceback, or in wrong numbers."""
    for value in good:
        check(value)
    for value in bad:
        with pytest.raises(Misfit):
            check(value)


def test_a_misfit_says_where_what_and_what_would_be_right() -> None:
    """A message that does not name the field leaves its reader to guess among hundreds."""
    check = schemas.fields({"files": schemas.table(schemas.text(), schemas.items(schemas.whole(1)))})
    with pytest.raises(Misfit) as caught:
        check({"files": {"a": [3, "x" * 1000 + "\n"]}})
    message = str(caught.value)
    assert message.startswith("files.a.1 is 'xxx")
    assert message.endswith("…, and must be a whole number of at least 1")
    assert len(message) < 200
    assert "\n" not in message
    with pytest.raises(Misfit, match=r"^files is missing$"):
        check({})


def nested(levels: int) -> Any:
    value: Any = 3
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def test_only_what_our_own_programs_write_is_plain() -> None:
    """A thousand levels end in a RecursionError far from the file, half a character where a message is printed."""
    check_plain(nested(DEEPEST))
    check_plain("é\U0001f600")
    for value in (nested(DEEPEST + 1), nested(900), {"a": ["\ud800"]}, {"\udfff": 1}):
        with pytest.raises(Misfit) as caught:
            check_plain(value)
        str(caught.value).encode()
