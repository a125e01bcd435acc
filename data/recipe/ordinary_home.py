"""Kinds of ordinary text about things: definitions, recipes, rooms, weather, the way."""

from __future__ import annotations

import random

from ordinary_grammar import a, cap, count, gather, ing, plural, tell, words
from ordinary_stories import couple, people, thing
from ordinary_words import (
    BUILDINGS,
    COLOURS,
    DAYTIMES,
    FRUIT,
    FURNITURE,
    OBJECTS,
    PLACES,
    QUALITIES,
    ROOMS,
    SEASONS,
    SMALL_THINGS,
    SPOTS,
    STREETS,
    TOWNS,
    VEGETABLES,
    WEEKDAYS,
)

OTHER_KINDS = ("toy", "tool", "piece of furniture", "piece of clothing", "vehicle", "fruit")


def _define(rng: random.Random) -> str:
    noun, kind, use, material, place = rng.choice(OBJECTS)
    one, many = a(noun), plural(noun)
    is_a = "something" if kind == "thing" else a(kind)
    are = "things" if kind == "thing" else plural(kind)
    wrong = rng.choice([k for k in OTHER_KINDS if k != kind])
    first = rng.choice(
        (
            f"{cap(one)} is {is_a} that people use to {use}.",
            f"{cap(one)} is {is_a} for {ing(use)}.",
            f"{cap(many)} are {are} that people use to {use}.",
            f"{cap(noun)}: {is_a} with which you can {use}.",
            f"What is {one}? It is {is_a} for {ing(use)}.",
            f"{cap(one)} is {is_a}. People use it to {use}." if kind != "thing" else f"People use {many} to {use}.",
            f"If you want to {use}, you need {one}.",
        )
    )
    more = rng.sample(
        (
            f"Most {many} are made of {material}.",
            f"You can often find {one} {place}.",
            f"{cap(one)} is not {a(wrong)}.",
            f"Without {one}, it would be hard to {use}.",
            f'The word for more than one {noun} is "{many}".',
            f"{cap(many)} can be big or small.",
            f"There may be {one} {place}.",
        ),
        rng.randint(1, 2),
    )
    return " ".join([first, *more])


def definition(rng: random.Random) -> str:
    """What everyday things are, what they are for and what they are made of."""
    return gather(rng, lambda: _define(rng), 28, 70, rng.choice((" ", "\n")))


def _riddle(rng: random.Random) -> str:
    noun, kind, use, material, place = rng.choice(OBJECTS)
    wrong = rng.choice([k for k in OTHER_KINDS if k != kind])
    hints = [
        f"People use me to {use}.",
        f"I am made of {material}.",
        f"You can find me {place}.",
        f"I am not {a(wrong)}.",
    ]
    if kind != "thing":
        hints.append(f"I am {a(kind)}.")
    chosen = [hints[0], *rng.sample(hints[1:], 2)]
    rng.shuffle(chosen)
    return " ".join([*chosen, "What am I?", rng.choice((f"{cap(a(noun))}.", f"I am {a(noun)}."))])


def _ask(rng: random.Random) -> str:
    noun, kind, use, material, place = rng.choice(OBJECTS)
    wrong = rng.choice([k for k in OTHER_KINDS if k != kind])
    pairs = [
        (f"What do people use to {use}?", f"{cap(a(noun))}."),
        (f"What is {a(noun)} made of?", f"It is made of {material}."),
        (f"Where can you find {a(noun)}?", f"{cap(place)}."),
        (f"What is {a(noun)} for?", f"It is for {ing(use)}."),
        (f"Is {a(noun)} {a(wrong)}?", "No, it is not."),
        (f"Can you use {a(noun)} to {use}?", "Yes, you can."),
    ]
    if kind != "thing":
        pairs += [
            (f"Is {a(noun)} {a(kind)}?", "Yes, it is."),
            (f"What kind of thing is {a(noun)}?", f"It is {a(kind)}."),
        ]
    question, answer = rng.choice(pairs)
    return f"{question} {answer}"


def riddle(rng: random.Random) -> str:
    """Riddles, or questions and answers, about everyday things."""
    if rng.random() < 0.5:
        return gather(rng, lambda: _riddle(rng), 25, 60, "\n")
    if rng.random() < 0.5:
        return gather(rng, lambda: _ask(rng), 30, 60)
    return gather(rng, lambda: "Q: " + _ask(rng).replace("? ", "?\nA: ", 1), 30, 60, "\n")


def scene(rng: random.Random) -> str:
    """Coloured things in places, and questions that can be answered from the text."""
    number = rng.randint(3, 5)
    things, spots = rng.sample(SMALL_THINGS, number), rng.sample(SPOTS, number)
    colours = [rng.choice(COLOURS) for _ in things]
    facts = list(zip(colours, things, spots, strict=True))
    lines = [
        rng.choice(
            (
                f"The {c} {t} is {s}.",
                f"There is {a(c + ' ' + t)} {s}.",
                f"{cap(s)} is {a(c + ' ' + t)}.",
                f"{cap(a(c + ' ' + t))} is {s}.",
            )
        )
        for c, t, s in facts
    ]
    if rng.random() < 0.4:
        lines.append(f"That makes {count(number, 'thing')} in all.")
    for c, t, s in rng.sample(facts, rng.randint(2, 3)):
        other = rng.choice([colour for colour in COLOURS if colour != c])
        lines.append(
            rng.choice(
                (
                    f"Where is the {t}? It is {s}.",
                    f"What colour is the {t}? It is {c}.",
                    f"What is {s}? {cap(a(c + ' ' + t))}.",
                    f"Is the {t} {c}? Yes, it is.",
                    f"Is the {t} {other}? No, it is {c}.",
                )
            )
        )
    return " ".join(lines)


RECIPES: dict[str, tuple[str, tuple[tuple[str, ...], ...]]] = {
    "{v} soup": (
        "{n} {vs}, {n2} {v2s}, water and salt",
        (
            ("Wash the {vs} and cut them into {small} pieces.", "Wash the {vs} and the {v2s}."),
            ("Fry the {v2s} in a pot with a little butter.", "Put the {v2s} into a pot."),
            ("Add the {vs} and a litre of water.", "Pour hot water over everything."),
            ("Cook the soup for {min} minutes.", "Let it boil for {min} minutes and stir it often."),
            ("Add salt and pepper.", "Taste it; if it is too thin, cook it longer."),
            ("Serve it hot with bread.", "Eat it while it is hot."),
        ),
    ),
    "{f} cake": (
        "{n} {fs}, {n2} eggs, flour, sugar and butter",
        (
            ("Mix the butter with the sugar until it is soft.", "Heat the oven first."),
            ("Add the {n2} eggs, one after the other.", "Break the eggs into a bowl and beat them."),
            ("Stir in the flour with a wooden spoon.", "Then add {cups} of flour."),
            ("Cut the {fs} and lay them on top.", "Put the {fs} into the bowl, too."),
            ("Bake the cake for {min} minutes.", "Leave it in the oven until it is brown."),
            ("Let it cool before you cut it.", "Do not open the oven too early!"),
        ),
    ),
    "{f} salad": (
        "{n} {fs}, {n2} {f2s}, honey and lemon juice",
        (
            ("Wash all the fruit.", "Wash the {f2s} first, then the {fs}."),
            ("Cut the {fs} into {small} pieces.", "Cut everything with a sharp knife."),
            ("Put them into a large bowl.", "Mix them in a glass bowl."),
            ("Add a spoon of honey and some lemon juice.", "Pour the honey over the {fs}."),
            ("Keep it in the fridge for {min} minutes.", "Stir it carefully."),
            ("Serve it cold.", "It is enough for {n3} people."),
        ),
    ),
    "{v} sandwich": (
        "bread, butter, cheese and {n} {vs}",
        (
            ("Cut {n3} slices of bread.", "Take {n3} slices of bread."),
            ("Put butter on them, but not too much.", "Spread the butter on one side."),
            ("Cut the {vs} into thin slices.", "Wash the {vs}, dry them and cut them."),
            ("Lay the {vs} and the cheese on the bread.", "First comes the cheese, then the {vs}."),
            ("Put another slice on top.", "Press it together with your hand."),
            ("Cut it in half and serve it.", "Wrap it in paper and take it with you."),
        ),
    ),
    "pancakes with {f} jam": (
        "{n2} eggs, milk, flour, butter and {f} jam",
        (
            ("Beat the eggs in a bowl.", "Break {n2} eggs into a bowl."),
            ("Add {cups} of flour and some milk.", "Mix them with flour and milk."),
            ("Wait for {min} minutes.", "Stir until it is smooth."),
            ("Melt the butter in a hot pan.", "Heat the pan and put some butter into it."),
            ("Fry each pancake on both sides.", "Pour in a little, and turn it when it is brown."),
            ("Spread {f} jam on them and roll them up.", "Eat them warm with {f} jam."),
        ),
    ),
    "rice with {vs}": (
        "{cups} of rice, {n} {vs}, oil and salt",
        (
            ("Wash the rice in cold water.", "Boil water in a large pot."),
            ("Cook the rice for {min} minutes.", "Put the rice into the pot and close it."),
            ("In the meantime, cut the {vs}.", "While the rice is cooking, wash the {vs}."),
            ("Fry them in oil until they are soft.", "Fry the {vs} in a pan."),
            ("Mix them with the rice.", "Put the rice on a plate and the {vs} on top."),
            ("Add salt if you like.", "This dish is enough for {n3} people."),
        ),
    ),
}


def recipe(rng: random.Random) -> str:
    """A recipe with its ingredients and its steps in order."""
    v, v2 = rng.sample(VEGETABLES, 2)
    f, f2 = rng.sample(FRUIT, 2)
    title = rng.choice(list(RECIPES))
    ingredients, slots = RECIPES[title]
    if "sandwich" in title:
        v = rng.choice(("tomato", "onion", "cucumber", "mushroom"))
    context: dict[str, object] = {
        "v": v,
        "vs": plural(v),
        "v2s": plural(v2),
        "f": f,
        "fs": plural(f),
        "f2s": plural(f2),
        "n": words(rng.randint(2, 8)),
        "n2": words(rng.randint(2, 5)),
        "n3": words(rng.randint(2, 6)),
        "cups": count(rng.randint(1, 4), "cup"),
        "min": rng.randint(2, 12) * 5,
        "small": rng.choice(("small", "thin", "large")),
    }
    name = title.format(**context)
    needs = ingredients.format(**context)
    steps = [tell(rng, (slot,), **context) for slot in slots]
    form = rng.random()
    if form < 0.4:
        body = "\n".join(f"{n}. {step}" for n, step in enumerate(steps, 1))
        return f"{cap(name)}\nYou need: {needs}.\n{body}"
    if form < 0.6:
        links = ("First: ", "Then: ", "Next: ", "After that: ", "Later: ", "Finally: ")
        return f"How to make {name}: " + " ".join(x + s for x, s in zip(links, steps, strict=True))
    return f"For {name} you need {needs}. {' '.join(steps)}"


SKY = ("sunny", "cloudy", "rainy", "windy", "dry", "grey", "clear")


def weather(rng: random.Random) -> str:
    """A weather report whose temperatures and days agree."""
    start = rng.randrange(7)
    low = rng.randint(-5, 18)
    high, night = low + rng.randint(4, 10), low - rng.randint(1, 5)
    next_high = high + rng.choice((-4, -3, -2, 2, 3, 4))
    today, tomorrow, later = (WEEKDAYS[(start + n) % 7] for n in range(3))
    sky, sky2, sky3 = rng.sample(SKY, 3)
    area = rng.choice((rng.choice(TOWNS), "the valley", "the hills", "the coast", "our town"))
    return tell(
        rng,
        (
            (
                "the weather in {area} on {today}: {sky} in the morning and {sky2} later.",
                "{today} will be {sky} in {area}.",
                "it is {today}, and it is {sky} in {area}.",
            ),
            (
                "the temperature will rise from {low} to {high} degrees.",
                "in the morning we expect {low} degrees, and {high} in the afternoon.",
                "the highest temperature is {high} degrees, the lowest is {night}.",
            ),
            (
                "the wind is {wind}.",
                "there may be some {fall} in the evening.",
                "do not forget your {item}!",
                "",
                "during the night it gets colder: {night} degrees.",
            ),
            (
                "on {tomorrow} it will be {warmer}, with {next_high} degrees.",
                "{tomorrow} will be {sky2} and {warmer}, with up to {next_high} degrees.",
            ),
            (
                "after that, on {later}, it stays {sky3}.",
                "on {later} the sky will be {sky_colour}.",
                "nobody knows yet how {later} will be.",
                "{later} will be {sky3}.",
            ),
        ),
        area=area,
        today=today,
        tomorrow=tomorrow,
        later=later,
        sky=sky,
        sky2=sky2,
        sky3=sky3,
        low=low,
        high=high,
        night=night,
        next_high=next_high,
        warmer="warmer" if next_high > high else "cooler",
        wind=rng.choice(("weak", "strong", "light", "cold")),
        fall=rng.choice(("rain", "fog")),
        item=rng.choice(("umbrella", "hat", "scarf", "raincoat")),
        sky_colour=rng.choice(("grey", "blue", "dark", "clear")),
    )


HEADINGS = ("north", "east", "south", "west")


def _compass(rng: random.Random) -> str:
    at = rng.randrange(4)
    lines = [f"You look {HEADINGS[at]}."]
    for _ in range(rng.randint(3, 6)):
        side, step = rng.choice((("left", -1), ("right", 1), ("around", 2)))
        at = (at + step) % 4
        lines.append(
            rng.choice((f"Turn {side}: now you look {HEADINGS[at]}.", f"If you turn {side}, you look {HEADINGS[at]}."))
        )
    return " ".join(lines)


def directions(rng: random.Random) -> str:
    """The way through a town, or turns of a compass."""
    if rng.random() < 0.25:
        return gather(rng, lambda: _compass(rng), 30, 60, "\n")
    goal = rng.choice(BUILDINGS)
    mark, mark2, mark3, start = rng.sample([x for x in PLACES if x not in (goal, "river")], 4)
    s1, s2, s3 = rng.sample(STREETS, 3)
    side, side2 = rng.choice((("left", "right"), ("right", "left")))
    return tell(
        rng,
        (
            (
                '"Excuse me, how do I get to the {goal}?"',
                "The way from the {start} to the {goal}:",
                "To get to the {goal}, start at the {start}.",
                "Are you looking for the {goal}?",
            ),
            (
                "Go straight along {s1} until you see the {mark}.",
                "Walk down {s1} for {m} metres.",
                "Follow {s1} and cross the square.",
            ),
            (
                "Turn {side} at the {mark} into {s2}.",
                "Then take the {nth} street on the {side}.",
                "Do not turn {side} there; turn {side2} into {s2}.",
            ),
            (
                "Go past the {mark3}, but do not stop there.",
                "After {min} minutes you come to {s3}.",
                "Cross {s3} and go up the stairs.",
                "",
            ),
            (
                "The {goal} is on your {side2}, opposite the {mark2}.",
                "The {goal} is the {colour} house on the {side}.",
                "You will see the {goal} at the end of the street, next to the {mark2}.",
            ),
            (
                "If you come to the river, you have gone too far.",
                "It takes about {min} minutes.",
                "You can also take bus number {bus}.",
                "It is not far.",
                '"Thank you!"',
            ),
        ),
        goal=goal,
        mark=mark,
        mark2=mark2,
        mark3=mark3,
        start=start,
        s1=s1,
        s2=s2,
        s3=s3,
        side=side,
        side2=side2,
        m=rng.randint(1, 9) * 100,
        nth=rng.choice(("first", "second", "third")),
        min=words(rng.randint(2, 20)),
        colour=rng.choice(COLOURS),
        bus=rng.randint(1, 60),
    )


SURFACES = ("table", "desk", "cupboard", "bench", "bed", "sofa", "bookshelf")
ON_WALL = ("mirror", "clock", "photo", "map", "hat", "coat", "picture", "lamp")


def _inside(rng: random.Random) -> list[str]:
    f1, f3 = rng.sample(SURFACES, 2)
    f2 = rng.choice([x for x in FURNITURE if x not in (f1, f3)])
    c1, c2, c3 = rng.sample(COLOURS, 3)
    number = rng.randint(2, 6)
    small = rng.choice(SMALL_THINGS)
    return [
        f"In the middle stands {a(c1 + ' ' + f1)}.",
        f"The walls are {c2}, and the floor is {c3}.",
        f"To the left of the {f1} there is {a(f2)}, and to the right there is {a(f3)}.",
        f"There are {count(number, small)} on the {f1}.",
        f"It has {count(rng.randint(1, 4), 'window')} and {count(rng.randint(1, 2), 'door')}.",
        f"{cap(a(rng.choice(COLOURS + QUALITIES) + ' ' + rng.choice(ON_WALL)))} hangs on the wall.",
        f"Nobody has used the {f2} for years.",
        f"On the {f3} lies {thing(rng).a} (it belongs to {people(rng, 1)[0].name}).",
        f"From the window you can see the {rng.choice(PLACES)}.",
        "It smells of " + rng.choice(("wood", "paint", "fresh bread", "old books")) + ".",
    ]


def room(rng: random.Random) -> str:
    """A description of a room."""
    which = rng.choice(ROOMS[2:])
    p = people(rng, 1)[0]
    first = rng.choice(
        (
            f"The {which} is {rng.choice(('small', 'large', 'bright', 'dark'))} and "
            f"{rng.choice(('nice', 'cold', 'warm', 'clean', 'quiet'))}.",
            f"This is {p.own} {which}.",
            f"{p.name} is sitting in the {which}.",
            f"Let me describe the {which}.",
        )
    )
    return " ".join([first, *rng.sample(_inside(rng), rng.randint(4, 6))])


def garden(rng: random.Random) -> str:
    """A description of a garden."""
    p, q = couple(rng)
    v, v2, f = rng.choice(VEGETABLES), rng.choice(VEGETABLES), rng.choice(FRUIT)
    c, c2 = rng.sample(COLOURS, 2)
    number = rng.randint(2, 9)
    lines = [
        f"Along the fence there are {c} and {c2} flowers.",
        f"{words(number).capitalize()} {f} trees stand near the gate.",
        f"{p.Subj} grows {plural(v)}" + (f" and {plural(v2)}." if v != v2 else "."),
        f"In {rng.choice(SEASONS)}, {p.subj} works there every {rng.choice(DAYTIMES)}.",
        f"Under the biggest tree there is a {rng.choice(('bench', 'table', 'swing'))}.",
        f"{q.name} often helps {p.obj}, and {p.subj} gives {q.obj} {plural(f)} in return.",
        f"A {rng.choice(('narrow', 'long', 'straight'))} path leads from the house to the "
        f"{rng.choice(('pond', 'gate', 'wall', 'shed'))}.",
        "The grass is green and wet.",
        "When the sun shines, everything looks beautiful.",
        f"{p.Subj} has planted {count(number + 1, v + ' plant')} this year.",
        f"There is {a(rng.choice(QUALITIES) + ' shed')} where {p.subj} keeps {p.poss} tools.",
    ]
    first = rng.choice(
        (
            f"{p.name} has a {rng.choice(('small', 'large', 'little'))} garden.",
            f"Behind {p.own} house there is a garden.",
            f"Have you seen {p.own} garden?",
        )
    )
    return " ".join([first, *rng.sample(lines, rng.randint(4, 6))])
