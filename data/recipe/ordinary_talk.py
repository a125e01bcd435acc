"""Kinds of ordinary text in which people speak or write to each other."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ordinary_grammar import Noun, a, cap, count, gather, ing, plural, tell, words
from ordinary_stories import BAD, couple, kin, people, thing
from ordinary_topics import TOPICS
from ordinary_words import (
    BUILDINGS,
    CHORES,
    COLOURS,
    DAYTIMES,
    EDIBLES,
    FEELINGS,
    HOBBIES,
    JOBS,
    MONTHS,
    PLACES,
    PORTIONS,
    ROOMS,
    SKILLS,
    SMALL_THINGS,
    SPOTS,
    STREETS,
    TOWNS,
    WEEKDAYS,
)

SAID = ("said", "answered", "replied", "said", "said")


def _quoted(rng: random.Random, turns: Sequence[str], names: tuple[str, str]) -> str:
    """The turns as quoted speech; the first two always name their speaker."""
    parts = []
    for n, text in enumerate(turns):
        name = names[n % 2]
        if n >= 2 and rng.random() < 0.5:
            parts.append(f'"{text}"')
        elif text.endswith("?"):
            parts.append(f'"{text}" {rng.choice(("asked", "asked", "said"))} {name}.')
        elif text.endswith("!"):
            parts.append(f'"{text}" {rng.choice(("said", "cried", "called"))} {name}.')
        elif rng.random() < 0.3:
            parts.append(f'{name} said, "{text}"')
        else:
            verb = "said" if n == 0 else rng.choice(SAID)
            parts.append(f'"{text[:-1]}," {verb} {name}.')
    return rng.choice((" ", "\n")).join(parts)


def dialogue(rng: random.Random) -> str:
    """Two people talk in turns, as prose with quotes or as a script."""
    p, q, other = people(rng, 3)
    spot, spot2 = rng.sample(SPOTS, 2)
    place, place2 = rng.sample(PLACES, 2)
    colour, colour2 = rng.sample(COLOURS, 2)
    drink = rng.choice(("tea", "coffee", "juice", "milk"))
    drink2 = rng.choice(("bread", "cheese", "soup", "rice", "salad"))
    less, more = rng.randint(3, 20), rng.randint(1, 20)
    n_food = count(rng.randint(2, 9), rng.choice(EDIBLES))
    skill, skill2 = rng.sample(SKILLS, 2)
    context: dict[str, object] = {
        "p": p.name,
        "q": q.name,
        "third": other.name,
        "daytime": rng.choice(DAYTIMES),
        "n_food": n_food,
        "N_food": cap(n_food),
        "portion": a(rng.choice(PORTIONS)),
        "price": words(less + more),
        "Price": cap(words(less + more)),
        "less": words(less),
        "weekday": rng.choice(WEEKDAYS),
        "thing": Noun(rng.choice(SMALL_THINGS)),
        "colour": colour,
        "colour2": colour2,
        "spot": spot,
        "spot2": spot2,
        "place": place,
        "place2": place2,
        "room": rng.choice(ROOMS),
        "chore": rng.choice(CHORES),
        "hour": words(rng.randint(2, 9)),
        "food": Noun(rng.choice(EDIBLES)),
        "bad": rng.choice(BAD),
        "hobby": rng.choice(HOBBIES),
        "drink": drink,
        "drink2": drink2,
        "skill": skill,
        "skill2": skill2,
        "some": words(rng.randint(2, 9)),
        "digits": " ".join(str(rng.randint(0, 9)) for _ in range(5)),
    }
    turns = [turn for pairs in rng.choice(TOPICS) for turn in tell(rng, (pairs,), **context).split(" | ")]
    names = (p.name, q.name)
    if rng.random() < 0.3:
        return "\n".join(f"{names[n % 2]}: {text}" for n, text in enumerate(turns))
    scene = rng.choice(
        (
            "",
            "",
            f"{p.name} and {q.name} met at the {rng.choice(PLACES)}. ",
            f"{p.name} came into the {rng.choice(ROOMS)}, where {q.name} was sitting. ",
        )
    )
    return scene + _quoted(rng, turns, names)


LETTER_BODIES: dict[str, tuple[tuple[str, ...], ...]] = {
    "Thank you": (
        ("thank you very much for the {thing}.", "I want to thank you for the lovely {thing}."),
        ("It is exactly what I needed.", "I use it every day.", "It is now {spot}."),
        ("My {kin} likes it too.", "{other} saw it and wants one as well.", ""),
        ("How are you? Have you learned to {hobby}?", "I hope that you are well.", "Please visit us soon."),
    ),
    "Invitation": (
        (
            "I am having a party on {weekday}, and I would like to invite you.",
            "would you like to come to my birthday party on {weekday}?",
        ),
        ("It starts at {hour} o'clock at the {place}.", "We meet at {house} {street} at {hour}."),
        (
            "There will be music, {food.pl} and {drink}.",
            "{other} will bring {food.pl}.",
            "Please bring {thing.a}, because we will play a game.",
        ),
        ("Please tell me if you can come.", "Please answer before {weekday2}."),
    ),
    "Sorry": (
        ("I am sorry that I did not come on {weekday}.", "I must tell you that I have broken your {thing}."),
        ("I was {feeling}, and I forgot it.", "It was my fault, and nobody else's."),
        ("I will buy {food.pl} for you, and then we can talk.", "Can I do something for you?"),
        ("Please do not be angry with me.", "I hope we are still friends."),
    ),
    "News from us": (
        (
            "we have moved to a new flat with {some} rooms.",
            "much has happened since {month}.",
            "my {kin} has a new job at the {place}.",
        ),
        (
            "I have started to {hobby}, and it is fun.",
            "{other} is learning to {hobby}.",
            "The {room} is {colour} now, because we painted it.",
        ),
        ("Last {weekday} we found {thing.a} {spot}.", "It has been {weather} for {some} days."),
        ("When will you come to see us?", "Write to me soon!"),
    ),
    "A question": (
        ("could you lend me your {thing}?", "do you know when the {place} opens?", "do you still have my {thing}?"),
        ("I need an answer before {weekday}.", "I would like to know it before {weekday}.", ""),
        ("I asked {other}, but {other} did not know.", "My {kin} said that you could help me."),
        ("You can call me after {hour} o'clock.", "Thank you for your help."),
    ),
}


SMALL_TALK = (
    "",
    "It is {weather} here, and I am sitting in the {room} with a cup of {drink}.",
    "By the way, {other} says hello.",
    "My {kin} is well and sends you many greetings.",
    "I am writing this at the {place}, because it is quiet here.",
)


def letter(rng: random.Random) -> str:
    """A letter or an e-mail with greeting, body and closing line."""
    p, q, other = people(rng, 3)
    subject = rng.choice(list(LETTER_BODIES))
    day, day2 = sorted(rng.sample(range(7), 2))
    text = tell(
        rng,
        (*LETTER_BODIES[subject][:-1], SMALL_TALK, LETTER_BODIES[subject][-1]),
        thing=thing(rng, 0.2),
        spot=rng.choice(SPOTS),
        kin=kin(rng, other),
        other=other.name,
        hobby=rng.choice(HOBBIES),
        weekday=WEEKDAYS[day2],
        weekday2=WEEKDAYS[day],
        hour=words(rng.randint(2, 9)),
        place=rng.choice(BUILDINGS),
        street=rng.choice(STREETS),
        house=rng.randint(1, 90),
        food=Noun(rng.choice(EDIBLES)),
        drink=rng.choice(("tea", "juice", "coffee")),
        feeling=rng.choice(("ill", "tired", "busy", "away")),
        some=words(rng.randint(2, 9)),
        month=rng.choice(MONTHS),
        room=rng.choice(ROOMS),
        colour=rng.choice(COLOURS),
        weather=rng.choice(("cold", "warm", "rainy", "windy")),
    )
    greeting = rng.choice(("Dear {}", "Hello {}", "Hi {}", "My dear {}")).format(q.name)
    closing = rng.choice(
        (
            "Best wishes",
            "Yours",
            "See you soon",
            "Many greetings",
            "Love",
            "Kind regards",
        )
    )
    lines = [f"{greeting},", text, f"{closing},", p.name]
    if rng.random() < 0.4:
        lines[:0] = [f"From: {p.name}", f"To: {q.name}", f"Subject: {subject}"]
    elif rng.random() < 0.3:
        lines.insert(0, f"{rng.choice(TOWNS)}, {rng.randint(1, 28)} {rng.choice(MONTHS)}")
    if rng.random() < 0.15:
        lines.append(f"P.S. Do not forget to {rng.choice(CHORES)}!")
    return "\n".join(lines)


NEWS: tuple[tuple[tuple[str, ...], ...], ...] = (
    (
        ("{town} has a new {place}.", "a new {place} opened in {town} on {weekday}."),
        (
            "It took {some} years to build it.",
            "It stands on {street}, next to the {place2}.",
            "The old {place} had been too small for a long time.",
        ),
        (
            "About {crowd} people came to the opening, and there were {food.pl} for everyone.",
            "The mayor cut {a_colour} ribbon and gave a short speech.",
        ),
        (
            '"I have waited for this day," said {p.name}, {a_job} from {street}.',
            '"It is wonderful," said {p.name} ({age}).',
        ),
    ),
    (
        ("strong wind hit {town} on {weekday} {daytime}.", "a storm passed over {town} on {weekday}."),
        ("{Some} trees fell on {street}, and the {place} had to close.", "The roof of the {place} was damaged."),
        ("Nobody was hurt.", "One person, {a_job}, was slightly hurt."),
        (
            '"It was very loud, and we were {feeling}," {p.name} told us.',
            "{p.name}, who lives near the {place2}, lost {p.poss} {thing} in the wind.",
        ),
        ("The repairs will cost about {crowd} coins.", "Today everything is calm again."),
    ),
    (
        (
            "{p.name}, {a_job} from {town}, has won the competition for the {size} {vegetable}.",
            "the prize for the best {baked} in {town} went to {p.name} ({age}) this year.",
        ),
        ("{Some} people took part.", "{q.name} came second, and {q.subj} was {feeling}."),
        ('"I only wanted to have fun," said {p.name}.', '"My {kin} showed me how to do it," {p.subj} explained.'),
        ("The prize was {thing.a}.", "{p.Subj} got {crowd} coins and {thing.a}."),
    ),
    (
        (
            "{a_colour} {thing} was found at the {place} in {town} on {weekday}.",
            "the police in {town} are looking for the owner of {a_colour} {thing}.",
        ),
        ("It was lying {spot} of an empty house.", "A child saw it and told {p.name}, {a_job}."),
        ("Nobody knows whom it belongs to.", "There was a letter inside, but no name."),
        ("The owner can get it at the town hall.", "If it is yours, please call {q.name}."),
    ),
    (
        (
            "the town council of {town} met on {weekday}.",
            "on {weekday} {daytime}, the council of {town} talked about {street}.",
        ),
        ("It decided to close {street} for cars.", "The plan is to paint the {place} {colour}."),
        (
            "{Some} members were for the plan, and {few} were against it.",
            "Only {few} of {total} members were against the plan.",
        ),
        (
            '"We need more time," said {p.name}, who was against it.',
            '{q.name}, {a_job}, was pleased. "It is good for all of us," {q.subj} said.',
        ),
        ("The work will begin in {month}.", "The next meeting is in {month}."),
    ),
    (
        (
            "on {weekday}, the people of {town} voted: should the {place} close?",
            "should {town} build a new {place}? On {weekday}, the people voted.",
        ),
        ("The vote was close: {yes} to {no}.", "{Yes} people said yes, and {no} said no."),
        (
            '{p.name} voted for it. "I am {feeling}," {p.subj} said.',
            '"I did not vote," said {p.name} ({age}), "because I was ill."',
        ),
        (
            "{q.name}, {a_job}, does not agree and wants to vote again in {month}.",
            "There will be another meeting at the {place2} in {month}.",
        ),
    ),
)


def news(rng: random.Random) -> str:
    """A report from an invented small town."""
    p, q = couple(rng)
    town = rng.choice(TOWNS)
    few, more = rng.randint(2, 5), rng.randint(1, 8)
    colour = rng.choice(COLOURS)
    yes, no = rng.randint(50, 90), rng.randint(10, 49)
    place, place2 = rng.sample(BUILDINGS, 2)
    text = tell(
        rng,
        rng.choice(NEWS),
        p=p,
        q=q,
        town=town,
        place=place,
        place2=place2,
        weekday=rng.choice(WEEKDAYS),
        daytime=rng.choice(DAYTIMES),
        some=words(few + more),
        Some=cap(words(few + more)),
        few=words(few),
        total=words(2 * few + more),
        street=rng.choice(STREETS),
        crowd=rng.randint(2, 90) * 10,
        food=Noun(rng.choice(EDIBLES)),
        age=rng.randint(9, 90),
        colour=colour,
        a_colour=a(colour),
        a_job=a(rng.choice(JOBS)),
        feeling=rng.choice(FEELINGS),
        thing=Noun(rng.choice(SMALL_THINGS)),
        size=rng.choice(("biggest", "longest", "heaviest")),
        vegetable=rng.choice(("carrot", "onion", "potato", "cucumber", "bean")),
        baked=rng.choice(("cake", "pie", "bread", "soup")),
        kin=kin(rng, q),
        spot=rng.choice(("behind the door", "near the gate", "on the stairs", "in the cellar")),
        yes=words(yes),
        Yes=cap(words(yes)),
        no=words(no),
        month=rng.choice(MONTHS),
    )
    head = rng.choice(
        (
            "",
            "",
            f"{town}, {rng.choice(MONTHS)} {rng.randint(1, 28)}. ",
            f"News from {town}: ",
            f"{town.upper()} NEWS\n",
        )
    )
    return head + text


NOTICES: tuple[tuple[tuple[str, ...], ...], ...] = (
    (
        ("LOST: {thing.a}.", "LOST! My {thing} is gone."),
        ("I lost it near the {place} on {weekday}.", "It was last seen at the {place}."),
        ("It is very important to me.", "It was a present from my {kin}."),
        ("If you find it, please call {p} ({digits}).", "There is a prize of {price} coins."),
    ),
    (
        ("FOR SALE: {thing.a}, {thing2.a} and {thing3.a}.", "FOR SALE: {n_things}, almost new."),
        ("Price: {price} coins.", "They cost {price} coins each.", "All for {price} coins."),
        ("Come to {house} {street} after {hour} o'clock.", "Ask for {p}."),
        ("No letters, please.", "Only on {weekday}.", "You can pay later."),
    ),
    (
        ("The {place} is closed on {weekday}.", "NOTICE: the {place} will not open on {weekday}."),
        ("We have to repair the door.", "The reason is a broken window.", "We are all ill."),
        ("Please come back on {weekday2}.", "It opens again at {hour} o'clock on {weekday2}."),
        ("We are sorry for the trouble.", "Thank you for waiting."),
    ),
    (
        ("Rules for the {place}:", "Please read these rules before you enter the {place}."),
        ("Do not run.", "Please be quiet.", "No food and no drinks."),
        ("Children must not come in alone.", "Leave your bag at the door."),
        ("Do not touch the {things}.", "Close the door behind you."),
        ("Whoever does not follow the rules must leave.", "Have fun!"),
    ),
    (
        ("WANTED: {a_job} who can {hobby}.", "We are looking for {a_job}."),
        ("You will work {some} days a week.", "The work will begin in {month}."),
        ("You should like to {hobby2}.", "You do not need to be young, but you must be friendly."),
        ("Write to {p}, {house} {street}.", "Call {digits} and ask for {p}."),
    ),
)


def _notice(rng: random.Random) -> str:
    day, day2 = sorted(rng.sample(range(7), 2))
    hobby, hobby2 = rng.sample(HOBBIES, 2)
    return tell(
        rng,
        rng.choice(NOTICES),
        thing=thing(rng, 0.8),
        thing2=thing(rng),
        thing3=thing(rng),
        n_things=count(rng.randint(2, 12), rng.choice(SMALL_THINGS)),
        place=rng.choice(BUILDINGS),
        weekday=WEEKDAYS[day],
        weekday2=WEEKDAYS[day2],
        kin=kin(rng, people(rng, 1)[0]),
        p=people(rng, 1)[0].name,
        digits=rng.randint(10000, 99999),
        price=rng.randint(2, 60),
        street=rng.choice(STREETS),
        house=rng.randint(1, 90),
        hour=words(rng.randint(2, 9)),
        things=plural(rng.choice(SMALL_THINGS)),
        a_job=a(rng.choice(JOBS)),
        hobby=hobby,
        hobby2=hobby2,
        some=words(rng.randint(2, 5)),
        month=rng.choice(MONTHS),
    )


def notice(rng: random.Random) -> str:
    """Notices on a wall: something lost or for sale, closed doors, rules, a job."""
    return gather(rng, lambda: _notice(rng), 28, 50, "\n")


def opinion(rng: random.Random) -> str:
    """Somebody prefers one thing to another and says why."""
    h, h2 = (ing(x) for x in rng.sample(HOBBIES, 2))
    food, food2 = (plural(x) for x in rng.sample(EDIBLES, 2))
    place, place2 = rng.sample(PLACES, 2)
    one, two = rng.choice(((h, h2), (food, food2), (f"the {place}", f"the {place2}")))
    are, they, are2 = ("are", "they", "are") if one == food else ("is", "it", "is")
    p = people(rng, 1)[0]
    reasons = rng.sample(
        (
            f"{they} {are} cheaper",
            f"{they} {are} not so {rng.choice(('loud', 'expensive'))}",
            f"{they} always {'make' if are == 'are' else 'makes'} me {rng.choice(FEELINGS[-2:])}",
            f"I have liked {one} since I was a child",
            f"{they} {are} better for children",
        ),
        2,
    )
    return tell(
        rng,
        (
            (
                "in my opinion, {one} {are} better than {two}.",
                "I prefer {one} to {two}.",
                "I think that {one} {are} much better than {two}.",
                "people often ask me whether I like {one} or {two}. I like {one} more.",
            ),
            ("the reason is simple: {r1}.", "first, {r1}. Second, {r2}.", "I say this because {r1} and because {r2}."),
            (
                "{p.name} does not agree. {p.Subj} says that {two} {are2} more interesting.",
                "on the other hand, {two} {are2} not bad either.",
                "however, {p.name} thinks the opposite.",
                '"You are wrong," says {p.name}.',
            ),
            (
                "perhaps both of us are right.",
                "everyone may decide that for themselves.",
                "what do you think?",
                "still, I will not change my mind.",
                "if I had to choose again, I would choose {one}.",
            ),
        ),
        one=one,
        two=two,
        are=are,
        are2=are2,
        r1=reasons[0],
        r2=reasons[1],
        p=p,
    )
