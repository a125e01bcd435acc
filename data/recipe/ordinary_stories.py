"""Kinds of ordinary text about people: stories, moves, talk, letters, diaries."""

from __future__ import annotations

import random

import ordinary_plots as plots
from ordinary_grammar import (
    Noun,
    Person,
    a,
    both,
    cap,
    count,
    ing,
    nth,
    participle,
    past,
    plural,
    tell,
    third,
    words,
)
from ordinary_words import (
    BAKED,
    CHORES,
    CLOTHES,
    COLOURS,
    DAYTIMES,
    EDIBLES,
    FEELINGS,
    FRUIT,
    FURNITURE,
    HE_KIN,
    HOBBIES,
    JOBS,
    JOYS,
    MEN,
    MONTHS,
    PLACES,
    QUALITIES,
    ROOMS,
    SHE_KIN,
    SIMPLE_VERBS,
    SIZES,
    SKILLS,
    SMALL_THINGS,
    SPOTS,
    STREETS,
    TOWNS,
    WEEKDAYS,
    WOMEN,
)

GOOD = ("happy", "proud", "calm", "excited", "glad")
BAD = ("sad", "worried", "angry", "nervous", "unhappy")
WEATHER = ("warm", "cold", "sunny", "rainy", "windy", "cloudy", "grey", "bright", "cool")


def make_person(name: str) -> Person:
    """The person with this first name."""
    if name in WOMEN:
        return Person(name, "she", "her", "her", "herself")
    return Person(name, "he", "him", "his", "himself")


def people(rng: random.Random, number: int) -> list[Person]:
    """Different people of either gender."""
    return [make_person(name) for name in rng.sample(WOMEN + MEN, number)]


def couple(rng: random.Random) -> tuple[Person, Person]:
    """A woman and a man in random order, so that their pronouns never clash."""
    pair = [make_person(rng.choice(WOMEN)), make_person(rng.choice(MEN))]
    rng.shuffle(pair)
    return pair[0], pair[1]


def group(members: list[Person]) -> Person:
    """Several people taken together as "they"."""
    return Person(both([m.name for m in members]), "they", "them", "their", "themselves", True)


def kin(rng: random.Random, person: Person) -> str:
    """What this person may be to another one."""
    return rng.choice(SHE_KIN if person.subj == "she" else HE_KIN)


def thing(rng: random.Random, adjectives: float = 0.5) -> Noun:
    """A small thing, sometimes with a size, a quality or a colour."""
    parts = [rng.choice(SMALL_THINGS)]
    if rng.random() < adjectives:
        parts.insert(0, rng.choice(COLOURS))
    if rng.random() < adjectives / 2:
        parts.insert(0, rng.choice(SIZES + QUALITIES))
    return Noun(" ".join(parts))


def when(rng: random.Random, daytime: str, weather: str) -> str:
    """A point in past time, in lower case."""
    return rng.choice(
        (
            f"on {rng.choice(WEEKDAYS)} {daytime}",
            f"one {daytime}",
            f"one {weather} {daytime}",
            f"last {rng.choice(WEEKDAYS)}",
            f"one day in {rng.choice(MONTHS)}",
            f"on a {weather} day",
            "one day",
        )
    )


def story(rng: random.Random) -> str:
    """A short story in the past tense from one of the plots."""
    p, q = couple(rng)
    small, other = rng.sample(SMALL_THINGS, 2)
    spot, spot2, spot3 = rng.sample(SPOTS, 3)
    room, room2 = rng.sample(ROOMS, 2)
    have, missing, half = rng.randint(3, 30), rng.randint(2, 20), rng.randint(2, 8)
    daytime, weather = rng.choice(DAYTIMES), rng.choice(WEATHER)
    colour = rng.choice(COLOURS)
    plot = (plots.OPENINGS, *rng.choice(plots.PLOTS), plots.ENDINGS)
    return tell(
        rng,
        plot,
        p=p,
        q=q,
        rel=kin(rng, q),
        kin=rng.choice(SHE_KIN + HE_KIN),
        when=when(rng, daytime, weather),
        morning=when(rng, "morning", weather),
        weather=weather,
        daytime=daytime,
        age=words(rng.randint(7, 60)),
        thing=Noun(small),
        other=Noun(other),
        spot=spot,
        spot2=spot2,
        spot3=spot3,
        room=room,
        room2=room2,
        place=rng.choice(PLACES),
        trip=rng.choice(("park", "lake", "beach", "farm", "playground")),
        job=rng.choice(JOBS),
        joy=rng.choice(JOYS),
        good=rng.choice(GOOD),
        bad=rng.choice(BAD),
        furniture=rng.choice(FURNITURE),
        brittle=Noun(rng.choice(("cup", "plate", "bowl", "jar", "bottle", "lamp", "mirror"))),
        number=words(rng.randint(3, 12)),
        food=Noun(rng.choice(EDIBLES)),
        baked=Noun(rng.choice(("cake", "pie", "cookie", "biscuit", "roll"))),
        colour=colour,
        a_colour=a(colour),
        clothing=rng.choice(CLOTHES),
        minutes=words(rng.randint(2, 9) * 5),
        hour=words(rng.randint(7, 11)),
        street=rng.choice(STREETS),
        skill=rng.choice(SKILLS),
        town=rng.choice(TOWNS),
        meal=rng.choice(("breakfast", "lunch", "school", "dinner")),
        have=have,
        missing=missing,
        price=have + missing,
        half=words(half),
        weekday=rng.choice(WEEKDAYS),
        count_food=count(2 * half, rng.choice(EDIBLES)),
        prize=thing(rng),
    )


def _move(rng: random.Random, place: dict[str, str], held: dict[str, str]) -> str:
    """One step of somebody in the house; the state in `place` and `held` changes with it."""
    name = rng.choice(list(place))
    carried = [item for item, holder in held.items() if holder == name]
    free = [item for item, holder in held.items() if holder == place[name]]
    if free and rng.random() < 0.6:
        item = rng.choice(free)
        held[item] = name
        return f"{name} {rng.choice(('picked up', 'took', 'got'))} the {item}."
    if carried and rng.random() < 0.35:
        held[carried[0]] = place[name]
        return rng.choice((f"{name} put down the {carried[0]}.", f"{name} left the {carried[0]} there."))
    place[name] = rng.choice([room for room in ROOMS if room != place[name]])
    verb = rng.choice(("went", "walked", "moved", "ran"))
    load = f" with the {carried[0]}" if carried and rng.random() < 0.4 else ""
    return f"{name} {verb} to the {place[name]}{load}."


def where(rng: random.Random) -> str:
    """People carry things from room to room; questions ask where everything ended up."""
    who = people(rng, rng.randint(1, 3))
    place = {p.name: rng.choice(ROOMS) for p in who}
    items = rng.sample(SMALL_THINGS, rng.randint(1, 2))
    held = {item: rng.choice(list(place.values())) for item in items}
    lines = [f"{p.name} was in the {place[p.name]}." for p in who]
    lines += [f"The {item} was in the {room}." for item, room in held.items()]
    last = ""
    for _ in range(rng.randint(4, 8)):
        name, _, rest = _move(rng, place, held).partition(" ")
        same = name == last and rng.random() < 0.6
        lines.append(f"{make_person(name).Subj if same else name} {rest}")
        last = name
    for item in items:
        holder = held[item]
        kept = f"{holder} has it, in the {place[holder]}." if holder in place else f"It is in the {holder}."
        lines.append(f"Where is the {item} now? {kept}")
    asked = rng.choice(who)
    lines.append(f"Where is {asked.name}? {asked.Subj} is in the {place[asked.name]}.")
    return " ".join(lines)


def actions(rng: random.Random) -> str:
    """What somebody does with one thing, or several, with it/them references."""
    p = rng.choice((people(rng, 1)[0], group(people(rng, 2))))
    single = rng.random() < 0.5
    noun = thing(rng, 0.7)
    it, is_, that = ("it", "was", "this") if single else ("them", "were", "these")
    they = "it" if single else "they"
    item = noun.a if single else f"{words(rng.randint(2, 9))} {noun.pl}"
    rooms = rng.sample(ROOMS, 2)
    spot, spot2 = rng.sample(SPOTS, 2)
    state = rng.choice(
        (
            f"dirty, so {p.subj} washed {it} with warm water",
            f"not new, but {p.subj} liked {it}",
            f"wet, so {p.subj} dried {it} with a towel",
            "covered with paper",
            f"heavy, so {p.subj} carried {it} with both hands",
            f"hidden {spot}",
            "almost new",
        )
    )
    steps = rng.sample(
        (
            f"carried {it} to the {rooms[1]}",
            f"put {it} {spot2}",
            f"hid {it} in an old suitcase",
            f"showed {it} to a friend",
            f"looked at {it} for a long time",
            f"dropped {it} by mistake",
            f"wrapped {it} in paper",
            f"took a photo of {it}",
            f"asked a neighbour about {it}",
        ),
        3,
    )
    if rng.random() < 0.4:
        steps.append(f"gave {it} to {rng.choice(('a neighbour', 'a friend', 'the teacher'))}")
    links = rng.sample(("Then", "After that,", "Later", "Next", "A little later,"), len(steps))
    thing_ = noun.word if single else noun.pl
    return " ".join(
        (
            f"{cap(p.name)} found {item} in the {rooms[0]}.",
            f"{cap(they)} {is_} {state}.",
            *(f"{link} {p.subj} {step}." for link, step in zip(links, steps, strict=True)),
            rng.choice(
                (
                    f'"Whose {thing_} {"is" if single else "are"} {that}?" {p.subj} asked, but nobody knew.',
                    f"Nobody else had seen {it}.",
                    f"In the evening, {p.subj} {p.was} tired, but {p.subj} did not forget {it}.",
                    f"What did {p.name} find? {cap(item)}.",
                    f"Where {is_} {they} at first? In the {rooms[0]}.",
                )
            ),
        )
    )


def tenses(rng: random.Random) -> str:
    """The same action yesterday, today and tomorrow, or the forms of several verbs."""
    if rng.random() < 0.3:
        verbs = rng.sample(SIMPLE_VERBS, rng.randint(6, 9))
        return "\n".join(f"{v}, {third(v)}, {past(v)}, {participle(v)}, {ing(v)}" for v in verbs)
    lines = []
    for _ in range(rng.randint(2, 3)):
        p = rng.choice((people(rng, 1)[0], group(people(rng, 2))))
        base = rng.choice(CHORES + HOBBIES)
        options = [
            f"Today {p.name} {p.verb(base)}.",
            f"Yesterday {p.subj} {past(base)}, too.",
            f"Tomorrow {p.subj} will {base} again.",
            f"Now {p.subj} {p.is_} {ing(base)}.",
            f"{p.Subj} {p.has} {participle(base)} many times.",
            f"Last week {p.subj} did not {base}.",
            f"{p.Subj} {p.does} not always {base}.",
            f"Every {rng.choice(WEEKDAYS)} {p.subj} {p.verb(base)}.",
            f"{p.Subj} would like to {base} more often.",
        ]
        first = options.pop(0)
        lines.append(" ".join([first, *rng.sample(options, rng.randint(2, 4))]))
    return " ".join(lines)


def diary(rng: random.Random) -> str:
    """A diary page in the first person."""
    friend = people(rng, 1)[0]
    chore, chore2, chore3 = rng.sample(CHORES, 3)
    feeling = rng.choice(FEELINGS)
    day = rng.randrange(7)
    head = rng.choice(
        (
            f"{WEEKDAYS[day]}, {rng.randint(1, 28)} {rng.choice(MONTHS)}",
            "Dear diary,",
            f"{nth(rng.randint(1, 28))} {rng.choice(MONTHS)}:",
        )
    )
    body = tell(
        rng,
        (
            ("today I got up at {hour} o'clock.", "today was a {weather} day.", "I am {feeling}."),
            (
                "first I had to {chore}, and after that I had to {chore2}.",
                "I {chore_past} before breakfast.",
                "I did not {chore}, because I was too tired.",
            ),
            (
                "in the {daytime} I met {f.name} at the {place}.",
                "{f.name} came to see me, and we sat in the {room}.",
                "I called {f.name} on the phone.",
            ),
            (
                "{f.Subj} told me that {f.subj} had found {thing.a}.",
                "{f.Subj} likes to {hobby}, and so do I.",
                "{f.Subj} was {feeling2}, I think.",
            ),
            ("we talked for {number} hours.", "that evening I ate {food.pl} and drank tea.", ""),
            (
                "tomorrow is {tomorrow}, and I will {chore3} at last.",
                "I hope that tomorrow will be better.",
                "now it is late, and I must sleep.",
                "tomorrow I will stay at home.",
            ),
        ),
        f=friend,
        hour=words(rng.randint(5, 10)),
        weather=rng.choice(WEATHER),
        feeling=feeling,
        feeling2=rng.choice(FEELINGS),
        chore=chore,
        chore2=chore2,
        chore3=chore3,
        chore_past=past(chore),
        daytime=rng.choice(DAYTIMES),
        place=rng.choice(PLACES),
        room=rng.choice(("kitchen", "garden", "living room")),
        thing=thing(rng),
        hobby=rng.choice(HOBBIES),
        number=words(rng.randint(2, 5)),
        food=Noun(rng.choice(BAKED + FRUIT)),
        tomorrow=WEEKDAYS[(day + 1) % 7],
    )
    return f"{head}\n{body}"


def person(rng: random.Random) -> str:
    """A description of one person."""
    p = people(rng, 1)[0]
    hair = rng.choice(("short", "long", "curly", "straight", "dark", "light brown", "grey"))
    eyes = rng.choice(("brown", "blue", "green", "grey", "dark"))
    h1, h2, h3 = rng.sample(HOBBIES, 3)
    age = rng.randint(6, 80)
    adult = age > 22
    work = f"works as {a(rng.choice(JOBS))}" if adult else "goes to school"
    lines = [
        f"{p.name} is {words(age)} years old and {work}.",
        f"{p.Subj} has {hair} hair and {eyes} eyes.",
        f"{p.Subj} usually wears {a(rng.choice(COLOURS) + ' ' + rng.choice(CLOTHES))} and {rng.choice(COLOURS)} shoes.",
        f"{p.Subj} likes {ing(h1)} and {ing(h2)}, but {p.subj} does not like {ing(h3)}.",
        f"{p.Subj} lives on {rng.choice(STREETS)} with {p.poss} {kin(rng, people(rng, 1)[0])}.",
        f"{p.Poss} friends say that {p.subj} is {rng.choice(FEELINGS)} most of the time.",
        f"In {p.poss} bag there is always {thing(rng).a}.",
        f"{p.own} favourite colour is {rng.choice(COLOURS)}.",
        f"{p.Subj} can {rng.choice(SKILLS)}, but {p.subj} cannot drive a bus.",
    ]
    return " ".join([lines[0], *rng.sample(lines[1:], rng.randint(3, 6))])


def negation(rng: random.Random) -> str:
    """Who has, likes and does what, and what not."""
    p, q = couple(rng)
    t, t2, t3 = rng.sample(SMALL_THINGS, 3)
    f, f2 = (plural(x) for x in rng.sample(EDIBLES, 2))
    c, c2, c3 = rng.sample(COLOURS, 3)
    chore = rng.choice(CHORES)
    place, place2 = rng.sample(PLACES, 2)
    lines = [
        f"{p.name} has {a(t)}, but {p.subj} does not have {a(t2)}.",
        f"{q.name} does not have {a(t)}. {q.Subj} has {a(t2)}.",
        f"Neither {p.name} nor {q.name} has {a(t3)}.",
        f"{p.name} likes {f}, but {p.subj} does not like {f2}.",
        f"{q.name} does not eat {f}. {q.Subj} eats only {f2}.",
        f"The {t} is not {c}. It is {c2}.",
        f"These {plural(t2)} are not {c3}, and they are not {c} either.",
        f"{p.name} did not {chore}, so {q.name} had to do it.",
        f"{p.name} never goes to the {place}; {p.subj} always goes to the {place2}.",
        f"Nobody was in the {rng.choice(ROOMS)}, and nothing was on the table.",
        f"{q.name} isn't at the {place}. {q.Subj}'s at the {place2}.",
        f"Is {p.name} at the {place}? No, {p.subj} isn't. {p.Subj} is at home.",
        f"Does {q.name} have {a(t)}? No, but {q.subj} has {a(t2)}.",
        f"Does {p.name} like {f}? Yes, {p.subj} does.",
    ]
    return " ".join(rng.sample(lines, rng.randint(4, 6)))
