"""Places of a prompt: its tokens, and groups of positions by where they stand towards the subject."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GROUPS = ("first subject", "middle subject", "last subject", "first subsequent", "further", "last token")
TOGETHER = ("whole subject", "whole prompt")  # what others are part of
PLACES = ("BOS", "before subject", *GROUPS, *TOGETHER)  # what is silenced
VIEWS = ("BOS", "before subject", *GROUPS[:-1], "whole subject", "non-subject", "last token")  # what is blocked
OF_PAPER = ("BOS", "whole subject", "non-subject", "last token")  # what Geva et al. block, and the first token
CHOSEN = "chosen"


@dataclass(frozen=True)
class Place:
    """Positions that are silenced, or blocked, together.

    Attributes:
        name: a token, or one of ``PLACES``, ``VIEWS`` and ``CHOSEN``.
        positions: ascending.
    """

    name: str
    positions: tuple[int, ...]


def positions_by_group(subject: range, length: int) -> dict[str, list[int]]:
    """The positions of each group of a prompt of ``length`` tokens, each in one; those before the subject in none.

    A prompt's last token is that before anything else, and the only token of a subject its last.
    """
    last = length - 1
    inside, after = range(subject.start, min(subject.stop, last)), range(subject.stop, last)
    ends_inside = len(inside) < len(subject)
    before_last = inside if ends_inside else inside[:-1]
    return {
        "first subject": list(before_last[:1]),
        "middle subject": list(before_last[1:]),
        "last subject": [] if ends_inside else [subject[-1]],
        "first subsequent": list(after[:1]),
        "further": list(after[1:]),
        "last token": [last],
    }


def group_places(names: Sequence[str], subject: range, length: int, bos: bool) -> tuple[Place, ...]:
    """Those of some groups, ``PLACES`` or ``VIEWS``, that a prompt has.

    The six groups are a trace's. The whole subject is all of its tokens, the whole prompt all tokens but the
    beginning-of-sequence one; non-subject is every token that is neither of the subject nor the last one nor begins
    the sequence.
    """
    found = {
        "BOS": [0] if bos else [],
        "before subject": list(range(int(bos), subject.start)),
        **positions_by_group(subject, length),
        "whole subject": list(subject),
        "whole prompt": list(range(int(bos), length)),
        "non-subject": [position for position in range(int(bos), length - 1) if position not in subject],
    }
    return tuple(Place(name, tuple(found[name])) for name in names if found[name])


def token_places(
    tokens: Sequence[str], names: Sequence[str], subject: range, bos: bool, chosen: Sequence[int] = ()
) -> tuple[Place, ...]:
    """Each token by itself, some groups, and what is chosen."""
    single = (Place(text, (position,)) for position, text in enumerate(tokens))
    together = group_places(names, subject, len(tokens), bos)
    return (*single, *together, *([Place(CHOSEN, tuple(chosen))] if chosen else ()))
