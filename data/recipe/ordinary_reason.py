"""Kinds of ordinary text with small inferences: odd one out, comparisons, reasons."""

from __future__ import annotations

import random
from itertools import pairwise

from ordinary_grammar import a, both, cap, gather, plural, words
from ordinary_stories import couple, people
from ordinary_words import (
    BAKED,
    BUILDINGS,
    CLOTHES,
    COLOURS,
    DEGREES,
    FRUIT,
    JOBS,
    MONTHS,
    OBJECTS,
    ROOMS,
    SMALL_THINGS,
    TOWNS,
    VEGETABLES,
    WEEKDAYS,
)

GROUPS: dict[str, tuple[str, ...]] = {
    "fruit": tuple(FRUIT),
    "vegetable": tuple(v for v in VEGETABLES if v not in ("tomato", "mushroom", "cucumber", "bean", "pepper")),
    "colour": tuple(c for c in COLOURS if c != "orange"),
    "day": tuple(WEEKDAYS),
    "month": tuple(MONTHS),
    "piece of clothing": tuple(CLOTHES),
    "room": ("kitchen", "bedroom", "bathroom", "hall", "cellar", "attic"),
    "piece of furniture": ("chair", "table", "bed", "desk", "sofa", "cupboard"),
    "tool": tuple(o[0] for o in OBJECTS if o[1] == "tool"),
    "job": tuple(JOBS),
    "number": ("two", "five", "seven", "nine", "twelve", "twenty"),
}


def groups(rng: random.Random) -> str:
    """Which word does not belong, and what the others are."""

    def one() -> str:
        kind, wrong_kind = rng.sample(list(GROUPS), 2)
        members = rng.sample(GROUPS[kind], 3)
        wrong = rng.choice(GROUPS[wrong_kind])
        row = [*members, wrong]
        rng.shuffle(row)
        return rng.choice(
            (
                f"{cap(', '.join(row))}: the word that does not belong is {wrong}, because it is "
                f"{a(wrong_kind)} and not {a(kind)}.",
                f"Which of these is not {a(kind)}: {both(row, 'or')}? The answer is {wrong}.",
                f"{cap(both(members))} are {plural(kind)}, but {wrong} is {a(wrong_kind)}.",
            )
        )

    return gather(rng, one, 30, 65, rng.choice((" ", "\n")))


def compare(rng: random.Random) -> str:
    """Comparisons: who is taller than whom, and what follows from it."""
    usable = [
        d
        for d in DEGREES
        if d[0] in ("tall", "short", "old", "young", "fast", "slow", "strong", "happy", "loud", "heavy")
    ]
    adj, more, most, _ = rng.choice(usable)
    less = {
        "tall": "shorter",
        "short": "taller",
        "old": "younger",
        "young": "older",
        "fast": "slower",
        "slow": "faster",
        "strong": "weaker",
        "happy": "sadder",
        "loud": "quieter",
        "heavy": "lighter",
    }[adj]
    order = [p.name for p in people(rng, rng.randint(3, 5))]
    steps = [rng.choice((f"{x} is {more} than {y}.", f"{y} is {less} than {x}.")) for x, y in pairwise(order)]
    rng.shuffle(steps)
    i, j = sorted(rng.sample(range(len(order)), 2))
    tail = rng.sample(
        (
            f"So {order[0]} is {more} than {order[-1]}.",
            f"{order[0]} is the {most} of them all.",
            f"Who is the {most}? {order[0]}.",
            f"Is {order[j]} {more} than {order[i]}? No, {order[i]} is.",
            f"Is {order[i]} {more} than {order[j]}? Yes.",
            f"{order[-1]} is not {more} than anybody else.",
            f"From the {most} to the last one: {', '.join(order)}.",
            f"{order[j]} is not as {adj} as {order[i]}.",
        ),
        rng.randint(3, 5),
    )
    return " ".join(steps + tail)


def reason(rng: random.Random) -> str:
    """If ... then ..., because, so, although: small chains of reasons."""

    def one() -> str:
        p, q = couple(rng)
        place, food = rng.choice(BUILDINGS), rng.choice((*FRUIT, *BAKED))
        job, town, small = rng.choice(JOBS), rng.choice(TOWNS), a(rng.choice(SMALL_THINGS))
        colour, hour = rng.choice(COLOURS), rng.randint(2, 11)
        item, condition, fact, no_fact = rng.choice(
            (
                ("an umbrella", "it rains", "It is raining", "It is not raining"),
                ("a coat", "it is cold", "It is cold today", "It is not cold today"),
                ("a lamp", "it is dark", "It is dark already", "It is not dark yet"),
                ("a book", "the trip is long", "The trip is long", "The trip is not long"),
                ("a hat", "the sun shines", "The sun is shining", "The sun is not shining"),
                ("a basket", "the market is open", "The market is open", "The market is not open"),
            )
        )
        return rng.choice(
            (
                f"If {condition}, {p.name} takes {item}. {fact}, so {p.subj} takes {item}.",
                f"{p.name} takes {item} only if {condition}. {no_fact}, so {p.subj} leaves it at home.",
                f"{q.name} stayed at home, because {q.subj} was ill. That is why {p.name} went to the "
                f"{place} without {q.obj}.",
                f"Although {p.name} was tired, {p.subj} went to the {place}.",
                f"{p.name} was hungry, so {q.name} gave {p.obj} {a(food)}. After that, {p.subj} was not "
                "hungry any more.",
                f"Every {job} in {town} has {small}. {p.name} is {a(job)} in {town}, so {p.subj} has {small}, too.",
                f"Why did {p.name} go to the {place}? Because {p.subj} wanted to meet {q.name}.",
                f"On {rng.choice(WEEKDAYS)}, the {place} was closed. Therefore {q.name} had to come back later.",
                f"Unless {q.name} comes soon, {p.name} will eat the {food} alone.",
                f"{p.name} is either at the {place} or at home. {p.Subj} is not at home, so {p.subj} is "
                f"at the {place}.",
                f"All the things in this box are {colour}. {cap(small)} is in the box, so it is {colour}.",
                f"Both {p.name} and {q.name} like {plural(food)}. Therefore {p.name} likes {plural(food)}.",
                f"{q.name} came before {p.name}. When {p.name} came, {q.name} was already there.",
                f"{p.name} has more {plural(food)} than {q.name}, so {q.name} has fewer than {p.name}.",
                f"The {place} opens at {words(hour)}. It is only {words(hour - 1)}, so {p.name} must wait for an hour.",
                f"The {rng.choice(ROOMS)} was dark. {p.name} turned on the lamp, and then {p.subj} "
                "could see everything.",
            )
        )

    return gather(rng, one, 30, 70)
