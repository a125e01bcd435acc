"""``concept``: which neurons tell two sets of texts apart, and whether that is chance, or a word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float32, Float64

from ..core.number_text import format_share
from ..core.progress import Progress
from ..core.provenance import Provenance
from ..core.token_text import printable
from ..core.types import ContextLength, Count, Division, Seed, TextSource, TextUnit, checked
from ..corpus.excerpts import CONTEXT
from ..models.model import Model
from ..prompts.captures import capture
from ..show.result import Result
from .reading import Units, read_units
from .telling import Words, areas, compare, interval, words_of
from .texts import TextTokens, read_sets, tokenise

LEVEL = 0.05
SUMS = (1, 2, 4, 8, 16)
RANDOM = 20  # sets of as many neurons
READ = 32  # texts that are read again for what neurons fire at
TOKENS, CONTEXTS, BEFORE, AFTER = 6, 3, 5, 3
MOST = 0.5  # of a neuron's squared coefficients are at one word


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Concept(Result):
    """Which neurons tell two sets of texts apart. Made by :func:`ffnmem.concept`.

    An area (AUROC) is the share of pairs of texts, one of each set, in which the concept's has the larger number.

    Attributes:
        compared: areas on the half of the texts that nothing was chosen by, with 95% intervals, and on the other: of
            sums of the first neurons in standard deviations (and of as many at random), the best single word, the
            log-odds of all words, the difference of the mean residual streams that the best layer reads.
        neurons: fires at is where a neuron is strongest in these texts, promotes what the difference of its means
            writes. One row a neuron, the areas furthest from 0.5 first: layer, neuron, auroc (on the half that it is
            chosen by), held_out, held_out_low, held_out_high, p (how often the best of all is as good under shuffled
            labels), mean_with, mean_without (over the tokens of either set), difference, word (which it says no more
            than), fires_at.
        contexts: the strongest firings of the first neurons, the token between « and ».
        layers: by layer: best (neuron), its held_out, found (how many), residual_held_out (of the stream it reads).
        values: ``[16, texts]``, of the first neurons; the concept's texts first. chosen: by which texts. texts,
            against, unit: as asked. word: the best single one. directions: ``[layers, d_model]``, of mean streams.
        null: ``[draws]``, by how much the best area is off 0.5 under shuffled labels.
    """

    heading = "sets unit found by_chance"
    tables: ClassVar = {
        "compared": "what held_out held_out_low held_out_high auroc at_random",
        "neurons": "neuron fires_at promotes held_out auroc mean_with mean_without word "
        "| held_out_low held_out_high p difference",
        "contexts": "neuron coefficient context",
        "layers": "| *",
    }
    main, uncut = "neurons", "compared"

    compared: pd.DataFrame
    neurons: pd.DataFrame
    contexts: pd.DataFrame
    layers: pd.DataFrame
    values: Float32[np.ndarray, "first texts"]
    chosen: Bool[np.ndarray, " texts"]
    texts: tuple[str, ...]
    against: tuple[str, ...]
    unit: str
    null: Float64[np.ndarray, " draws"]
    word: str
    directions: Float32[np.ndarray, "layers d_model"]
    provenance: Provenance
    model: Model | None = None

    @property
    def labels(self) -> Bool[np.ndarray, " texts"]:
        """Which of all texts are of the concept: the first ones."""
        return np.arange(len(self.chosen)) < len(self.texts)

    @property
    def sets(self) -> str:
        """How many texts there are."""
        return f"{len(self.texts):,} texts, {len(self.against):,} others; half of each to choose neurons by"

    @property
    def found(self) -> int:
        """How many neurons are better than the best under shuffled labels in 95 of 100 draws."""
        return int((self.neurons["p"] < LEVEL).sum())

    @property
    def by_chance(self) -> float:
        """The area of the best neuron under shuffled labels, on average, as if above 0.5."""
        return 0.5 + float(self.null.mean())

    @property
    def verdict(self) -> str:
        """What the first neuron tells, beside chance and words."""
        first, every, chance = self.neurons.iloc[0], f"{len(self.neurons):,} neurons", format_share(self.by_chance)
        word, words = (format_share(abs(area - 0.5) + 0.5) for area in self.compared["held_out"].iloc[-3:-1])
        own, other = (format_share(abs(first[name] - 0.5) + 0.5) for name in ("auroc", "held_out"))
        said = f"under shuffled labels the best of {every} orders {chance}"
        name, side = f"{first['layer']}.{first['neuron']}", "larger" if first["auroc"] > 0.5 else "smaller"
        if not self.found:
            return f"No neuron tells the texts apart beyond chance: {name} orders {own} of the pairs of texts, {said}."
        one = f"The best single word, “{printable(self.word)}”, orders {word}"
        if first["word"]:
            one = f"It says no more than the word “{printable(first['word'])}”, of which it is a detector"
        return (
            f"In {other} of pairs of texts that it was not chosen by, {name} has the {side} coefficient in the "
            f"concept's; {said}. {one}; all words together order {words}."
        )


def check_concept(
    texts: Any,
    against: Any = None,
    label: str | None = None,
    unit: TextUnit = "mean",
    text: str = "text",
    documents: Division | None = None,
) -> None:
    """Refuse texts before a model is loaded."""
    read_sets(texts, against, label, unit, text, documents)


@checked
def concept(
    model: Model,
    texts: TextSource,
    against: TextSource = None,
    *,
    label: str | None = None,
    unit: TextUnit = "mean",
    context: ContextLength = CONTEXT,
    k: Count = 20,
    draws: Count = 1000,
    seed: Seed = 0,
    text: str = "text",
    documents: Division | None = None,
    progress: Progress | None = None,
) -> Concept:
    """Which neurons stand for a concept: those that tell its texts from others.

    Finds the neurons whose coefficients are larger, or smaller, in the texts of a concept than in others. They are
    chosen by half of the texts and tried on the other half, beside the best of so many by chance, what a single word
    and all words together tell, and how many neurons are enough.

    Note:
        p is by the best of all neurons under shuffled labels, on the half that neurons are chosen by. A neuron is
        called a detector of a word if more than half of its squared coefficients are there in the texts looked at, and
        the word's share of a text tells the other half apart as well, to within the neuron's interval.

    Args:
        model: from :func:`ffnmem.load`.
        texts: Texts of the concept, 8 or more: a .txt, .jsonl, .csv or .parquet file, a folder of them, or a quoted
            pattern. In Python, also a list of strings.
        against: Others to compare them with, 8 or more.
        label: In place of those: the column of TEXTS that says which are the concept's, as COLUMN=VALUE, or as COLUMN
            if it has two values, of which the first is.
        unit: What of a text is looked at: mean, over its tokens (with experts, those that are routed to a neuron's);
            max, the coefficient furthest from 0; last, the last token, as of prompts; span, what stands between [[ and
            ]].
        context: Tokens of a text that are read at most, for mean and max.
        k: of how many neurons it is looked up what they fire at.
        draws: How often labels are shuffled.
        seed: Of the halves and the shuffles.
        text: The column of the texts.
        documents: What a document of a .txt file is: what blank lines separate, a line, or all of it.
            [default: paragraph]
        progress: called with "text", the tokens read and all of them.

    Returns: A :class:`Concept`; :func:`ffnmem.steer` tries what its neurons do.

    Raises:
        InputError: fewer than eight texts of a set, a text in both, a text without its span. FileError. ModelError.

    Source: sparse probing: Gurnee et al. 2023 (2305.01610); neurons of a language: Tang et al. 2024 (2402.16438).

    Example:
        $ ffnmem concept legal.txt --against code.txt --save legal.zip
        $ ffnmem concept reviews.csv --label kind=positive --plot areas.png
    """
    mine, others = read_sets(texts, against, label, unit, text, documents)
    context = min(context, model.n_ctx)
    rows = [tokenise(model, one, unit, context) for one in (*mine, *others)]
    labels, chosen = np.arange(len(rows)) < len(mine), np.zeros(len(rows), bool)
    rng = np.random.default_rng(seed)
    for side in (True, False):
        own = rng.permutation(np.flatnonzero(labels == side))
        chosen[own[: (len(own) + 1) // 2]] = True
    units = read_units(model, rows, labels, unit, progress)
    neurons, null = rank_neurons(units, labels, chosen, draws, rng)
    words = Words.of([words_of(model, [row.ids[at] for at in row.content]) for row in rows], labels, chosen)
    values, summed = sum_neurons(units, neurons, labels, chosen, rng)
    word, (layer, directions, streams) = words.best(), best_stream(units, labels, chosen, rng)
    compared = [
        *summed,
        compare(f"the word “{printable(word)}”", words.shares([word])[0], labels, chosen),
        compare("all words (log-odds)", [words.score(one) for one in words.texts], labels, chosen),
        streams[layer],
    ]
    best = neurons.groupby("layer").agg(best=("neuron", "first"), held_out=("held_out", "first"))
    found = neurons[neurons["p"] < LEVEL].groupby("layer").size().reindex(best.index, fill_value=0)
    neurons, contexts = with_contexts(model, neurons, units, rows, words, min(k, len(neurons)))
    return Concept(
        compared=pd.DataFrame(compared),
        neurons=neurons,
        contexts=contexts,
        layers=best.assign(found=found, residual_held_out=[one["held_out"] for one in streams]).reset_index(),
        values=values,
        chosen=chosen,
        texts=mine,
        against=others,
        unit=unit,
        null=null,
        word=word,
        directions=directions,
        provenance=model.provenance(model.prepend_bos, unit=unit, context=context, draws=draws, seed=seed),
        model=model,
    )


def rank_neurons(
    units: Units, labels: np.ndarray, chosen: np.ndarray, draws: int, rng: np.random.Generator
) -> tuple[pd.DataFrame, Float64[np.ndarray, " draws"]]:
    """All neurons, the areas furthest from 0.5 first, of equal ones those whose sets lie further apart in standard
    deviations; and by how much the best is off 0.5 under shuffled labels."""
    mine, rest, null, parts = labels[chosen], labels[~chosen], np.zeros(draws), []
    shuffles = np.column_stack([mine, *(rng.permutation(mine) for _ in range(draws))])
    for layer, held in enumerate(units.neurons):
        values = np.asarray(held[:, chosen], np.float32)
        found = areas(values, shuffles)
        null = np.maximum(null, np.abs(found[:, 1:] - 0.5).max(0))
        having, without = values[:, mine], values[:, ~mine]
        apart = np.abs(having.mean(1) - without.mean(1)) / np.sqrt(having.var(1) + without.var(1) + 1e-30)
        frame = {"layer": layer, "neuron": np.arange(len(held)), "auroc": found[:, 0].astype(float), "apart": apart}
        frame |= {"held_out": areas(held[:, ~chosen], rest).astype(float)}
        parts.append(pd.DataFrame(frame | dict(zip(("mean_with", "mean_without"), units.means[layer], strict=True))))
    table = pd.concat(parts, ignore_index=True)
    off = (table["auroc"] - 0.5).abs().round(6)
    low, high = interval(table["held_out"].to_numpy(), int(rest.sum()), int((~rest).sum()))
    beaten = np.searchsorted(np.sort(null), off - 1e-5)
    table = table.assign(held_out_low=low, held_out_high=high, p=(1 + draws - beaten) / (1 + draws))
    table = table.assign(difference=table["mean_with"] - table["mean_without"])
    return table.iloc[np.lexsort((-table["apart"], -off))].drop(columns="apart").reset_index(drop=True), null


def sum_neurons(
    units: Units, neurons: pd.DataFrame, labels: np.ndarray, chosen: np.ndarray, rng: np.random.Generator
) -> tuple[Float32[np.ndarray, "first texts"], list[dict[str, Any]]]:
    """What the first neurons have in each text; and how well sums of them tell the sets apart, in standard deviations
    and with their signs in the chosen half, beside as many at random."""

    def scored(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        pairs = zip(rows["layer"], rows["neuron"], strict=True)
        values = np.stack([np.asarray(units.neurons[layer][neuron], np.float32) for layer, neuron in pairs])
        own, sign = values[:, chosen], np.where(rows["auroc"] < 0.5, -1, 1)[:, None]
        scaled = sign * (values - own.mean(1, keepdims=True)) / (own.std(1, keepdims=True) + 1e-30)
        return values, np.cumsum(scaled, 0)

    values, sums = scored(neurons.head(SUMS[-1]))
    drawn = [scored(neurons.sample(len(sums), random_state=rng))[1] for _ in range(RANDOM)]
    found = []
    for count in (size for size in SUMS if size <= len(sums)):
        words = f"neuron {neurons['layer'][0]}.{neurons['neuron'][0]}" if count == 1 else f"the first {count} neurons"
        random = np.mean([areas(one[count - 1, ~chosen], labels[~chosen]) for one in drawn])
        found.append(compare(words, sums[count - 1], labels, chosen) | {"at_random": float(random)})
    return values, found


def best_stream(
    units: Units, labels: np.ndarray, chosen: np.ndarray, rng: np.random.Generator
) -> tuple[int, Float32[np.ndarray, "layers d_model"], list[dict[str, Any]]]:
    """The layer at which the difference of mean streams tells the sets apart best, learned from half of the chosen half
    and tried on the rest of it; the differences of all layers, learned from all of it; and how well they do."""
    half = np.zeros(len(labels), bool)
    for side in (True, False):
        own = rng.permutation(np.flatnonzero(chosen & (labels == side)))
        half[own[: len(own) // 2]] = True

    def direction(stream: np.ndarray, use: np.ndarray) -> np.ndarray:
        found: np.ndarray = stream[:, use & labels].mean(1) - stream[:, use & ~labels].mean(1)
        return found

    tried, found, directions = [], [], []
    for layer, held in enumerate(units.streams):
        stream, rest = np.asarray(held, np.float64), chosen & ~half
        tried.append(float(areas(direction(stream, half) @ stream[:, rest], labels[rest])))
        directions.append(direction(stream, chosen).astype(np.float32))
        found.append(compare(f"residual stream, layer {layer}", directions[-1] @ stream, labels, chosen))
    return int(np.argmax(tried)), np.stack(directions), found


def with_contexts(
    model: Model, neurons: pd.DataFrame, units: Units, rows: Sequence[TextTokens], words: Words, k: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The neurons, the first ``k`` with the tokens that they fire at in the texts where they are strongest and the word
    that they say no more than; and their strongest firings there. Looked at are the texts of the set in which the
    neuron's mean is further from 0, and coefficients of the sign that it has there."""
    first, sides = neurons.head(k), []
    for row in first.itertuples():
        side = abs(row.mean_with) >= abs(row.mean_without)
        sign = -1 if (row.mean_with if side else row.mean_without) < 0 else 1
        mine = np.flatnonzero(words.labels == side)
        own = np.asarray(units.neurons[row.layer][row.neuron, mine], np.float32)
        sides.append((sign, mine[np.argsort(-sign * own, kind="stable")].tolist(), list[tuple[float, int, int]]()))
    ranked = (order[rank] for rank in range(READ) for _, order, _ in sides if rank < len(order))
    for at in list(dict.fromkeys(ranked))[:READ]:
        run = capture(model, torch.tensor(rows[at].ids), layers=sorted({*first["layer"]}))
        for row, (sign, order, strong) in zip(first.itertuples(), sides, strict=True):
            if at in order:
                heights = sign * run.coefficients[row.layer][0, rows[at].content, row.neuron].float()
                strong += [(height, at, where) for where, height in enumerate(heights.tolist())]
    fires, said, contexts = [], [], []
    for row, (sign, _, strong) in zip(first.itertuples(), sides, strict=True):
        strong.sort(key=lambda one: -one[0])
        ids = [rows[at].ids[rows[at].content[where]] for height, at, where in strong[:50] if height > 0]
        fires.append(list(dict.fromkeys(model.token_strings(ids)))[:TOKENS])
        said.append(word_of(strong, words, row))
        best = {at: (height, where) for height, at, where in reversed(strong)}  # each text's strongest
        for at, (height, where) in sorted(best.items(), key=lambda one: -one[1][0])[:CONTEXTS]:
            begin = max(where - BEFORE, 0)
            texts = model.token_strings([rows[at].ids[one] for one in rows[at].content[begin : where + AFTER + 1]])
            texts[where - begin] = f"«{texts[where - begin]}»"
            contexts.append((row.layer, row.neuron, sign * height, "".join(texts)))
    rest = len(neurons) - k
    lists = pd.Series([*fires, *([] for _ in range(rest))], neurons.index, object)
    found = neurons.assign(word=[*said, *[""] * rest], fires_at=lists)
    return found, pd.DataFrame(contexts, columns=["layer", "neuron", "coefficient", "context"])


def word_of(strong: Sequence[tuple[float, int, int]], words: Words, row: Any) -> str:
    """The word that a neuron says no more than, of its firings as height, text and place; "" where it says more."""
    sums: dict[str, float] = {}
    for height, at, where in strong:
        word = words.texts[at][where]
        sums[word] = sums.get(word, 0.0) + max(height, 0.0) ** 2
    word = max(sums, key=lambda one: sums[one], default="")
    told = float(areas(words.shares([word])[0][~words.chosen], words.labels[~words.chosen]))
    low = row.held_out_low if row.auroc > 0.5 else 1 - row.held_out_high
    same = bool(sums) and sums[word] > MOST * sum(sums.values()) and max(told, 1 - told) >= low
    return word if row.p < LEVEL and same else ""
