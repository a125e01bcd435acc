import pytest

from ffnmem.core.token_text import flowing, pieces, visible


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (" Paris", "·Paris"),
        ("\n\n", "↵↵"),
        ("\t x\r", "⇥·x␍"),
        ("", "∅"),
        ("\x00", "\\x00"),
        ("\u202eabc", "\\u202eabc"),  # a direction override would turn the page's text round
        ("\u200b", "\\u200b"),
        ("\xa0", "\\xa0"),
        ("\ud800", "\\ud800"),
        ("\u0301e", "◌\u0301e"),
        ("é", "é"),
        ("<b>&", "<b>&"),
    ],
)
def test_what_does_not_show_becomes_a_mark(token: str, text: str) -> None:
    assert visible(token) == text


def test_pieces_tell_marks_from_text() -> None:
    assert pieces("  a b") == [("··", True), ("a", False), ("·", True), ("b", False)]
    assert pieces("·") == [("·", False)]  # a true middle dot is text, and so looks different


@pytest.mark.parametrize("limit", [1, 4, 6, 7])
def test_limit_is_kept(limit: int) -> None:
    text = visible(" Paris", limit)
    assert len(text) == min(limit, 6)
    assert text.endswith("…") == (limit < 6)


def test_running_text_keeps_its_spaces() -> None:
    """Context is read as text; only what would not show, or would bend the text, becomes a mark."""
    assert flowing(" a b\n") == [(" a b", False), ("↵", True)]
    assert flowing("\x1b[31m\u202e") == [("\\x1b", True), ("[31m", False), ("\\u202e", True)]
    assert flowing("\u0301") == [("◌\u0301", False)]
    assert flowing("") == []
