"""``Neuron``: all that a store knows of one neuron, ready to be shown."""

from __future__ import annotations

import itertools
import shlex
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Float32

from ..core.defaults import CASE_SHOWN, EXAMPLES_SHOWN
from ..core.errors import counted
from ..core.neuron_names import ExpertNeuron, Experts
from ..core.number_text import decimals, format_number, format_probability, format_share
from ..core.provenance import Live
from ..core.sheets import (
    Block,
    Column,
    Content,
    Facts,
    Histogram,
    Line,
    Span,
    Style,
    Table,
    Words,
    line,
    rows,
)
from ..core.token_text import printable
from ..core.types import CASES, LOGIT
from ..show.result import BRIEF, Result
from ..vocabulary.projections import WHY
from ..vocabulary.vectors import SIGNS
from .contexts import Bin, Columns, Example, Passage, Window, clipped, example_list, merged
from .neuron_sides import NEGATIVE, POSITIVE, STRONG, NeuronSide, count_tokens, means, scored, side_signs, weak_sign
from .state import COLUMNS, PARTS

CONTEXTS = 3  # examples of each meaning
MEANINGS = 5  # with their examples; of the others, the share
BINS, DRAWN = 16, 40  # of a histogram as data, and drawn
FREQUENT, FEW = 8, 3  # tokens, and in few words
RARE = 0.0005  # the least share that is told in percent

KINDS = ("top", "quantile")  # shown unless others are asked for
GATED_KINDS_SHOWN = (*CASES, "quantile")  # the largest coefficients mix cases that mean different things

EXPLAINED = (
    "A neuron writes its coefficient times its value; it fires where its pre-activation is above 0. Promoted and "
    "suppressed are the tokens whose logits that raises and lowers most. The largest coefficients show the extremes; "
    "the random sequences show what is typical."
)
GATED_EXPLAINED = (
    " A gated neuron's coefficient is act(gate) times a linear part; its key and its gate are excited or raised by the "
    "tokens whose embeddings raise the linear part and the gate most, and its pre-activation is its gate's. Its "
    "coefficient may be large with either sign: each is a side of its own, and on the negative side the value's sign "
    "turns, so that it promotes what it suppresses on the other."
)

TITLES = {
    "top": ("Largest coefficients", "the sequences in which it fires most strongly"),
    "bottom": ("Smallest coefficients", "the sequences with its lowest coefficient"),
    "max": (
        "Random sequences by their largest coefficient",
        "what is typical of the whole corpus, strongest first: the largest alone mislead",
    ),
    "min": (
        "Random sequences by their smallest coefficient",
        "what is typical of the whole corpus, lowest first",
    ),
    "random": ("Random positions", "in the order of the text"),
    "gate+ linear+": ("gate+ linear+", "gate above 0, linear part above 0; strongest first"),
    "gate+ linear-": ("gate+ linear-", "gate above 0, linear part not; strongest first"),
    "gate- linear+": ("gate- linear+", "gate not above 0, linear part above 0; strongest first"),
    "gate- linear-": ("gate- linear-", "neither above 0; strongest first"),
}
"""The title of each group of examples, and a note."""
SIGN_OF = {"top": POSITIVE, "max": POSITIVE, "bottom": NEGATIVE, "min": NEGATIVE, "random": ""}
"""Of the coefficients of a group of examples; of a case its examples tell."""
KEYS = {end: WHY[end] for end in itertools.product(("gate", "key"), SIGNS)}
"""What the two keys of a gated neuron read."""
WRITTEN: Mapping[str, Style] = dict(zip(SIGNS, ("adds", "takes"), strict=True))


@dataclass(frozen=True, eq=False, repr=False)
class Scanned(Live):
    """What a neuron knows of the :class:`ffnmem.scanning.Store` that it is of."""

    folder: Path
    manifest: Mapping[str, Any]

    @property
    @abstractmethod
    def model(self) -> str: ...

    @property
    @abstractmethod
    def gated(self) -> bool: ...

    @property
    @abstractmethod
    def provenance(self) -> dict[str, Any]: ...

    @property
    @abstractmethod
    def experts(self) -> Experts: ...

    @abstractmethod
    def shaded_at_once(self, neuron: Neuron) -> Neuron: ...

    @abstractmethod
    def shaded_on_page(self, neurons: Sequence[Neuron], listed: int | None) -> Sequence[Neuron]: ...


@dataclass(frozen=True)
class Band:
    """Examples of one quantile band, or all of another kind (then without a label)."""

    label: str
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class Group:
    """Examples of one kind, quantiles of one extreme. ``folded``: worth showing only on request."""

    name: str
    bands: tuple[Band, ...]
    folded: bool = False

    @property
    def title(self) -> str:
        return TITLES[self.name][0]

    @property
    def sign(self) -> str:
        """Of its coefficients; empty if it has both."""
        return SIGN_OF.get(self.name, NEGATIVE if self.examples()[0].negative else POSITIVE)

    @property
    def gated(self) -> bool:
        """Whether its examples have gates and linear parts."""
        return any(example.parts for example in self.examples())

    def examples(self) -> list[Example]:
        """Of all its bands."""
        return [example for band in self.bands for example in band.examples]

    def table(self, largest: float = 1.0) -> Table:
        """Examples one a row, the firing tokens below each other; where tokens are shaded, ``largest`` most."""
        several = any(band.label for band in self.bands)
        parts = PARTS if self.gated else ()
        shown = rows(
            *[Column("sequences", soft=True)] * several,
            Column("coefficient", "number"),
            *(Column(name, "number", places=2, sign=True, soft=True) for name in parts),
            context_column(self.examples(), largest),
        )
        if parts:
            shown.add(*[None] * several, None, *map(line, parts), None)
        for band in self.bands:
            for index, one in enumerate(band.examples):
                label = [band.label if index == 0 else None] * several
                shown.add(*label, one.coefficient, *one.parts[: len(parts)], one)
        return shown.table(self.title, TITLES[self.name][1], ruled=False, folded=self.folded)


@dataclass(frozen=True, eq=False, repr=False)
class Known(Result):
    """What cards say of a neuron, and what they read it from: the fields of :class:`Neuron`, its tables of any kind.

    ``measured``: whether its meanings may be kept beside the store; else none are looked for.
    """

    tables: ClassVar = {
        "about": "",
        "case_table": "",
        "distribution": "",
        "parts": "",
    }
    main = "examples"
    only_shown = "about case_table distribution parts"
    only_data = "layer neuron description stats sides cases lens values histogram by_token by_position passages"
    in_full = "examples values histogram by_token by_position"

    store: Scanned
    layer: int
    neuron: int
    stats: dict[str, Any]
    examples: Columns
    windows: tuple[Window, ...]
    histogram: Columns
    by_token: Columns
    by_position: Columns
    values: Columns
    context: int = 12
    lack: str = ""
    passages: dict[int, Passage] = field(default_factory=dict)
    description: str = ""
    measured: bool = True

    @property
    def provenance(self) -> dict[str, Any]:
        """Of the store."""
        return self.store.provenance

    @property
    def experts(self) -> Experts:
        """The sizes of layers with experts, by layer."""
        return self.store.experts

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.neuron}"

    @property
    def gated(self) -> bool:
        """Whether it has a gate beside its key."""
        return self.store.gated

    @property
    def cases(self) -> tuple[dict[str, Any], ...]:
        """Of a gated neuron, for each sign case: case, share (of positions), mean (coefficient; NaN for none)."""
        if not self.gated:
            return ()
        return tuple(
            {"case": case, "share": self.stats[f"share_{column}"], "mean": self.stats[f"mean_{column}"]}
            for case, column in zip(CASES, COLUMNS, strict=True)
        )

    @cached_property
    def meanings(self) -> tuple[Any, ...]:
        """What :func:`ffnmem.polysemanticity` keeps of it beside the store, its :class:`ffnmem.neurons.Meanings` for
        each
        sign; empty if nothing is."""
        if not self.measured:
            return ()
        # The one thing of a card that is from a subpackage above, which reads stores: looked up when it is asked for.
        read = import_module("ffnmem.neurons.concepts").saved_meanings
        return read(self.store, self.layer, self.neuron, k=CONTEXTS, context=self.context)

    @property
    def largest(self) -> float:
        """The largest magnitude of its coefficient."""
        return max(abs(float(self.stats["max"])), abs(float(self.stats["min"])))

    @property
    def lens(self) -> str:
        """What the tokens of its value were read through."""
        sides = zip(self.values["side"], self.values["lens"], strict=True)
        return next((str(lens) for side, lens in sides if side == "value"), LOGIT)

    def tokens(self, sign: str, side: str = "value") -> list[str]:
        """The tokens that its value promotes, or suppresses, most; best first. Of a gated neuron also those that raise,
        or lower, its ``side`` "gate" or "key" most."""
        return [text for text, _ in self.scores(sign, side)]

    def scores(self, sign: str, side: str = "value") -> list[tuple[str, float]]:
        """:meth:`tokens` with their scores."""
        return self.scored_tokens.get((side, sign), [])

    @cached_property
    def scored_tokens(self) -> dict[tuple[str, str], list[tuple[str, float]]]:
        """Tokens with their scores by side and sign, best first."""
        columns = (self.values[name] for name in ("rank", "side", "sign", "token", "score"))
        found: dict[tuple[str, str], list[tuple[str, float]]] = {}
        for _, side, sign, text, score in sorted(zip(*columns, strict=True), key=itemgetter(0)):
            found.setdefault((side, sign), []).append((str(text), score))
        return found

    def bins(self, most: int = BINS) -> tuple[Bin, ...]:
        """The histogram in at most ``most`` bins; its ends are the least and the largest coefficient."""
        return merged(clipped(self.histogram, self.stats["min"], self.stats["max"]), most)

    @property
    def weak(self) -> str:
        """The sign of which its coefficients stay near 0; empty where there is none."""
        return weak_sign(self.stats, self.gated)

    @cached_property
    def sides(self) -> tuple[NeuronSide, ...]:
        """Its sides, the stronger first."""
        return tuple(self.side(sign) for sign in side_signs(self.stats, self.gated))

    def extreme(self, sign: str) -> float:
        """The coefficient of a sign that is furthest from 0; 0 where there is none."""
        return max(0.0, float(self.stats["max"])) if sign == POSITIVE else min(0.0, float(self.stats["min"]))

    def side(self, sign: str) -> NeuronSide:
        """What it does with coefficients of a sign, as far as the examples tell that were read."""
        extreme, factor = self.extreme(sign), 1 if sign == POSITIVE else -1
        columns = (self.examples[name] for name in ("kind", "coefficient", "sequence", "position"))
        strong = {
            (sequence, position): window
            for kind, coefficient, sequence, position, window in zip(*columns, self.windows, strict=True)
            if kind not in ("quantile", "random") and factor * coefficient >= STRONG * abs(extreme) > 0
        }
        before, here, after = (count_tokens(strong.values(), step) for step in (-1, 0, 1))
        promoted, suppressed = SIGNS[::factor]
        return NeuronSide(
            sign=sign,
            extreme=extreme,
            promotes=[(text, factor * score) for text, score in self.scores(promoted)],
            suppresses=[(text, factor * score) for text, score in self.scores(suppressed)],
            examples=len(strong),
            preceded_by=before,
            fires_at=here,
            followed_by=after,
            excited_by=sorted(self.frequent, key=lambda row: -factor * row[1])[:FREQUENT],
            meanings=next((found for found in self.meanings if found.sign == sign), None),
        )

    @property
    def meaning_examples(self) -> list[Example]:
        """Those that stand with the meanings of its sides."""
        found = (side.meanings.first(MEANINGS) for side in self.sides if side.meanings)
        return [example for first in found for meaning in first for example in meaning.examples]

    def groups(self, listed: int | None = None) -> tuple[Group, ...]:
        """The examples by kind, as it holds them, of a gated neuron those of the stronger sign first: of a kind at most
        ``listed`` (default 10, of a case 5), of a band all. None twice, whether by place or by text, nor those that
        stand with its meanings."""
        found: dict[str, dict[str, list[Example]]] = {}
        columns = (self.examples[name] for name in ("kind", "extreme", "band_low", "band_high"))
        examples = example_list(self.examples, self.windows, self.largest, self.passages)
        seen = {key for example in self.meaning_examples for key in (example.place, example.text)}
        for kind, extreme, low, high, example in zip(*columns, examples, strict=True):
            keys = {example.place, example.text}
            if keys & seen:
                continue
            name, label = (extreme, band_label(low, high)) if kind == "quantile" else (kind, "")
            band = found.setdefault(name, {}).setdefault(label, [])
            if kind == "quantile" or len(band) < shown_of(kind, listed):
                band.append(example)
                seen |= keys
        groups = (
            Group(
                name,
                tuple(Band(label, tuple(band)) for label, band in bands.items()),
                folded=name in ("max", "min") and SIGN_OF[name] == self.weak,
            )
            for name, bands in found.items()
        )
        signs = [side.sign for side in self.sides] if self.gated else []
        return tuple(sorted(groups, key=lambda group: [*signs, group.sign].index(group.sign)))

    @property
    def frequent(self) -> list[tuple[str, float, int]]:
        """The frequent tokens that occurred, with its mean coefficient at each and their number, the highest mean
        first."""
        columns = (self.by_token[name] for name in ("token", "mean", "count"))
        return [row for row in zip(*columns, strict=True) if row[2] > 0]

    @property
    def positions(self) -> list[tuple[str, float, int]]:
        """The same by position: positions, mean, count."""
        return list(zip(*(self.by_position[name] for name in ("positions", "mean", "count")), strict=True))

    @property
    def lead(self) -> str:
        """What a page of it begins with: how to read it."""
        corpus = self.store.manifest["corpus"]
        return (
            f"What a scan of {corpus['source']} ({counted(corpus['documents'], 'document')}, "
            f"{counted(self.store.manifest['tokens'], 'token')}) found. {EXPLAINED}"
            f"{GATED_EXPLAINED if self.gated else ''}"
        )

    def parts(self, top: int | None = None) -> Iterator[Block]:
        """Its sides, the stronger first, each with what it fires at if there are several, its meanings and examples."""
        groups = self.groups(listed_of(top))
        several = len(self.sides) > 1
        for side in self.sides:
            own = [group for group in groups if group.sign == side.sign] if several else groups
            if several:
                yield Facts(side.facts(), side.title.capitalize())
            if side.meanings:
                yield side.meanings.listing(MEANINGS, self.passages, self.largest)
            yield from (group.table(self.largest) for group in own)
        if several:
            yield from (group.table(self.largest) for group in groups if not group.sign)
        folded = any(group.folded for group in groups)
        yield from (Words.of(hint, "soft") for hint in self.hints(folded))

    @property
    def title(self) -> str:
        return f"Neuron {self.name} of {self.store.model}"

    @property
    def verdict(self) -> Line:
        """What it fires at and writes, of each side that it has; nothing where no example says so."""
        parts: list[Span] = []
        for side in self.sides:
            if clause := side.sentence:
                lead = f"{' ' if parts else ''}{side.title.capitalize()}: " if self.gated else ""
                first = clause[0] if lead else replace(clause[0], text=clause[0].text.capitalize())
                parts += [*([Span(lead)] if lead else ()), first, *clause[1:], Span(".")]
        return tuple(parts)

    def hints(self, folded: bool) -> list[str]:
        """What the card does not have, and the commands that show or measure it."""
        of, both = f"--store {shlex.quote(str(self.store.folder))}", " --sign both" if self.gated else ""
        found = []
        if folded:
            words, kind = ("smallest", "bottom") if self.weak == NEGATIVE else ("largest", "top")
            end = f"{self.extreme(self.weak):.3f}"
            found.append(f"its {words} coefficients stay near 0 (they end at {end}); --kind {kind} lists them")
        unmeasured = [side.sign for side in self.sides if side.meanings is None]
        if unmeasured:
            which = f" of its {unmeasured[0]} side" if len(self.sides) > len(unmeasured) else ""
            found.append(
                f"one meaning or several{which}: not measured yet; ffnmem meanings {self.name} {of} "
                f"says it, and ffnmem polysemanticity {of}{both} keeps it of all neurons, for their cards"
            )
        if any(side.meanings is not None and side.meanings.lacks_examples for side in self.sides):
            found.append(
                f"too few examples for a verdict: ffnmem polysemanticity {of}{both} --budget 0 reads all that the "
                f"store has, and a scan of more text than these {self.stats['count']:,} tokens (ffnmem scan CORPUS "
                f"--model {shlex.quote(self.store.model)} --out DIR) finds more"
            )
        return found

    @property
    def about(self) -> Facts:
        """What it fires at, and what it then writes, if it has one side; and its numbers."""
        stats = self.stats
        places = decimals([stats["max"], stats["min"], stats["mean"]])
        keys = (
            {}
            if not self.gated or self.lack
            else {
                name: scored(self.scores(sign, side), WRITTEN[sign])
                for (side, sign), name in KEYS.items()
                if any(score for _, score in self.scores(sign, side))  # none of a key of zeros (GPT-OSS)
            }
        )
        rows: dict[str, Content | None] = {
            "expert": self.routed(),
            "described as": printable(self.description) or None,
            **(self.sides[0].facts() if len(self.sides) == 1 else {}),
            **({"promotes": self.lack} if self.lack else {}),
            "lens": None if self.lens == LOGIT else f"{self.lens}: the value as it arrives at the unembedding",
            **keys,
            "fires": self.fires(),
            "coefficient": ", ".join(f"{x} {format_number(stats[x], places)}" for x in ("mean", "std", "min", "max"))
            if stats["count"]
            else None,
            "shape": f"skewness {stats['skewness']:.2f}, excess kurtosis {stats['kurtosis']:.2f}"
            if stats["count"]
            else None,
            "at position": means(self.positions, places, whole=True),
        }
        return Facts({name: value for name, value in rows.items() if value is not None})

    @property
    def in_expert(self) -> ExpertNeuron | None:
        """Its name in its expert; None in a dense layer."""
        sizes = self.store.experts.get(self.layer)
        return None if sizes is None else sizes.name(self.neuron)

    def routed(self) -> str | None:
        """Its name in its expert, and how much of the text that was given; None in a dense layer."""
        name = self.in_expert
        if name is None:
            return None
        share = f"{format_probability(self.stats['routed'])} of tokens are" if self.stats["count"] else "no token was"
        given = "measured over all tokens" if name.expert is None else f"{share} routed to this expert"
        return f"{self.layer}.{name} ({given})"

    @property
    def counted_tokens(self) -> str:
        """What its numbers are of: in a layer of experts the tokens routed to its own."""
        return "tokens" if self.in_expert is None or self.in_expert.expert is None else "routed tokens"

    def fires(self) -> str:
        """How often the pre-activation was above zero."""
        stats = self.stats
        tokens = f"{stats['count']:,} {self.counted_tokens}"
        if stats["dead"]:
            return f"never in {tokens}: dead" if stats["count"] else "never: dead"
        rate = format_probability(stats["firing_rate"])
        zeros = f", exactly 0 at {format_share(stats['zero_share'])}" if stats["zero_share"] >= RARE else ""
        return f"at {rate} of {tokens}{zeros}"

    @property
    def case_table(self) -> Table | None:
        """The sign cases of a gated neuron: how often each occurs, and the mean coefficient there."""
        if not self.gated:
            return None
        shown = rows("case", Column("positions", "percent"), Column("mean coefficient", "number", sign=True, bars=True))
        for one in self.cases:
            shown.add(one["case"], one["share"], one["mean"])
        return shown.table()

    @property
    def distribution(self) -> Histogram | None:
        """The histogram of its coefficient; None where nothing was counted."""
        found = self.bins(DRAWN)
        edges = (*(one.low for one in found), *(one.high for one in found[-1:]))
        return Histogram(edges, tuple(one.count for one in found), "coefficient") if found else None


@dataclass(frozen=True, eq=False, repr=False)
class Neuron(Known):
    """One neuron of a store.

    Attributes:
        store: where it comes from.
        layer, neuron: which.
        stats: its row of :meth:`Store.stats`.
        examples: as :meth:`Store.examples` gives them, of the kinds asked for.
        windows: the tokens around each row of ``examples``.
        histogram, by_token, by_position, values: as the store's methods of these names.
        context: tokens on each side in ``windows``.
        lack: why ``values`` has no rows, where it has none; else empty.
        passages: by sequence, its coefficients at every token of the examples that are shaded: of
            ``Store.neuron(…, shade=True)`` or :meth:`Store.shaded`, else none.
        description: in words, where :meth:`ffnmem.describing.Descriptions.on` has put them there; else empty.
    """

    examples: pd.DataFrame
    histogram: pd.DataFrame
    by_token: pd.DataFrame
    by_position: pd.DataFrame
    values: pd.DataFrame

    @property
    def coefficients(self) -> tuple[Float32[np.ndarray, " window"] | None, ...]:
        """The coefficient at each token of ``windows``; None for those that are not shaded."""
        places = zip(self.examples["sequence"].tolist(), self.examples["position"].tolist(), self.windows, strict=True)
        return tuple(
            self.passages[sequence].within(position, window) if sequence in self.passages else None
            for sequence, position, window in places
        )

    def __repr__(self) -> str:
        rate = (
            f"fires at {format_probability(self.stats['firing_rate'])} of {self.counted_tokens}"
            if self.stats["count"]
            else "saw no tokens"
        )
        fires_at = "".join(f" {text!r}" for text, _ in self.sides[0].fires_at[:FEW])
        return printable(f"Neuron({self.name} of {self.store.model}: {rate}, most at{fires_at or ' none'})")

    def on_page(self, top: int | None = BRIEF) -> Neuron:
        """With shaded tokens, where the store's model is at hand."""
        return self.store.shaded_on_page([self], listed_of(top))[0]

    def _repr_html_(self) -> str:
        """Its card; every token of the examples is shaded where the store holds its model and that takes a second or
        two."""
        return Result._repr_html_(self if self.passages else self.store.shaded_at_once(self))


def context_column(examples: Sequence[Example], largest: float) -> Column:
    """A column of examples; where their tokens are shaded, it says what the strongest shade is."""
    any_shaded = any(example.shades for example in examples)
    scale = f"a coefficient of {format_number(largest, decimals([largest]))}" if any_shaded else ""
    return Column("context", "context", scale=scale)


def listed_of(top: int | None) -> int | None:
    """How many examples of a kind a card lists, by how many rows are asked for: all for None, None for the usual."""
    return None if top == BRIEF else sys.maxsize if top is None else top


def shown_of(kind: str, listed: int | None) -> int:
    """How many examples of a kind a card shows."""
    return (CASE_SHOWN if kind in CASES else EXAMPLES_SHOWN) if listed is None else listed


def band_label(low: float, high: float) -> str:
    """A band of quantiles in words; the highest are the strongest."""
    if high == 1:
        return f"top {100 * (1 - low):.3g}%"
    return f"lowest {100 * high:.3g}%" if low == 0 else f"{100 * low:.3g}–{100 * high:.3g}%"


def kinds_shown(store: Scanned) -> tuple[str, ...]:
    """The kinds of examples that a card shows unless others are asked for."""
    return GATED_KINDS_SHOWN if store.gated else KINDS
