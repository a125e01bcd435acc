"""Ordinary English text for the training corpus: small documents that state no world facts.

Every kind is a pure function of a random generator. A document may hold single line breaks,
never an empty line, and names only invented towns and common first names.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from ordinary_home import definition, directions, garden, recipe, riddle, room, scene, weather
from ordinary_patterns import (
    alphabet,
    arithmetic,
    calendar,
    clock,
    counting,
    opposites,
    pattern,
    problem,
)
from ordinary_reason import compare, groups, reason
from ordinary_steps import game, instructions, rhyme, routine, rules, shopping, todo
from ordinary_stories import actions, diary, negation, person, story, tenses, where
from ordinary_tables import code, sorting, table
from ordinary_talk import dialogue, letter, news, notice, opinion

# each kind with its share of the documents
_SHARES: tuple[tuple[Callable[[random.Random], str], float], ...] = (
    (story, 12),
    (dialogue, 9),
    (letter, 5),
    (news, 5),
    (diary, 3),
    (actions, 4),
    (where, 4),
    (tenses, 2),
    (negation, 2),
    (person, 3),
    (room, 3),
    (garden, 2),
    (scene, 4),
    (opinion, 3),
    (notice, 2),
    (definition, 4),
    (riddle, 3),
    (groups, 2),
    (compare, 3),
    (reason, 3),
    (recipe, 4),
    (instructions, 2),
    (game, 3),
    (rules, 2),
    (weather, 3),
    (directions, 3),
    (shopping, 2),
    (todo, 2),
    (routine, 3),
    (rhyme, 2),
    (counting, 2),
    (arithmetic, 3),
    (problem, 3),
    (calendar, 3),
    (clock, 2),
    (opposites, 2),
    (pattern, 4),
    (alphabet, 2),
    (sorting, 2),
    (table, 3),
    (code, 2),
)
KINDS: dict[str, Callable[[random.Random], str]] = {kind.__name__: kind for kind, _ in _SHARES}
_KINDS = tuple(kind for kind, _ in _SHARES)
_WEIGHTS = tuple(share for _, share in _SHARES)


def ordinary_document(rng: random.Random) -> str:
    """One short document of a randomly chosen kind."""
    return rng.choices(_KINDS, _WEIGHTS)[0](rng)
