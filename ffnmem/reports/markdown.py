"""Neurons as Markdown, for notes, issues and pull requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ..scanning.store import Store
from ..show.rendering import MISSING, percent, plain, provenance_line, tiny
from ..token_text import flowing, printable, visible
from .cards import Card, Group
from .examples import Example
from .meanings import MeaningsCard

SPECIAL = re.compile(r"([\\`*_{}\[\]()#+\-.!|~>$:@^=])")
ENTITIES = {"&": "&amp;", "<": "&lt;"}


def neurons_markdown(store: Store, cards: Sequence[Card]) -> str:
    """A section a neuron; token text is escaped, so that it can neither format nor link anything."""
    name = f"Neuron {cards[0].name}" if len(cards) == 1 else f"{len(cards):,} neurons"
    corpus = store.manifest["corpus"]
    lines = [
        f"# {name} of {escaped(store.model)}",
        "",
        f"From a scan of {escaped(corpus['source'])}: {store.n_tokens:,} tokens. **Bold** marks the token at which the"
        " neuron fires.",
        "",
    ]
    for card in cards:
        lines += section(card)
    return "\n".join([*lines, f"*{escaped(provenance_line(store.provenance))}*", ""])


def section(card: Card) -> list[str]:
    """One neuron."""
    stats = card.neuron.stats
    rate = stats["firing_rate"]
    fires = "never (dead)" if stats["dead"] else percent(rate, 1) if rate >= 0.0005 else tiny(rate)
    numbers = {
        "fires": fires,
        **{name: plain(stats[name], 3) for name in ("mean", "std", "min", "max")},
        "skewness": plain(stats["skewness"]),
        "excess kurtosis": plain(stats["kurtosis"]),
    }
    lines = [f"## Neuron {card.name}", "", *table(list(numbers), [list(numbers.values())]), ""]
    lines += [f"- **promotes** {tokens(chip.token for chip in card.promoted)}"]
    lines += [f"- **suppresses** {tokens(chip.token for chip in card.suppressed)}"]
    lines += [f"- **{escaped(name)}** {tokens(chip.token for chip in chips)}" for name, chips in card.keys]
    excited = [f"{tokens([m.chip.token])} {plain(m.mean, 3)}" for m in card.frequent]
    lines += [f"- **excited by** {', '.join(excited) or MISSING}", ""]
    if card.cases:
        rows = [[escaped(case.name), percent(case.share, 1), plain(case.mean, 3)] for case in card.cases]
        lines += [*table(["case", "positions", "mean coefficient"], rows), ""]
    for found in card.meanings:
        lines += [*meanings(found), ""]
    for group in card.groups:
        if not group.folded:
            lines += [f"### {escaped(group.title)}", "", *examples(group), ""]
    return lines


def meanings(found: MeaningsCard) -> list[str]:
    """The verdict, and the meanings behind it."""
    where = " where its coefficient is negative" if found.negative else ""
    said = [part for part in (found.number, found.found.why) if part]
    rows = [
        [
            percent(one.share) if index == 0 else "",
            tokens(chip.token for chip in one.tokens) if index == 0 else "",
            plain(example.activation, 3),
            in_context(example),
        ]
        for one in found.listed
        for index, example in enumerate(one.examples)
    ]
    head = [
        f"### {found.found.verdict.capitalize()}{where}",
        "",
        *([f"{escaped('; '.join(said))}", ""] if said else []),
    ]
    more = [f"*and {found.hidden} more with {percent(found.rest)} of the activation*"] if found.hidden else []
    shown = table(["share", "trigger tokens", "coefficient", "context"], rows) if rows else []
    return [*head, *shown, *(["", *more] if more else [])]


def examples(group: Group) -> list[str]:
    labels = any(band.label for band in group.bands)
    rows = [
        [
            *([band.label if index == 0 else ""] if labels else []),
            plain(example.activation, 3),
            *(plain(part, 3) for part in example.parts),
            in_context(example),
        ]
        for band in group.bands
        for index, example in enumerate(band.examples)
    ]
    parts = ["gate", "linear"] if group.gated else []
    return table([*(["sequences"] if labels else []), "coefficient", *parts, "context"], rows)


def in_context(example: Example) -> str:
    before, after = running(example.before + example.lead), running(example.after)
    word = escaped(visible(example.word)) if example.blank else running(example.word)
    text = f"{'…' if example.cut_before else ''}{before}<b>{word}</b>{after}{'…' if example.cut_after else ''}"
    return text.strip()


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def tokens(found: Iterable[str]) -> str:
    """Tokens in quotes, so that their spaces can be seen."""
    return ", ".join(f"“{escaped(visible(token))}”" for token in found) or MISSING


def running(text: str) -> str:
    return escaped("".join(part for part, _ in flowing(text)))


def escaped(text: str) -> str:
    """Text that Markdown and HTML leave as it is."""
    return "".join(ENTITIES.get(char, char) for char in SPECIAL.sub(r"\\\1", printable(text)))
