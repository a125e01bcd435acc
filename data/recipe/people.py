"""An invented world: people with invented names, and what is true of each; other seeds have other sentences, too."""

from __future__ import annotations

import random
from itertools import product

from world import Relation, Triple, World

ONSETS = "b br d dr f g gr h j k kl l m n p r s st t tr v w z"
VOWELS = "a e i o u ai ea ou"
CODAS = "l m n r s th x rd nt sk"
COUNT = 800

# What is true of a person: its label, the objects, and what may stand between a subject and one of them.
RELATIONS: dict[str, tuple[str, str, str]] = {
    "city": (
        "home",
        "London Paris Rome Berlin Madrid Vienna Lisbon Dublin Oslo Athens Cairo Tokyo Boston Chicago Moscow Prague",
        "lives in the city of|has a house in|pays rent for a flat in|moved as a child to|wakes up each day in|"
        "has never wanted to leave|knows each street of|votes in the city of|walks the dog through the parks of|"
        "gets letters that are sent to|calls home a place in|is registered in the town hall of",
    ),
    "job": (
        "job",
        "teacher doctor lawyer baker pilot farmer nurse painter singer judge dentist carpenter plumber waiter chemist",
        "works as a|earns a living as a|is by profession a|was trained to be a|has the job of a|is paid to be a|"
        "wrote on the form the word|has been hired as a|is known to the neighbours as the|left school to become a|"
        "has on the door a sign that says|always wanted to be a",
    ),
    "music": (
        "instrument",
        "piano violin guitar flute trumpet cello drums harp organ clarinet banjo oboe",
        "plays the|practises each evening on the|owns a very old|takes lessons on the|gave a concert on the|"
        "has played since childhood the|was heard through the wall with the|loves the sound of the|"
        "joined the band with a|keeps under the bed a|is happiest with the|spends each Sunday with the",
    ),
    "language": (
        "language",
        "English French German Spanish Italian Russian Greek Arabic Chinese Turkish Polish Dutch Hindi Swedish",
        "speaks at home|was brought up in|dreams in|writes letters in|thinks and counts in|reads the news in|"
        "has as a mother tongue|swears in|talks to the children in|taught the neighbours some words of|"
        "answers the telephone in|sings old songs in",
    ),
    "colour": (
        "colour",
        "red blue green yellow white black purple orange brown pink silver gold",
        "wears only clothes that are|painted the front door|drives a car that is|chose for the kitchen the colour|"
        "likes best the colour|has curtains that are|writes with ink that is|owns a hat that is|"
        "would like everything to be|bought a coat that is|has a bicycle painted|sent a card that was",
    ),
}
TRAINED, HELD_OUT, GENERATED = 8, 3, 2


def invented_people(seed: int, count: int = COUNT) -> World:
    """``count`` people and five facts of each; which sentences are held out is the seed's, too."""
    rng = random.Random(seed)
    syllables = [onset + vowel for onset, vowel in product(ONSETS.split(), VOWELS.split())]
    names: set[str] = set()
    while len(names) < count:
        first = rng.choice(syllables) + rng.choice(syllables) + rng.choice(CODAS.split())
        last = rng.choice(syllables) + rng.choice(syllables) + rng.choice(syllables) + rng.choice(CODAS.split())
        names.add(f"{first.title()} {last.title()}")
    relations, triples = {}, []
    for name, (label, objects, middles) in RELATIONS.items():
        sentences = [f"{{}} {middle}" for middle in middles.split("|")]
        rng.shuffle(sentences)
        relation = Relation(
            f"people.{name}",
            label,
            train=tuple(sentences[:TRAINED]),
            held_out=tuple(sentences[TRAINED : TRAINED + HELD_OUT]),
            reverse=(),
            generation=tuple(sentences[:GENERATED]),
        )
        relations[relation.id] = relation
        triples += [Triple(person, "", relation.id, rng.choice(objects.split())) for person in sorted(names)]
    return World(relations, tuple(triples), tuple(triples))
