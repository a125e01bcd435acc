"""Kinds of ordinary text with exact patterns: numbers, dates, letters, repetition, tables."""

from __future__ import annotations

import random

from ordinary_grammar import (
    ORDINALS,
    a,
    both,
    cap,
    count,
    gather,
    plural,
    words,
)
from ordinary_stories import couple, people
from ordinary_words import (
    ALPHABET,
    COLOURS,
    DEGREES,
    EDIBLES,
    HOBBIES,
    MONTH_DAYS,
    MONTHS,
    OPPOSITES,
    PLACES,
    SMALL_THINGS,
    WEEKDAYS,
)


def _show(rng: random.Random, numbers: list[int]) -> list[str]:
    return [words(n) for n in numbers] if rng.random() < 0.5 else [str(n) for n in numbers]


def counting(rng: random.Random) -> str:
    """Counting up or down in equal steps, in words or digits."""

    def one() -> str:
        step = rng.choice((1, 1, 1, 2, 2, 3, 4, 5, 5, 10, 10, 20, 100))
        length = rng.randint(6, 12)
        start = rng.choice((0, step, rng.randint(1, 40), rng.randint(1, 9) * step))
        numbers = [start + n * step for n in range(length)]
        down = rng.random() < 0.4
        if down:
            numbers.reverse()
        way = "down" if down else "up"
        shown = _show(rng, numbers)
        row = rng.choice((", ", ", ", " ")).join(shown)
        unit = {1: "one", 2: "twos", 3: "threes", 4: "fours", 5: "fives", 10: "tens", 20: "twenties", 100: "hundreds"}[
            step
        ]
        by = "" if step == 1 else f" by {unit}"
        name = people(rng, 1)[0].name
        return rng.choice(
            (
                f"Count {way}{by}: {row}.",
                f"{name} counts {way}{by} from {shown[0]}: {row}.",
                f"{cap(row)}.",
                f"From {shown[0]} to {shown[-1]}{by}: {row}.",
                f"{', '.join(shown[:-1])} ... What comes next? {cap(shown[-1])}.",
                f"{cap(', '.join(shown[:-1]))}: the next number is {shown[-1]}.",
                f"{cap(shown[0])} is the first number, and {shown[-1]} is the last: {row}.",
            )
        )

    return gather(rng, one, 25, 60, "\n")


def _sum(rng: random.Random, digits: bool) -> str:
    kind = rng.randrange(6)
    show = str if digits else words
    if kind < 2:
        x, y = rng.randint(0, 50), rng.randint(0, 50)
        sign, z = rng.choice((("+", x + y), ("-", x))) if kind else ("+", x + y)
        if sign == "-":
            x = x + y
    elif kind == 2:
        x, y = rng.randint(0, 12), rng.randint(0, 12)
        sign, z = "*", x * y
    elif kind == 3:
        y, z = rng.randint(1, 10), rng.randint(0, 10)
        sign, x = "/", y * z
    elif kind == 4:
        x, y = rng.randint(0, 99), rng.randint(0, 99)
        relation = "more than" if x > y else "less than" if x < y else "the same as"
        return f"{cap(show(x))} is {relation} {show(y)}."
    else:
        x = rng.randint(1, 60)
        return rng.choice(
            (
                f"{cap(show(x))} is an {'odd' if x % 2 else 'even'} number.",
                f"Twice {show(x)} is {show(2 * x)}.",
                f"Half of {show(2 * x)} is {show(x)}.",
                f"The number after {show(x)} is {show(x + 1)}.",
                f"The number before {show(x)} is {show(x - 1)}.",
            )
        )
    if digits:
        return f"{x} {sign} {y} = {z}"
    name = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}[sign]
    if rng.random() < 0.3:
        return f"What is {words(x)} {name} {words(y)}? {cap(words(z))}."
    return f"{cap(words(x))} {name} {words(y)} is {words(z)}."


def arithmetic(rng: random.Random) -> str:
    """Correct little sums in words or digits, or a times table."""
    if rng.random() < 0.2:
        n = rng.randint(2, 12)
        rows = range(1, rng.randint(7, 12))
        if rng.random() < 0.5:
            return "\n".join(f"{k} * {n} = {k * n}" for k in rows)
        return "\n".join(f"{cap(words(k))} times {words(n)} is {words(k * n)}." for k in rows)
    digits = rng.random() < 0.5
    return gather(rng, lambda: _sum(rng, digits), 35, 65, "\n" if digits else " ")


def _problem(rng: random.Random) -> str:
    p, q = couple(rng)
    noun = rng.choice(SMALL_THINGS + list(EDIBLES))
    have = rng.randint(3, 20)
    lines = [f"{p.name} has {count(have, noun)}."]
    given = 0
    for n in range(rng.randint(2, 4)):
        link = ("", "Then ", "After that, ", "Later, ")[n]
        lose = have > 1 and rng.random() < 0.5
        k = rng.randint(1, have - 1 if lose else 10)
        if lose:
            given += k
            have -= k
            step = rng.choice(
                (f"{p.subj} gives {words(k)} of them to {q.name}.", f"{p.subj} hands {words(k)} over to {q.name}.")
            )
        else:
            have += k
            step = rng.choice(
                (
                    f"{p.subj} buys {words(k)} more.",
                    f"{p.subj} finds {words(k)} more.",
                    f"{p.poss} mother brings {words(k)} more.",
                )
            )
        lines.append(cap(link + step))
        if rng.random() < 0.25:
            lines.append(f"That makes {words(have)}.")
    many = plural(noun)
    lines.append(f"How many {many} does {p.name} have now?")
    lines.append(
        rng.choice((f"{cap(p.subj)} has {count(have, noun)}.", f"{cap(words(have))}.", f"The answer is {have}."))
    )
    if rng.random() < 0.6:
        lines.append(f"And how many did {q.name} get? " + (f"{cap(words(given))}." if given else "None at all."))
    return " ".join(lines)


def problem(rng: random.Random) -> str:
    """Stories of giving and getting things, with the right number at the end."""
    return gather(rng, lambda: _problem(rng), 28, 50, "\n")


def _dates(rng: random.Random) -> str:
    month = rng.choice([m for m in range(12) if m != 1])
    day, weekday = rng.randint(20, 30), rng.randrange(7)
    rows = []
    for _ in range(rng.randint(9, 12)):
        rows.append(f"{WEEKDAYS[weekday]}, {day} {MONTHS[month]}")
        day, weekday = day + 1, (weekday + 1) % 7
        if day > MONTH_DAYS[month]:
            day, month = 1, (month + 1) % 12
    return "\n".join(rows)


def _day_fact(rng: random.Random) -> str:
    names, size, unit = rng.choice(((WEEKDAYS, 7, "day"), (MONTHS, 12, "month")))
    at, k = rng.randrange(size), rng.randint(2, 4)
    x, after, before = names[at], names[(at + 1) % size], names[at - 1]
    options = [
        f"After {x} comes {after}.",
        f"Before {x} comes {before}.",
        f"{x} is between {before} and {after}.",
        f"{cap(words(k))} {unit}s after {x} it is {names[(at + k) % size]}.",
        f"{cap(words(k))} {unit}s before {x} it was {names[at - k]}.",
        f"Which {unit} comes after {x}? {after}.",
        f"{x}, {after}, {names[(at + 2) % size]}.",
    ]
    if unit == "day":
        options.append(f"If today is {x}, tomorrow is {after} and yesterday was {before}.")
        options.append(f"{x} is the {ORDINALS[at + 1]} day of the week.")
    else:
        options.append(f"{x} is the {ORDINALS[at + 1]} month of the year.")
        options.append(f"This month is {x}, so next month is {after}.")
    return rng.choice(options)


def calendar(rng: random.Random) -> str:
    """Weekdays, months and dates in order, or a plan for the week."""
    form = rng.random()
    if form < 0.15:
        return _dates(rng)
    if form < 0.35:
        who = people(rng, 1)[0]
        plan = {day: rng.choice(HOBBIES) for day in WEEKDAYS}
        rows = "\n".join(f"{day}: {todo}" for day, todo in plan.items())
        day = rng.choice(WEEKDAYS)
        return f"{who.own} week\n{rows}\nWhat will {who.subj} do on {day}? {cap(plan[day])}."
    if form < 0.5:
        names = rng.choice((WEEKDAYS, MONTHS))
        at = rng.randrange(len(names))
        order = [names[(at + n) % len(names)] for n in range(rng.randint(14, 26))]
        return f"Say them in order: {', '.join(order)}."
    return gather(rng, lambda: _day_fact(rng), 35, 65)


def time_words(minutes: int, digits: bool) -> str:
    """The time of day as "7:05" or "five past seven"."""
    hour, minute = divmod(minutes % 1440, 60)
    if digits:
        return f"{hour}:{minute:02d}"
    this, following = words((hour - 1) % 12 + 1), words(hour % 12 + 1)
    if minute == 0:
        return f"{this} o'clock"
    if minute == 30:
        return f"half past {this}"
    if minute == 15:
        return f"a quarter past {this}"
    if minute == 45:
        return f"a quarter to {following}"
    return f"{words(minute)} past {this}" if minute < 30 else f"{words(60 - minute)} to {following}"


def clock(rng: random.Random) -> str:
    """Times of day and what the time will be later."""

    def one() -> str:
        now = rng.randrange(0, 1440, 5)
        later = rng.choice((5, 10, 15, 30, 60, 120, 180))
        span = f"{words(later)} minutes" if later < 60 else count(later // 60, "hour")
        digits = rng.random() < 0.4
        t, t2, t3 = (time_words(x, digits) for x in (now, now + later, now - later))
        p = people(rng, 1)[0]
        return rng.choice(
            (
                f"It is {t}. In {span} it will be {t2}.",
                f"It is {t}. {cap(span)} ago it was {t3}.",
                f"{time_words(now, True)} is {time_words(now, False)}.",
                f'"What time is it?" "It is {time_words(now, False)}."',
                f"The bus leaves at {t} and arrives {span} later, at {t2}.",
                f"{p.name} came at {t} and stayed for {span}, until {t2}.",
            )
        )

    return gather(rng, one, 30, 65)


def opposites(rng: random.Random) -> str:
    """Opposites and the three forms of adjectives."""

    def one() -> str:
        x, y = rng.choice(OPPOSITES)
        if rng.random() < 0.5:
            x, y = y, x
        adj, more, most, other = rng.choice(DEGREES)
        return rng.choice(
            (
                f"The opposite of {x} is {y}.",
                f"Not {x} but {y}.",
                f"{cap(x)} and {y} are opposites.",
                f"{cap(adj)}, {more}, {most}.",
                f"{cap(x)} - {y}, {adj} - {other}.",
                f"What is the opposite of {adj}? It is {other}.",
                f"This one is {adj}, that one is {more}, and the last one is the {most}.",
                f"{cap(more)} and {most} are forms of {adj}.",
                f"If it is not {adj}, it may be {other}.",
            )
        )

    return gather(rng, one, 30, 60, rng.choice((" ", "\n")))


def pool(rng: random.Random, number: int) -> list[str]:
    """Different short words without any order."""
    return rng.sample(sorted({*SMALL_THINGS, *COLOURS, *PLACES, *EDIBLES}), number)


def pattern(rng: random.Random) -> str:
    """Repetition: cycles, copies, pairs that come back, lists that grow or turn around."""
    kind = rng.randrange(6)
    if kind == 0:
        cycle = pool(rng, rng.randint(2, 7))
        times = rng.randint(35, 65) // len(cycle)
        return rng.choice((" ", ", ")).join(cycle * times) + "."
    if kind == 1:
        keys, values = pool(rng, 6), [rng.choice(SMALL_THINGS + COLOURS) for _ in range(6)]
        pairs = list(zip(keys, values, strict=True))[: rng.randint(3, 6)]
        mark = rng.choice((" -> ", ": ", " = ", " goes with "))
        rows = [p for _ in range(rng.randint(3, 4)) for p in rng.sample(pairs, len(pairs))]
        return rng.choice(("\n", ", ")).join(f"{k}{mark}{v}" for k, v in rows)
    if kind == 2:
        items = [a(w) for w in rng.sample(SMALL_THINGS, rng.randint(5, 7))]
        return "\n".join(f"I packed {both(items[:n])}." for n in range(1, len(items) + 1))
    if kind == 3:
        rows = [pool(rng, rng.randint(3, 6)) for _ in range(rng.randint(3, 4))]
        return "\n".join(f"Forward: {' '.join(r)}. Backward: {' '.join(r[::-1])}." for r in rows)
    if kind == 4:
        rows = [pool(rng, rng.randint(3, 8)) for _ in range(rng.randint(3, 4))]
        return "\n".join(f'Say "{" ".join(r)}" again: "{" ".join(r)}".' for r in rows)
    rows = [pool(rng, 3) for _ in range(rng.randint(7, 12))]
    form = rng.randrange(3)
    if form == 0:
        return "\n".join(f"{x} {y} {x} {y} {z}" for x, y, z in rows)
    if form == 1:
        return "\n".join(f"{x} {x} {y} {y}" for x, y, _ in rows)
    return " ".join(f"One {w}, two {plural(w)}." for w in rng.sample(SMALL_THINGS, 9))


def alphabet(rng: random.Random) -> str:
    """Letters in order, spelling, first and last letters of words."""

    def one() -> str:
        at, size = rng.randrange(1, 20), rng.randint(4, 7)
        row = list(ALPHABET[at : at + size])
        if rng.random() < 0.4:
            row = [x.upper() for x in row]
        word = rng.choice(SMALL_THINGS + COLOURS + list(EDIBLES))
        return rng.choice(
            (
                f"{' '.join(row)}",
                f"{', '.join(row)}: after {row[-2]} comes {row[-1]}.",
                f"The letter before {row[1]} is {row[0]}.",
                f"{'-'.join(word)} spells {word}.",
                f"How do you spell {word}? {', '.join(word.upper())}.",
                f"The word {word} begins with {word[0]} and ends with {word[-1]}.",
                f"{word[0].upper()} is for {word}.",
                f"{word.upper()} is {word} in capital letters.",
                f"The word {word} has {words(len(word))} letters.",
                f"Backwards: {' '.join(row[::-1])}",
            )
        )

    return gather(rng, one, 30, 60, "\n")
