"""Templates of facts: where a subject stands in a text, and the text with ``{}`` in its place. Needs no torch."""

from __future__ import annotations

import re
import unicodedata

from ..core.errors import InputError, listed, quoted

ALIKE = {
    "’": "'", "‘": "'", "ʼ": "'", "′": "'", "“": '"', "”": '"', "‐": "-", "‑": "-", "–": "-", "—": "-",
    "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u3000": " ",
}  # fmt: skip
"""Characters that are not the same, and are easily taken for each other."""


def places(text: str, subject: str) -> list[int]:
    """Where a subject begins in a text: as a word of its own ("Iran", not "Iranian"), else inside of words."""
    if not subject.strip():
        return []
    found = [match.start() for match in re.finditer(re.escape(subject), text)]
    return alone(text, subject) or found


def as_spelled(text: str, subject: str) -> str:
    """A subject as a text spells it: composed or decomposed, where the text has the canonical equivalent only."""
    wanted = unicodedata.normalize("NFD", subject)
    if subject in text or wanted not in unicodedata.normalize("NFD", text):
        return subject
    for begin in range(len(text)):
        for end in range(begin + 1, min(begin + len(wanted), len(text)) + 1):
            if unicodedata.normalize("NFD", text[begin:end]) == wanted:
                return text[begin:end]
    return subject


def only_place(text: str, subject: str) -> tuple[int, int]:
    """Where a subject begins in a text that holds it once, as :func:`places` counts, and where it ends. Canonical
    equivalents count as the same.

    Raises: InputError: the subject is empty, not in the text, or there twice.
    """
    if not subject.strip():
        raise InputError("the subject is empty")
    spelled = as_spelled(text, subject)
    at = places(text, spelled)
    if len(at) != 1:
        found = f"stands {len(at)} times" if at else "is not"
        raise InputError(
            f"the subject {quoted(subject)} {found} in {quoted(text)}: it must stand there once, spelled the same"
            + ("" if at else difference(text, subject))
        )
    return at[0], at[0] + len(spelled)


def difference(text: str, subject: str) -> str:
    """How a text spells a subject that it does not hold, as the end of a message; empty where nothing is alike."""

    def plain(words: str) -> str:  # as many characters
        return "".join(ALIKE.get(c, c.lower() if len(c.lower()) == 1 else c) for c in words)

    own = unicodedata.normalize("NFC", subject)
    other = unicodedata.normalize("NFC", text)
    at = plain(other).find(plain(own))
    pairs = dict.fromkeys((a, b) for a, b in zip(other[at : at + len(own)], own, strict=False) if a != b)
    if at < 0 or not pairs:
        return ""
    shown = [f"{quoted(a)} (U+{ord(a):04X}) for {quoted(b)} (U+{ord(b):04X})" for a, b in pairs]
    return f"; the text has {listed(shown, 3)}"


def check_marked_once(text: str, subject: str) -> None:
    """Raise InputError for a prompt that has ``{}`` in place of its subject, and the subject besides."""
    if "{}" in text and subject.strip() and mentions(text, as_spelled(text, subject)):
        raise InputError(
            f"both {{}} and the subject {quoted(subject)} stand in {quoted(text)}: where the subject stands is not "
            "clear; leave one of them out"
        )


def mentions(text: str, subject: str) -> bool:
    """Whether a text has a subject as a word of its own."""
    return bool(alone(text, subject))


def alone(text: str, subject: str) -> list[int]:
    """Where a subject begins in a text as a word of its own."""
    return [match.start() for match in re.finditer(rf"(?<!\w){re.escape(subject)}(?!\w)", text)]


def filled(text: str, subject: str, at: int) -> str:
    """A text with ``{}`` in place of the subject that begins at a character."""
    return text[:at] + "{}" + text[at + len(subject) :]


def template_of(text: str, subject: str) -> tuple[str | None, str]:
    """A text as a template, and what is to be noted about it: (None, why) for one that is none.

    A text that holds one ``{}`` already is a template. Spaces at the ends of a text go.
    """
    plain = text.strip()
    note = "" if plain == text else f"spaces at the ends of {text!r} removed"
    if plain.count("{}") == 1:
        return plain, note
    found = places(plain, subject)
    if len(found) != 1:
        many = "not" if not found else f"{len(found)} times"
        return None, f"left out, the subject is {many} in it: {text!r}"
    template = filled(plain, subject, found[0])
    if template.count("{}") != 1:
        return None, f"left out, it holds {{}} besides the subject: {text!r}"
    return template, note


def prompt_template(text: str, subject: str) -> tuple[str, tuple[str, ...]]:
    """A prompt as a template, and notes: where the subject stands in it twice, its last place is taken.

    Raises: InputError: the subject is not in the prompt.
    """
    spelled = as_spelled(text, subject)
    template, note = template_of(text, spelled)
    if template is None:
        found = places(text.strip(), spelled)
        if not found or "{}" in text:
            raise InputError(
                f"the subject {quoted(subject)} does not stand in the prompt {quoted(text)}, spelled the same"
                + difference(text, subject)
            )
        template = filled(text.strip(), spelled, found[-1])
        note = f"the subject stands {len(found)} times in the prompt: its last place is asked about"
    other = "" if spelled == subject else "the prompt spells the subject with other, equivalent characters"
    return template, tuple(filter(None, (note, other)))


def templates_of(texts: tuple[str, ...], subject: str, what: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Those of some texts that are templates, and notes about the others; ``what`` they are named in notes."""
    made = [template_of(text, subject) for text in texts]
    notes = tuple(f"{what} {note}" if template is None else note for template, note in made if note)
    return tuple(template for template, _ in made if template is not None), notes
