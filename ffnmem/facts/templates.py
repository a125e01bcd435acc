"""Templates of facts: where a subject stands in a text, and the text with ``{}`` in its place. Needs no torch."""

from __future__ import annotations

import re

from ..core.errors import InputError, quoted


def places(text: str, subject: str) -> list[int]:
    """Where a subject begins in a text: as a word of its own ("Iran", not "Iranian"), else inside of words."""
    if not subject.strip():
        return []
    found = [match.start() for match in re.finditer(re.escape(subject), text)]
    return alone(text, subject) or found


def only_place(text: str, subject: str) -> int:
    """Where a subject begins in a text that holds it once, as :func:`places` counts.

    Raises: InputError: the subject is empty, not in the text, or there twice.
    """
    if not subject.strip():
        raise InputError("the subject is empty")
    at = places(text, subject)
    if len(at) != 1:
        found = f"stands {len(at)} times" if at else "is not"
        raise InputError(
            f"the subject {quoted(subject)} {found} in {quoted(text)}: it must stand there once, spelled the same"
        )
    return at[0]


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
    template, note = template_of(text, subject)
    if template is None:
        found = places(text.strip(), subject)
        if not found or "{}" in text:
            raise InputError(
                f"the subject {quoted(subject)} does not stand in the prompt {quoted(text)}, spelled the same"
            )
        template = filled(text.strip(), subject, found[-1])
        note = f"the subject stands {len(found)} times in the prompt: its last place is asked about"
    return template, (note,) if note else ()


def templates_of(texts: tuple[str, ...], subject: str, what: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Those of some texts that are templates, and notes about the others; ``what`` they are named in notes."""
    made = [template_of(text, subject) for text in texts]
    notes = tuple(f"{what} {note}" if template is None else note for template, note in made if note)
    return tuple(template for template, _ in made if template is not None), notes
