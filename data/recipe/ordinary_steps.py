"""Kinds of ordinary text in steps: lists, routines, instructions, games, rhymes."""

from __future__ import annotations

import random

from ordinary_grammar import ORDINALS, a, both, cap, count, plural, tell, words
from ordinary_patterns import time_words
from ordinary_stories import couple, people, thing
from ordinary_words import (
    CHORES,
    COLOURS,
    EDIBLES,
    HOBBIES,
    MASS_FOODS,
    PLACES,
    PORTIONS,
    RHYMES,
    SMALL_THINGS,
    WEEKDAYS,
)


def _bought(rng: random.Random, digits: bool) -> list[str]:
    goods: list[str] = []
    for noun in rng.sample(EDIBLES + PORTIONS, rng.randint(6, 10)):
        number = rng.randint(1, 12) if noun in EDIBLES else rng.randint(1, 3)
        if digits:
            goods.append(f"{number} {noun if number == 1 else plural(noun)}")
        else:
            goods.append(a(noun) if number == 1 else count(number, noun))
    if not digits:
        goods += [f"some {food}" for food in rng.sample(MASS_FOODS, 2)]
    return rng.sample(goods, len(goods))


def shopping(rng: random.Random) -> str:
    """A shopping list, or a bill whose total is right."""
    p = people(rng, 1)[0]
    items = _bought(rng, rng.random() < 0.5)
    form = rng.randrange(3)
    if form == 0:
        prices = [rng.randint(1, 9) for _ in items]
        rows = "\n".join(f"{item}: {price}" for item, price in zip(items, prices, strict=True))
        return f"{rng.choice(('Bill', 'What we paid', 'Prices'))}\n{rows}\nTotal: {sum(prices)}"
    head = rng.choice(
        ("Shopping list", "To buy", f"For {rng.choice(WEEKDAYS)}", "We need", f"{p.own} list", "From the market")
    )
    if form == 1:
        mark = rng.choice(("- ", "* ", ""))
        return f"{head}:\n" + "\n".join(mark + item for item in items)
    return f"{p.name} went to the shop and bought {both(items)}. " + rng.choice(
        (
            f"At home {p.subj} saw that {p.subj} had forgotten the list.",
            f"{p.Subj} carried everything home in two bags.",
            f"{p.Subj} paid and went home.",
            f'"Did you buy {rng.choice(items)}?" "Yes, I did."',
        )
    )


def todo(rng: random.Random) -> str:
    """Things to do, some of them done, some not."""
    chores = rng.sample(CHORES, rng.randint(6, 9))
    day = rng.choice(WEEKDAYS)
    p = people(rng, 1)[0]
    form = rng.randrange(3)
    if form == 0:
        rows = [f"{n}. {cap(c)}" for n, c in enumerate(chores, 1)]
        k = rng.randrange(len(chores))
        nth = ORDINALS[k + 1]
        return "\n".join([f"To do on {day}:", *rows, f"What is the {nth} thing? {cap(chores[k])}."])
    if form == 1:
        done = [rng.random() < 0.5 for _ in chores]
        rows = [f"[{'x' if d else ' '}] {c}" for d, c in zip(done, chores, strict=True)]
        left = len(done) - sum(done)
        end = "Everything is done." if not left else f"{cap(count(left, 'thing'))} left."
        return "\n".join([f"{p.own} list", *rows, end])
    return (
        f"On {day}, {p.name} has to {both(chores[:4])}. "
        f"{p.Subj} does not have to {chores[4]}, because that can wait. "
        f"The last thing is to {chores[5]}, but only if there is time."
    )


# usual minute of the day and what happens then
ROUTINE = (
    (390, "gets up"),
    (420, "washes and gets dressed"),
    (450, "eats breakfast"),
    (480, "leaves the house"),
    (540, "starts to work"),
    (630, "drinks a cup of tea"),
    (720, "has lunch"),
    (780, "goes back to work"),
    (1020, "comes home"),
    (1080, "cooks dinner"),
    (1155, "washes the dishes"),
    (1200, "calls a friend"),
    (1275, "brushes {poss} teeth"),
    (1305, "reads in bed"),
    (1335, "turns off the light"),
    (1365, "falls asleep"),
)


def routine(rng: random.Random) -> str:
    """Somebody's day with times that go forward."""
    p = people(rng, 1)[0]
    shift = rng.randrange(-60, 61, 15)
    chosen = sorted(rng.sample(ROUTINE, rng.randint(7, 12)))
    plan = [(at + shift + rng.choice((0, 15)), step.format(poss=p.poss)) for at, step in chosen]
    if rng.random() < 0.35:
        rows = [f"{time_words(at, True)} {p.subj} {step}" for at, step in plan]
        at, step = rng.choice(plan)
        ask = f"What happens at {time_words(at, True)}? {p.name} {step}."
        return "\n".join([f"{p.own} day", *rows, ask])
    digits = rng.random() < 0.3
    lines = []
    for n, (at, step) in enumerate(plan):
        time = time_words(at, digits)
        lines.append(
            f"Every day {p.name} {step} at {time}."
            if n == 0
            else rng.choice(
                (
                    f"At {time} {p.subj} {step}.",
                    f"{p.Subj} {step} at {time}.",
                    f"{rng.choice(('Then', 'After that,', 'Next', 'Later'))} {p.subj} {step}.",
                )
            )
        )
    if rng.random() < 0.4:
        first, last = time_words(plan[0][0], digits), time_words(plan[-1][0], digits)
        lines.append(f"So the day goes from {first} to {last}.")
    return " ".join(lines)


# a task and its steps; every step has several wordings
TASKS: dict[str, tuple[tuple[str, ...], ...]] = {
    "wash the dishes": (
        ("Fill the sink with warm water.", "Take two buckets of warm water."),
        ("Add a little soap.", "Put some soap into it, but not too much."),
        ("Wash the glasses first, then the plates.", "Begin with the {thing}."),
        ("Clean the pans last, because they are the dirtiest.", "Use a brush for the pots."),
        ("Rinse everything with clean water.", "Hold each piece under cold water."),
        ("Dry it with a towel and put it away.", "Leave it to dry."),
    ),
    "plant a tree": (
        ("Choose a sunny place in the garden.", "Look for a place with enough room."),
        ("Dig a hole that is deep and wide enough.", "Use a shovel to dig a deep hole."),
        ("Put the young tree into it.", "Set the tree in the hole so that it stands straight."),
        ("Fill the hole with earth.", "Put the earth back and press it with your foot."),
        ("Give it {n} buckets of water.", "Water it well."),
        ("Do not forget to water it in dry weeks.", "Then wait, because it grows slowly."),
    ),
    "wrap a present": (
        ("Lay the paper on a table, with the {colour} side down.", "Take a large sheet of paper."),
        ("Put the {thing} in the middle.", "Place the box on the paper."),
        ("Cut the paper, but leave enough on each side.", "Cut off what you do not need."),
        ("Fold one side over it, then the other.", "Fold the paper around it."),
        ("Hold it together with tape.", "Use three pieces of tape."),
        ("Tie {a_colour} ribbon around it.", "Write the name on it."),
    ),
    "send a letter": (
        ("Write the letter and read it once more.", "Write down what you want to say."),
        ("Fold it twice.", "Fold the paper so that it fits."),
        ("Put it into an envelope and close it.", "Find an envelope of the right size."),
        ("Write the name and the street on the front.", "Write clearly, or nobody can read it."),
        ("Put a stamp on the right side, at the top.", "Do not forget the stamp."),
        ("Bring it to the post office.", "Drop it into the next letter box."),
    ),
    "paint a wall": (
        ("Move the furniture away from the wall.", "Carry everything out of the room."),
        ("Cover the floor with old paper.", "Put a cloth on the floor."),
        ("Clean the wall and let it dry.", "Fill the holes, if there are any."),
        ("Stir the {colour} paint.", "Open the paint and stir it with a stick."),
        ("Paint from the top to the bottom.", "Begin at the window and go from left to right."),
        ("Wait for {n} hours, then paint it again.", "Clean the brush when you are done."),
    ),
    "repair a flat tyre": (
        ("Turn the bicycle over.", "Take the wheel off."),
        ("Pull out the tube.", "Open the tyre on one side and pull out the tube."),
        ("Hold it under water: where air comes out, there is the hole.", "Look for the hole."),
        ("Dry it and put glue around the hole.", "Clean the place and wait for it to dry."),
        ("Press a patch on it for {n} minutes.", "Stick a patch over the hole."),
        ("Put everything back and pump it up.", "If it is still flat, buy a new one."),
    ),
    "make tea": (
        ("Fill the kettle with fresh water.", "Boil {n} cups of water."),
        ("Put the tea into a pot.", "Take one spoon of tea for each cup."),
        ("Pour the hot water over it.", "When the water boils, pour it over the tea."),
        ("Wait for {n} minutes.", "Do not wait too long, or it gets too strong."),
        ("Pour it into the cups.", "Put the cups on the table."),
        ("Add sugar, milk or honey.", "Drink it slowly, because it is hot."),
    ),
}


def instructions(rng: random.Random) -> str:
    """How to do something, step by step."""
    task = rng.choice(list(TASKS))
    colour = rng.choice(COLOURS)
    steps = [
        tell(
            rng,
            (slot,),
            colour=colour,
            a_colour=a(colour),
            thing=rng.choice(("cup", "bowl", "bottle", "plate", "jar")),
            n=words(rng.randint(2, 6)),
        )
        for slot in TASKS[task]
    ]
    head = rng.choice((f"How to {task}", f"How do you {task}?", f"This is how you {task}."))
    form = rng.randrange(3)
    if form == 0:
        return head + "\n" + "\n".join(f"{n}. {s}" for n, s in enumerate(steps, 1))
    if form == 1:
        return head + "\n" + "\n".join(f"Step {words(n)}: {s}" for n, s in enumerate(steps, 1))
    prose = head.rstrip(".?") + ("?" if head.endswith("?") else ".")
    return f"{prose} {' '.join(steps)}"


# the ways to play: what each player gets, what happens in a turn, how it ends
GAMES: tuple[tuple[tuple[str, ...], ...], ...] = (
    (
        (
            "put {n} {c} and {n} {c2} {things} into a bag.",
            "hide {n} {c} {things} in a bag, and mix them with {n} {c2} ones.",
        ),
        (
            "when it is your turn, take one of the {things} without looking.",
            "each player in turn takes one thing out of the bag with closed eyes.",
        ),
        (
            "if it is {c}, you get {k} points; if it is {c2}, you lose one.",
            "for {a_c} one you get {k} points, for {a_c2} one you get nothing.",
        ),
        ("the game ends when the bag is empty.", "the first player with {big} points wins."),
    ),
    (
        ("every player gets {n} {things}.", "you need {n} {things} for each player."),
        (
            "each player in turn says a number between one and {big}.",
            "one player thinks of a number between one and {big}, and the others guess it.",
        ),
        (
            "if the number is wrong, you lose one of your {things}.",
            "whoever says a number twice must give away one of the {things}.",
        ),
        ("whoever has no {things} left is out.", "the last player with {things} wins."),
    ),
    (
        ("draw {big} squares on the ground and number them.", "put {big} plates in a row."),
        (
            "in each turn you may move one, two or three steps.",
            "throw a coin: if you see the head, go one step, if not, go two.",
        ),
        (
            "if another player already stands there, go back {k} steps.",
            "you may not go back, and you may not stand still.",
        ),
        ("the first one at the end is the winner.", "who is first at number {big} wins the game."),
    ),
    (
        (
            "one player hides {a_c} {thing} in the {room}, and the others wait outside.",
            "all players close their eyes, and one of them hides {a_c} {thing}.",
        ),
        (
            "the others look for it, but they must not speak.",
            "the others may ask {k} questions, and the answer is only yes or no.",
        ),
        (
            'if you are near, the player says "warm", and if you are far away, "cold".',
            "nobody may run, and nobody may open a {box}.",
        ),
        ("whoever finds it hides it the next time.", "the one who finds it gets {k} points."),
    ),
)


def game(rng: random.Random) -> str:
    """The rules of an invented game."""
    low = rng.randint(2, 4)
    small, small2 = rng.sample(SMALL_THINGS, 2)
    c, c2 = rng.sample(COLOURS, 2)
    start, *rest = rng.choice(GAMES)
    return tell(
        rng,
        (
            (
                "{name} is a game for {low} to {high} players.",
                "the game is called {name}. You play it in the {room} or outside.",
                "rules of {name}: {low} or more people can play.",
            ),
            start,
            (
                "the youngest player begins.",
                "the player with the {c} {small2} begins.",
                "throw a coin to see who begins.",
                "then it can begin.",
            ),
            *rest,
            (
                "if two players have the same number of points, they play again.",
                "do not forget: it is only a game!",
                "you can play it again and again.",
                "{p} likes this game very much.",
                "",
            ),
        ),
        name=f"{cap(c)} {cap(small)}",
        low=words(low),
        high=words(low + rng.randint(1, 5)),
        n=words(rng.randint(3, 9)),
        thing=small,
        things=plural(small),
        small2=small2,
        c=c,
        c2=c2,
        a_c=a(c),
        a_c2=a(c2),
        k=words(rng.randint(2, 5)),
        big=words(rng.randint(2, 10) * 5),
        room=rng.choice(("garden", "living room", "kitchen", "hall")),
        box=rng.choice(("box", "bag", "cupboard", "door")),
        p=people(rng, 1)[0].name,
    )


COUPLETS: tuple[tuple[str, str], ...] = (
    ("{p} went out to play", "on a warm and sunny day"),
    ("The moon is up, the sun has gone", "and all the lamps have been turned on"),
    ("I looked for you, I looked for me", "and found us both beside the tree"),
    ("A {thing} lay upon the floor", "and someone knocked upon the door"),
    ("The rain came down upon the hill", "and all the afternoon was still"),
    ("I took a pencil and a book", "and sat down by the little brook"),
    ("{p} put on a long {colour} coat", "and crossed the river in a boat"),
    ("We mixed the butter for the cake", "and waited long for it to bake"),
    ("One and two and three and four", "five and six, and then no more"),
    ("The night is long, the stars are bright", "so close your eyes and say good night"),
    ("I threw the ball against the wall", "and it came back to me, that is all"),
    ("{p} has a {colour} and yellow hat", "and now the hat is wide and flat"),
    ("The bread was warm, the soup was hot", "and nothing stayed inside the pot"),
    ("Listen, listen, hear the bell", "it has a story that it will tell"),
    ("I lost my left, I lost my right shoe", "and both of them were almost new"),
    ("Give me your hand and come with me", "there is so much for us to see"),
    ("The old {colour} house stands near the lane", "and in the window falls the rain"),
    ("My {thing} is here, my {thing2} is there", "and where is yours? I wonder where"),
    ("{p} sings a song, and so do I", "we sing until the clouds go by"),
    ("The wind is cold, the year is old", "this is the tale that I was told"),
)


PLAIN_COLOURS = ("red", "blue", "green", "brown", "black", "white")


def rhyme(rng: random.Random) -> str:
    """A small poem in couplets, or words that rhyme."""
    if rng.random() < 0.4:
        rows = []
        for family in rng.sample(RHYMES, rng.randint(6, 10)):
            x, y = rng.sample(family, 2)
            rows.append(
                rng.choice(
                    (
                        f"{cap(x)} rhymes with {y}.",
                        f"{cap(both(family[:3]))} rhyme.",
                        f"What rhymes with {x}? {cap(y)} does.",
                        f"{cap(x)}, {y}: they sound alike at the end.",
                    )
                )
            )
        return "\n".join(rows)
    t, t2 = rng.sample(SMALL_THINGS, 2)
    pairs = rng.sample(COUPLETS, rng.randint(3, 5))
    lines = []
    for first, second in pairs:
        context = {"p": people(rng, 1)[0].name, "thing": t, "thing2": t2, "colour": rng.choice(PLAIN_COLOURS)}
        lines += [cap(first.format(**context)) + ",", cap(second.format(**context)) + "."]
    refrain = rng.choice(("", "", "La, la, la, and sing along!", "Clap your hands, one, two!"))
    return "\n".join([*lines, refrain]).strip()


def rules(rng: random.Random) -> str:
    """What is allowed, what is not, and who does not keep to it."""
    p, q = couple(rng)
    place = rng.choice(PLACES)
    hobby, hobby2 = rng.sample(HOBBIES, 2)
    return tell(
        rng,
        (
            (
                "at the {place} there are three rules.",
                "{p.name} and {q.name} made rules for the {place}.",
                "what are you allowed to do at the {place}?",
            ),
            ("first, you must not {hobby}.", "first, nobody may {hobby} before lunch."),
            ("second, you may {hobby2}, but only with {q.name}.", "second, you can {hobby2} if you are quiet."),
            (
                "third, always bring {thing.a}. {p.name} did not know that, so {p.subj} brought {food.a} instead.",
                'third, everyone has to {chore} once a week. "That is not fair," said {p.name}. "Rules '
                'are rules," said {q.name}.',
                "third, whoever comes last must {chore}. {q.name} was last, so {q.subj} had to do it.",
            ),
            (
                "children under {age} do not have to do it.",
                "these rules are for everyone, big or small.",
                "if a rule is bad, we can change it.",
            ),
        ),
        p=p,
        q=q,
        place=place,
        hobby=hobby,
        hobby2=hobby2,
        thing=thing(rng),
        chore=rng.choice(CHORES),
        food=thing(rng),
        age=words(rng.randint(5, 12)),
    )
