"""Small English grammar: articles, plurals, verb forms, numbers, pronouns."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass


def listed(line: str) -> list[str]:
    """The words of one line, in order."""
    return line.split()


IRREGULAR_PLURALS = {
    "knife": "knives",
    "shelf": "shelves",
    "leaf": "leaves",
    "loaf": "loaves",
    "child": "children",
    "man": "men",
    "woman": "women",
    "person": "people",
    "foot": "feet",
    "tooth": "teeth",
    "tomato": "tomatoes",
    "potato": "potatoes",
    "scarf": "scarves",
    "half": "halves",
    "mouse": "mice",
    "bookshelf": "bookshelves",
}
IRREGULAR_VERBS = {
    "be": ("was", "been"),
    "begin": ("began", "begun"),
    "break": ("broke", "broken"),
    "bring": ("brought", "brought"),
    "build": ("built", "built"),
    "buy": ("bought", "bought"),
    "catch": ("caught", "caught"),
    "choose": ("chose", "chosen"),
    "come": ("came", "come"),
    "cut": ("cut", "cut"),
    "dig": ("dug", "dug"),
    "do": ("did", "done"),
    "draw": ("drew", "drawn"),
    "drink": ("drank", "drunk"),
    "drive": ("drove", "driven"),
    "eat": ("ate", "eaten"),
    "fall": ("fell", "fallen"),
    "feed": ("fed", "fed"),
    "feel": ("felt", "felt"),
    "find": ("found", "found"),
    "fly": ("flew", "flown"),
    "forget": ("forgot", "forgotten"),
    "get": ("got", "got"),
    "give": ("gave", "given"),
    "go": ("went", "gone"),
    "grow": ("grew", "grown"),
    "have": ("had", "had"),
    "hear": ("heard", "heard"),
    "hide": ("hid", "hidden"),
    "hold": ("held", "held"),
    "keep": ("kept", "kept"),
    "know": ("knew", "known"),
    "leave": ("left", "left"),
    "lend": ("lent", "lent"),
    "lose": ("lost", "lost"),
    "make": ("made", "made"),
    "meet": ("met", "met"),
    "pay": ("paid", "paid"),
    "put": ("put", "put"),
    "read": ("read", "read"),
    "ride": ("rode", "ridden"),
    "ring": ("rang", "rung"),
    "run": ("ran", "run"),
    "say": ("said", "said"),
    "see": ("saw", "seen"),
    "sell": ("sold", "sold"),
    "send": ("sent", "sent"),
    "sew": ("sewed", "sewn"),
    "sing": ("sang", "sung"),
    "sit": ("sat", "sat"),
    "sleep": ("slept", "slept"),
    "speak": ("spoke", "spoken"),
    "stand": ("stood", "stood"),
    "sweep": ("swept", "swept"),
    "swim": ("swam", "swum"),
    "take": ("took", "taken"),
    "teach": ("taught", "taught"),
    "tell": ("told", "told"),
    "think": ("thought", "thought"),
    "throw": ("threw", "thrown"),
    "wake": ("woke", "woken"),
    "wear": ("wore", "worn"),
    "win": ("won", "won"),
    "write": ("wrote", "written"),
}
DOUBLING = frozenset(
    listed(
        "stop plan cut put sit run swim get dig chat clap drop stir wrap tap hop win begin "
        "let nod shop trip slip mop forget"
    )
)
VOWELS = "aeiou"
ONES = listed(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
)
TENS = listed("zero ten twenty thirty forty fifty sixty seventy eighty ninety")
ORDINALS = listed("zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth")


@dataclass(frozen=True)
class Person:
    """A named character (or a pair of them) with the pronouns that refer back."""

    name: str
    subj: str
    obj: str
    poss: str
    refl: str
    plural: bool = False

    @property
    def Subj(self) -> str:
        return self.subj.capitalize()

    @property
    def Poss(self) -> str:
        return self.poss.capitalize()

    @property
    def was(self) -> str:
        return "were" if self.plural else "was"

    @property
    def is_(self) -> str:
        return "are" if self.plural else "is"

    @property
    def has(self) -> str:
        return "have" if self.plural else "has"

    @property
    def does(self) -> str:
        return "do" if self.plural else "does"

    @property
    def own(self) -> str:
        """The name in the possessive case."""
        return self.name + ("'" if self.name.endswith("s") else "'s")

    def verb(self, phrase: str) -> str:
        """A present-tense verb phrase that agrees with this person."""
        return phrase if self.plural else third(phrase)


@dataclass(frozen=True)
class Noun:
    """A singular noun phrase that templates can show with an article or in the plural."""

    word: str

    def __str__(self) -> str:
        return self.word

    def __format__(self, spec: str) -> str:
        return format(self.word, spec)

    @property
    def a(self) -> str:
        return a(self.word)

    @property
    def A(self) -> str:
        return cap(a(self.word))

    @property
    def pl(self) -> str:
        return plural(self.word)

    @property
    def Pl(self) -> str:
        return cap(plural(self.word))


def cap(text: str) -> str:
    """The text with its first character in upper case."""
    return text[:1].upper() + text[1:]


def a(phrase: str) -> str:
    """The phrase after "a" or "an"."""
    low = phrase.lower()
    vowel = low[0] in VOWELS and not low.startswith(("uni", "use", "one", "eu"))
    if vowel or low.startswith(("hour", "honest")) or low.split("-")[0] in ("8", "11", "18"):
        return "an " + phrase
    return "a " + phrase


def plural(phrase: str) -> str:
    """The plural of a noun phrase; in "loaf of bread" the head changes."""
    head, of, rest = phrase.partition(" of ")
    if of:
        return plural(head) + of + rest
    before, space, word = phrase.rpartition(" ")
    if word in IRREGULAR_PLURALS:
        word = IRREGULAR_PLURALS[word]
    elif word.endswith(("s", "x", "ch", "sh", "z")):
        word += "es"
    elif word.endswith("y") and word[-2] not in VOWELS:
        word = word[:-1] + "ies"
    else:
        word += "s"
    return before + space + word


def count(number: int, noun: str) -> str:
    """A number in words with its noun: "one cup", "three cups"."""
    return f"{words(number)} {noun if number == 1 else plural(noun)}"


def _first(phrase: str) -> tuple[str, str]:
    verb, space, rest = phrase.partition(" ")
    return verb, space + rest


def third(phrase: str) -> str:
    """The third person singular of a verb phrase: "wash it" gives "washes it"."""
    verb, rest = _first(phrase)
    special = {"have": "has", "be": "is", "do": "does", "go": "goes"}
    if verb in special:
        return special[verb] + rest
    if verb.endswith(("s", "x", "ch", "sh", "z")):
        return verb + "es" + rest
    if verb.endswith("y") and verb[-2] not in VOWELS:
        return verb[:-1] + "ies" + rest
    return verb + "s" + rest


def _regular_past(verb: str) -> str:
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in VOWELS:
        return verb[:-1] + "ied"
    return verb + (verb[-1] if verb in DOUBLING else "") + "ed"


def past(phrase: str) -> str:
    """The simple past of a verb phrase: "go home" gives "went home"."""
    verb, rest = _first(phrase)
    return (IRREGULAR_VERBS[verb][0] if verb in IRREGULAR_VERBS else _regular_past(verb)) + rest


def participle(phrase: str) -> str:
    """The past participle of a verb phrase: "go home" gives "gone home"."""
    verb, rest = _first(phrase)
    return (IRREGULAR_VERBS[verb][1] if verb in IRREGULAR_VERBS else _regular_past(verb)) + rest


def ing(phrase: str) -> str:
    """The -ing form of a verb phrase: "make tea" gives "making tea"."""
    verb, rest = _first(phrase)
    if verb.endswith("ie"):
        stem = verb[:-2] + "y"
    elif verb in DOUBLING or verb == "travel":
        stem = verb + verb[-1]
    elif verb.endswith("e") and not verb.endswith("ee") and len(verb) > 2:
        stem = verb[:-1]
    else:
        stem = verb
    return stem + "ing" + rest


def words(number: int) -> str:
    """A whole number below one thousand in words; larger ones stay digits."""
    if number < 0 or number > 999:
        return str(number)
    if number < 20:
        return ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return TENS[tens] + (f"-{ONES[ones]}" if ones else "")
    hundreds, rest = divmod(number, 100)
    return f"{ONES[hundreds]} hundred" + (f" and {words(rest)}" if rest else "")


def nth(number: int) -> str:
    """The short ordinal: 1st, 2nd, 3rd, 11th."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def both(items: Sequence[str], last: str = "and") -> str:
    """Items joined with commas and a final "and"."""
    if len(items) < 3:
        return f" {last} ".join(items)
    return f"{', '.join(items[:-1])}, {last} {items[-1]}"


def tell(rng: random.Random, slots: Sequence[Sequence[str]], **context: object) -> str:
    """One template out of each slot, filled from the context; empty templates drop out."""
    chosen = (rng.choice(slot) for slot in slots)
    return " ".join(cap(text.format(**context)) for text in chosen if text)


def gather(rng: random.Random, make: Callable[[], str], low: int = 30, high: int = 75, sep: str = " ") -> str:
    """Different pieces made one after another until they hold enough words."""
    target = rng.randint(low, high)
    parts: list[str] = []
    total = tries = 0
    while total < target and tries < 60:
        tries += 1
        part = make()
        if part not in parts:
            parts.append(part)
            total += len(part.split())
    return sep.join(parts)
