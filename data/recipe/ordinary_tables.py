"""Kinds of ordinary text that look like data: sorted rows, tables, tiny programs."""

from __future__ import annotations

import random

from ordinary_grammar import cap, gather, nth, words
from ordinary_patterns import pool
from ordinary_stories import people
from ordinary_words import COLOURS, EDIBLES, JOBS, ROOMS, SMALL_THINGS


def sorting(rng: random.Random) -> str:
    """Numbers and words put in order, the largest, the smallest, the first, the last."""

    def one() -> str:
        if rng.random() < 0.5:
            numbers = rng.sample(range(1, 99), rng.randint(3, 6))
            line = ", ".join(map(str, numbers))
            return rng.choice(
                (
                    f"{line} in order: {', '.join(map(str, sorted(numbers)))}.",
                    f"The largest of {line} is {max(numbers)}.",
                    f"The smallest of {line} is {min(numbers)}.",
                    f"{line} from high to low: {', '.join(map(str, sorted(numbers)[::-1]))}.",
                )
            )
        row = pool(rng, rng.randint(3, 5))
        return rng.choice(
            (
                f"{', '.join(row)} from A to Z: {', '.join(sorted(row))}.",
                f'The first word of "{" ".join(row)}" is {row[0]}, and the last one is {row[-1]}.',
                f"There are {words(len(row))} words here: {', '.join(row)}.",
                f'The second word of "{" ".join(row)}" is {row[1]}.',
            )
        )

    return gather(rng, one, 30, 60, "\n")


def table(rng: random.Random) -> str:
    """Records as key: value lines or as a small table, with a question about them."""
    who = people(rng, rng.randint(4, 6))
    fields = {
        "age": lambda: str(rng.randint(6, 80)),
        "job": lambda: rng.choice(JOBS),
        "colour": lambda: rng.choice(COLOURS),
        "room": lambda: rng.choice(ROOMS),
        "seat": lambda: nth(rng.randint(1, 40)),
        "lunch": lambda: rng.choice(EDIBLES),
    }
    keys = rng.sample(sorted(fields), 2)
    rows = [(p, [fields[k]() for k in keys]) for p in who]
    form = rng.randrange(3)
    if form == 0:
        lines = ["name | " + " | ".join(keys)]
        lines += [f"{p.name} | " + " | ".join(v) for p, v in rows]
    elif form == 1:
        lines = ["name," + ",".join(keys)] + [f"{p.name}," + ",".join(v) for p, v in rows]
    else:
        lines = [f"name: {p.name}; {keys[0]}: {v[0]}; {keys[1]}: {v[1]}" for p, v in rows]
    for p, values in rng.sample(rows, 3):
        k = rng.randrange(2)
        lines.append(
            rng.choice(
                (f"What is the {keys[k]} of {p.name}? {cap(values[k])}.", f"The {keys[k]} of {p.name} is {values[k]}.")
            )
        )
    return "\n".join(lines)


def code(rng: random.Random) -> str:
    """Lines of a very small program and what it prints."""
    lines: list[str] = []
    values: dict[str, int] = {}
    for name in rng.sample("abcdnxyz", rng.randint(2, 3)):
        values[name] = rng.randint(0, 20)
        lines.append(f"{name} = {values[name]}")
    for _ in range(rng.randint(3, 6)):
        x, y = rng.choice(list(values)), rng.choice(list(values))
        k, kind = rng.randint(1, 9), rng.randrange(5)
        if kind == 0 and values[x] + values[y] < 100:
            values[x] += values[y]
            lines.append(f"{x} = {x} + {y}")
        elif kind == 1:
            values[x] += k
            lines.append(f"{x} = {x} + {k}")
        elif kind == 2 and values[x] >= k:
            values[x] -= k
            lines.append(f"{x} = {x} - {k}")
        elif kind == 3 and x != y:
            big = "yes" if values[x] > values[y] else "no"
            lines.append(f'if {x} > {y}: print("yes") else: print("no")  # {big}')
        else:
            lines.append(f"print({x})  # {values[x]}")
    word = rng.choice(SMALL_THINGS)
    items = rng.sample(SMALL_THINGS, 3)
    lines.append(
        rng.choice(
            (
                f'print(len("{word}"))  # {len(word)}',
                f"items = [{', '.join(items)}]\nprint(items[0])  # {items[0]}",
                f"for i in 1, 2, 3: print(i * {len(word)})  # {len(word)} {2 * len(word)} {3 * len(word)}",
            )
        )
    )
    shown = rng.choice(list(values))
    return "\n".join([*lines, f"print({shown})  # {values[shown]}"])
