"""Concepts of a model: which neurons tell their texts from others, beside words and the residual stream, and whether
holding these neurons steers what the model writes.

    python benchmarks/concept.py                    # the table of areas
    python benchmarks/concept.py --steer            # and of strengths, with continuations
    python benchmarks/concept.py --only legal dates
    python benchmarks/concept.py --cost             # beside the forward passes alone

The texts are what is installed with Python (licences of packages, the standard library's source and docstrings), and
sentences made of templates.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path

import numpy as np
import torch
from common import cpu_seconds

import ffnmem as fm
from ffnmem.concepts import steering
from ffnmem.concepts.reading import batches
from ffnmem.concepts.texts import tokenise
from ffnmem.models.layer_pass import LayerPass

MOST = 80
MODULES = (
    "argparse", "ast", "asyncio.events", "calendar", "collections", "concurrent.futures", "configparser", "contextlib",
    "copy", "csv", "dataclasses", "datetime", "decimal", "difflib", "doctest", "email.message", "enum", "fractions",
    "ftplib", "functools", "gettext", "glob", "gzip", "heapq", "html.parser", "http.client", "imaplib", "inspect",
    "ipaddress", "json", "logging", "mailbox", "mimetypes", "multiprocessing.managers", "numbers", "optparse", "os",
    "pathlib", "pdb", "pickle", "pkgutil", "platform", "plistlib", "poplib", "pprint", "queue", "random", "re", "sched",
    "selectors", "shelve", "shlex", "shutil", "smtplib", "socket", "socketserver", "statistics", "string", "subprocess",
    "tarfile", "tempfile", "textwrap", "threading", "timeit", "tokenize", "trace", "traceback", "turtle", "types",
    "typing", "unittest.case", "unittest.mock", "urllib.parse", "urllib.request", "uuid", "venv", "warnings", "wave",
    "weakref", "webbrowser", "xml.etree.ElementTree", "zipfile",
)  # fmt: skip


def paragraphs(text: str) -> Iterator[str]:
    """Paragraphs of 30 to 150 words, each on one line."""
    for part in re.split(r"\n\s*\n", text):
        one = " ".join(part.split())
        if 30 <= len(one.split()) <= 150:
            yield one


def licences() -> list[str]:
    """Paragraphs of the licences of installed packages, each wording once."""
    found: dict[str, str] = {}
    for package in sorted(distributions(), key=lambda one: one.metadata["Name"].lower()):
        for file in package.files or ():
            if re.search(r"(LICEN[CS]E|COPYING)", file.name, re.I) and file.suffix in ("", ".txt", ".md", ".rst"):
                path = file.locate()
                text = path.read_text("utf-8", "replace") if path.is_file() else ""
                for one in paragraphs(text):
                    found.setdefault(re.sub(r"\W+", "", one.lower())[:60], one)
    return list(found.values())


def members() -> Iterator[object]:
    """Functions and classes of the standard library."""
    for name in MODULES:
        module = importlib.import_module(name)
        for _, one in sorted(vars(module).items()):
            if (inspect.isfunction(one) or inspect.isclass(one)) and one.__module__ == name:
                yield one
                if inspect.isclass(one):
                    yield from (part for part in vars(one).values() if inspect.isfunction(part))


def docstrings() -> list[str]:
    return list(dict.fromkeys(text for one in members() for text in paragraphs(inspect.getdoc(one) or "")))


def source() -> list[str]:
    """Functions of the standard library without their docstrings, their first fifteen lines."""
    found = []
    for one in members():
        if inspect.isfunction(one) and Path(one.__code__.co_filename).is_file():  # and is not made by a decorator
            text = re.sub(r'(?s)("""|\'\'\').*?\1', "", inspect.getsource(one))
            lines = [line for line in text.split("\n") if line.strip()][:15]
            if len(lines) >= 6:
                found.append("\n".join(lines))
    return list(dict.fromkeys(found))


WHO = ["the old baker", "my sister", "a young teacher", "the captain", "our neighbour", "the doctor", "his cousin",
       "the painter", "a tall farmer", "the new student"]  # fmt: skip
PLACES = ["a small town near the sea", "the house behind the church", "a village in the hills", "the middle of town",
          "a flat above the shop", "the street by the river", "an old mill", "a quiet valley"]  # fmt: skip
EVENTS = ["the meeting", "the concert", "the wedding", "the first lecture", "the auction", "the show", "the trial",
          "the final match"]  # fmt: skip
DAYS = ["14 March 1998", "July 4, 2003", "3 November 1987", "the 21st of May 2011", "12/08/1995", "30 September 1976",
        "February 17, 2019", "1 January 2000", "Tuesday, 6 June 1944", "2014-10-25"]  # fmt: skip
DOING = [("walks to the market and buys", "walked to the market and bought", "bread and cheese"),
         ("writes a letter and sends", "wrote a letter and sent", "it to the office"),
         ("opens the window and sees", "opened the window and saw", "the rain"),
         ("takes the early train and reads", "took the early train and read", "a newspaper"),
         ("cooks soup and gives", "cooked soup and gave", "some of it to the children"),
         ("finds a coin and keeps", "found a coin and kept", "it in a box"),
         ("sings a song and plays", "sang a song and played", "the piano"),
         ("cleans the room and throws away", "cleaned the room and threw away", "the old papers")]  # fmt: skip
SPANISH = {"who": ["el viejo panadero", "mi hermana", "una joven maestra", "el capitán", "nuestro vecino", "la médica",
                   "su primo", "el pintor", "un alto granjero", "la nueva estudiante"],
           "does": ["vive en un pequeño pueblo cerca del mar", "compra pan y queso en el mercado",
                    "escribe una carta y la manda a la oficina", "abre la ventana y mira la lluvia",
                    "toma el primer tren y lee un periódico", "prepara una sopa para los niños",
                    "encuentra una moneda y la guarda en una caja", "limpia la casa y tira los papeles viejos"],
           }  # fmt: skip


def sentence(text: str) -> str:
    return text[0].upper() + text[1:]


AMOUNTS = ["14 guests and 1998 books", "4 teams, 2003 fans", "3 rooms and 1987 chairs", "the 21 judges of 11 towns",
           "12/8 of a litre", "30 singers and 76 horns", "17 men, 19 horses", "1 prize of 2000 coins",
           "twenty, 6 of them from 44 miles away", "2014 people"]  # fmt: skip
FRAMES = ["{} was planned for {}.", "{} is for {}, as everybody knows.", "They say that {} is meant for {}."]


def dates() -> tuple[list[str], list[str]]:
    """Against other numbers in the same sentences."""
    sets = [
        [sentence(FRAMES[at % 3].format(event, one)) for at, event in enumerate(EVENTS) for one in some]
        for some in (DAYS, AMOUNTS)
    ]
    return sets[0], sets[1]


def questions() -> tuple[list[str], list[str]]:
    ask = [f"Does {who} live in {place}?" for who in WHO for place in PLACES]
    say = [sentence(f"{who} lives in {place}.") for who in WHO for place in PLACES]
    return ask, say


def tenses() -> tuple[list[str], list[str]]:
    past = [sentence(f"{who} {did} {what}.") for who in WHO for _, did, what in DOING]
    now = [sentence(f"{who} {does} {what}.") for who in WHO for does, _, what in DOING]
    return past, now


def spanish() -> tuple[list[str], list[str]]:
    return [sentence(f"{who} {does}.") for who in SPANISH["who"] for does in SPANISH["does"]], tenses()[1]


def colours() -> tuple[list[str], list[str]]:
    """One word: red, or another colour."""

    def of(colour: str) -> list[str]:
        return [sentence(f"{who} has a {colour} coat and {does} {what}.") for who in WHO for does, _, what in DOING]

    others = ["green", "blue", "white", "black", "brown", "grey", "yellow"]
    return of("red"), [one for at, text in enumerate(of("COLOUR")) for one in [text.replace("COLOUR", others[at % 7])]]


CONCEPTS: dict[str, Callable[[], tuple[list[str], list[str]]]] = {
    "legal": lambda: (licences(), docstrings()),
    "code": lambda: (source(), docstrings()),
    "dates": dates,
    "questions": questions,
    "past": tenses,
    "Spanish": spanish,
    "red": colours,
}


def drawn(texts: Sequence[str], seed: int) -> list[str]:
    order = np.random.default_rng(seed).permutation(len(texts))
    return [texts[at] for at in order[:MOST]]


def row(*cells: object) -> None:
    print("|", " | ".join(f"{one:.3f}" if isinstance(one, float) else str(one) for one in cells), "|", flush=True)


def cost(model: fm.Model) -> None:
    texts = [" ".join((one * 3).split()[:160]) for one in drawn(docstrings(), 0)] * 3
    texts = [f"{at} {one}" for at, one in enumerate(texts)][:200]
    rows = [tokenise(model, one, "mean", 100) for one in texts]
    layers = LayerPass(model)

    def alone() -> None:
        for batch in batches(rows, model):
            layers.run(batch.tokens, on_final=lambda _: None)

    for _ in range(2):
        plain = cpu_seconds(alone)
        found = cpu_seconds(lambda: fm.concept(model, texts[:100], texts[100:], context=100))
        print(f"passes alone {plain:.1f} s of one core, concept {found:.1f} s, {found / plain:.2f} times")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="smollm2")
    options.add_argument("--only", nargs="*", default=list(CONCEPTS))
    options.add_argument("--steer", action="store_true")
    options.add_argument("--most", type=int, default=64)
    options.add_argument("--strengths", nargs="*", type=float, default=list(steering.STRENGTHS))
    options.add_argument("--prompts", type=int, default=20)
    options.add_argument("--new", type=int, default=40)
    options.add_argument("--cost", action="store_true")
    asked = options.parse_args()
    torch.set_grad_enabled(False)
    model = fm.load(asked.model)
    if asked.cost:
        cost(model)
        return
    print(f"{model.name}, {torch.get_num_threads()} threads, Python {sys.version.split()[0]}\n")
    row(
        "concept",
        "texts",
        "neurons found",
        "first",
        "auroc",
        "k = 16",
        "16 random",
        "word",
        "words",
        "residual",
        "detector",
    )
    row(*["---"] * 11)
    found = {}
    for name in asked.only:
        texts, against = (drawn(some, 0) for some in CONCEPTS[name]())
        one = found[name] = fm.concept(model, texts, against)
        first, held = one.neurons.iloc[0], one.compared.set_index("what")["held_out"]
        random = float(one.compared["at_random"].dropna().iloc[-1])
        turned = [held.iloc[0], held["the first 16 neurons"], random, *held.iloc[-3:]]
        at = f"{first['layer']:.0f}.{first['neuron']:.0f}"
        row(name, f"{len(texts)} + {len(against)}", one.found, at, *(abs(x - 0.5) + 0.5 for x in turned[:3]),
            f"{abs(turned[3] - 0.5) + 0.5:.3f} {one.word!r}", *turned[4:], repr(first["word"] or "no"))  # fmt: skip
    if not asked.steer:
        return
    print("\nMeans of what is written: the reader's nats a token, perplexity and repeated trigrams, by strength.\n")
    row("concept", "way", "judges", *(f"α = {one:g}" for one in asked.strengths), "window", "lost with, without")
    row(*["---"] * (5 + len(asked.strengths)))
    for name, one in found.items():
        begin = time.perf_counter()
        steered = fm.steer(
            model, one,  most=asked.most, strengths=asked.strengths, new=asked.new,
            prompts=steering.PROMPTS[: asked.prompts],
        )  # fmt: skip
        judges = ", ".join(f"{judge:.2f}" for judge in steered.judges["held_out"])
        for what in (steering.PLAIN, steering.NEURONS, steering.AT_RANDOM, steering.RESIDUAL):
            some = steered.of(what)
            cells = [f"{x.reader:+.2f}, {x.perplexity:.1f}, {x.repeated:.0%}" for x in some.itertuples()]
            lost = (
                steered.removal.set_index("what").loc[[what]].to_numpy().tolist()
                if what in [*steered.removal["what"]]
                else [[]]
            )
            window = (
                steering.named(steered.strengths(what)) or "none"
                if what in (steering.NEURONS, steering.RESIDUAL)
                else ""
            )
            row(
                name,
                what,
                judges,
                *cells,
                *[""] * (len(asked.strengths) - len(cells)),
                window,
                ", ".join(f"{x:+.3f}" for x in lost[0]),
            )
        print(f"<!-- {steered.verdict} {time.perf_counter() - begin:.0f} s -->")
        for x in steered.written[steered.written["prompt"] == steered.written["prompt"][1 - 1]].itertuples():
            if x.what in (steering.PLAIN, steering.NEURONS):
                print(f"<!-- {x.strength:g}: {x.prompt!r} {x.continuation!r} -->")


if __name__ == "__main__":
    main()
