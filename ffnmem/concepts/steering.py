"""``steer``: what a model writes when the neurons of a concept are held, judged from outside and beside controls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

from ..core.errors import InputError, counted, listed
from ..core.neuron_names import NeuronNames, pair_of
from ..core.progress import Progress
from ..core.provenance import Provenance
from ..core.types import Count, Positive, Seed, checked
from ..models.model import Model
from ..models.replaying import PlainLayers
from ..show.result import Result
from .finding import LEVEL, Concept
from .telling import Words, compare, words_of
from .texts import unmarked
from .writing import Run, mean_logs, write_on

JUDGED = 24  # texts of each set that judges are tried on
FLUENT, REPEATS = 1.5, 0.2  # times the perplexity without a change, and more trigrams that are repeated
PREFIX, PIECE = 96, 32  # tokens that the reader has read before, and at most of one text
REMOVED = 12, 48  # texts of each set, and tokens of one, on which neurons are removed
STRENGTHS = (0, 1, 2, 3, 4, 5, 6)
PROMPTS = (
    "I went out this morning and", "The last time we met, she", "Most people think that", "When I opened the door,",
    "There is one thing that", "My neighbour told me", "It took us a while to", "In the middle of the room",
    "What I remember best is", "On the way home we", "The first page of the book", "He looked at me and",
    "A few days later,", "If you ask me,", "At the end of the street", "They had been waiting for",
    "The best part of it was", "Nobody knew why", "Every year in spring", "Before we begin,",
)  # fmt: skip
"""Neutral beginnings."""
PLAIN, NEURONS, AT_RANDOM, RESIDUAL = "unchanged", "the neurons", "random neurons", "residual stream"


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Steering(Result):
    """What a model writes with neurons of a concept held. Made by :func:`ffnmem.steer`.

    Attributes:
        curve: reader and words judge what is written: the higher, the more like the concept's texts. One row a way and
            a strength: what, strength, reader (by how many nats a token the unchanged model finds it likelier after
            texts of the concept than after the others) and words (their mean log-odds), with 95% intervals over
            continuations, perplexity (by the unchanged model) and repeated (trigrams that stand earlier in the same).
        judges: how well each judge tells texts apart that it was not made of: judge, held_out (the area),
            held_out_low, held_out_high.
        removal: nats a token that the model loses with neurons held at their mean without the concept, on texts of the
            concept (lost_with) and on others (lost_without), that the neurons were not chosen by.
        neurons: those held: layer, neuron, auroc, held_out, mean_with, mean_without, difference.
        written: every continuation: what, strength, draw, prompt, continuation, and what the judges say.
    """

    heading = "held window"
    tables: ClassVar = {
        "curve": "what strength reader reader_low reader_high words perplexity repeated | words_low words_high",
        "judges": "judge held_out held_out_low held_out_high",
        "removal": "what lost_with lost_without",
        "neurons": "neuron promotes held_out mean_with mean_without | auroc difference",
        "examples": "strength prompt continuation",
        "written": "| *",
    }
    uncut, only_shown = "curve judges removal", "examples"

    curve: pd.DataFrame
    judges: pd.DataFrame
    removal: pd.DataFrame
    neurons: pd.DataFrame
    written: pd.DataFrame
    provenance: Provenance
    model: Model | None = None

    @property
    def held(self) -> str:
        """How many neurons are held, in which layers."""
        return f"{counted(len(self.neurons), 'neuron')} of layers {listed(sorted(set(self.neurons['layer'])), 20)}"

    def of(self, what: str) -> pd.DataFrame:
        """The curve of one way, by strength."""
        return self.curve[self.curve["what"] == what].set_index("strength")

    def above(self, what: str) -> list[float]:
        """The strengths at which all judges that can tell the sets apart put a way above the intervals of random
        neurons and of the unchanged model."""
        mine, random, plain = self.of(what), self.of(AT_RANDOM), self.of(PLAIN).iloc[0]
        judges = self.judges[self.judges["held_out_low"] > 0.5]["judge"]
        apart = [
            mine[one] > random[f"{one}_high"].reindex(mine.index).clip(lower=plain[f"{one}_high"]) for one in judges
        ]
        return [one for one in mine.index if one > 0 and apart and all(judge[one] for judge in apart)]

    def strengths(self, what: str) -> list[float]:
        """The window: those of them at which what is written stays fluent, and does not repeat itself either."""
        plain, mine = self.of(PLAIN).iloc[0], self.of(what)
        fluent = (mine["perplexity"] < FLUENT * plain["perplexity"]) & (mine["repeated"] < plain["repeated"] + REPEATS)
        return [one for one in self.above(what) if fluent[one]]

    @property
    def window(self) -> str:
        """At which strengths the neurons steer and what is written stays fluent."""
        return named(self.strengths(NEURONS)) or "none"

    @property
    def verdict(self) -> str:
        """Whether there is a window, and what the residual stream's direction does."""
        above, other, more = self.above(NEURONS), self.strengths(RESIDUAL), "more like the concept's texts"
        far = f"{FLUENT:g} times that of the unchanged model"
        if self.strengths(NEURONS):
            said = f"At strength {self.window} the model writes {more} than with random neurons moved as far, at a "
            said += f"perplexity below {far}."
        elif above:
            said = f"There is no window: at strength {named(above)} the model writes {more} than with random neurons "
            said += f"moved as far, but perplexity is {far} or more, or it repeats itself."
        else:
            said = f"There is no window: at no strength does the model write {more} than with random neurons moved as "
            said += "far, by all judges that can tell them."
        also = f"one from {min(other):g} to {max(other):g}" if other else "none"
        return f"{said} The residual stream's own direction, added with the same norm, has {also}."

    def examples(self, top: int | None) -> pd.DataFrame:
        """What is written with the neurons held, after the same prompt at every strength."""
        mine = self.written[self.written["what"].isin([PLAIN, NEURONS])]
        prompts = list(dict.fromkeys(mine["prompt"]))[: top and max(1, top // mine["strength"].nunique())]
        return pd.concat([mine[mine["prompt"] == one] for one in prompts], ignore_index=True)


def named(strengths: Sequence[float]) -> str:
    return listed([f"{one:g}" for one in strengths], 20)


@checked
def steer(
    model: Model,
    concept: Concept,
    *,
    neurons: NeuronNames | None = None,
    most: Count = 64,
    strengths: Sequence[float] = STRENGTHS,
    prompts: Sequence[str] | None = None,
    new: Count = 40,
    temperature: Positive = 0.7,
    random: Count = 1,
    seed: Seed = 0,
    progress: Progress | None = None,
) -> Steering:
    """What the model writes with a concept's neurons held, and whether that is the concept.

    Holds neurons at a strength between what they are on average without the concept (0) and with it (1), and beyond,
    while the model goes on with neutral prompts. Two judges that know nothing of the neurons say how much like the
    concept's texts that is, beside random neurons that are moved as far, and the residual stream's own direction.

    Note:
        A coefficient is without + α (with − without) at every token but the beginning of sequence. Random neurons are
        of the same layers, and what each writes is changed by the same norm, its sign drawn. The direction is the
        difference of mean streams, added above each layer with the norm of what its neurons write more.
        Judges learn from the half of the texts that neurons were chosen by.

    Args:
        model: from :func:`ffnmem.load`.
        concept: from :func:`ffnmem.concept`, of the same model.
        neurons: Which ones, such as 3.17,4.5. [default: the first of those found]
        most: How many of those found are held at most.
        strengths: How far the neurons go: 0 is without the concept, 1 with it.
        prompts: What is gone on with. [default: twenty neutral beginnings]
        new: Tokens that are written.
        temperature: What logits are divided by before a token is drawn.
        random: How many sets of random neurons.
        seed: Of what is drawn.
        progress: called with "steer", the prompts whose continuations are judged, and all of them.

    Raises:
        InputError: a concept of which no neuron was found, and none named. OutOfRangeError: no such neuron.

    Example:
        $ ffnmem steer legal.zip
        $ ffnmem steer legal.zip --neurons 3.77,1.10 --strengths 4 --html legal.html
    """
    rows = [model.tokenize(one) for one in (PROMPTS if prompts is None else prompts)]
    room = model.n_ctx - max(map(len, rows), default=0) - new - 1
    if not rows or room < 1:
        raise InputError(f"give prompts that leave room for {new} tokens: {model.name} reads {model.n_ctx}")
    labels, chosen = concept.labels, concept.chosen
    texts = [model.ids_of(unmarked(one, concept.unit)) for one in (*concept.texts, *concept.against)]
    table, layers = choose(model, concept, neurons, most), PlainLayers(model)
    runs = [Run(PLAIN, 0.0, 0, {}), *plan(model, concept, table, strengths, random, seed)]
    written = write_on(layers, runs, rows, new, temperature, seed)
    words = Words.of([words_of(model, ids) for ids in texts], labels, chosen)
    learned, rest = ([np.flatnonzero(half & side) for side in (labels, ~labels)] for half in (chosen, ~chosen))
    before = [prefix_of(model, [texts[at] for at in some], room) for some in learned]
    found, decode = [], model.tokenizer.decode
    for at, prompt in enumerate(rows):
        some = [run[at] for run in written]
        asked = prompt[1:] if model.prepend_bos and model.begins(prompt) else prompt
        having, without = (mean_logs(layers, [*one, *asked], some) for one in before)
        judged = zip(runs, some, (having - without).tolist(), mean_logs(layers, prompt, some).tolist(), strict=True)
        for run, ids, reader, plain in judged:
            row = {"what": run.what, "strength": run.strength, "draw": run.draw, "prompt": str(decode(asked))}
            said = {"reader": reader, "words": words.score(words_of(model, ids)), "loss": -plain}
            grams = [*zip(ids, ids[1:], ids[2:], strict=False)]
            said |= {"repeated": 1 - len({*grams}) / len(grams) if grams else 0.0}
            found.append(row | {"continuation": str(decode(ids))} | said)
        if progress is not None:
            progress("steer", at + 1, len(rows))
    tried = np.concatenate([some[:JUDGED] for some in rest])
    having, without = (mean_logs(layers, one, [texts[at][:new] for at in tried]) for one in before)
    scores = {"reader": (having - without).numpy(), "words": [words.score(words.texts[at]) for at in tried]}
    none, frame = np.zeros(len(tried), bool), pd.DataFrame(found)
    judges = pd.DataFrame([compare(name, score, labels[tried], none) for name, score in scores.items()])
    return Steering(
        curve=pd.DataFrame(curve_of(frame)),
        judges=judges.rename(columns={"what": "judge"}).drop(columns="auroc"),
        removal=pd.DataFrame(removed(layers, concept, runs, texts, rest)),
        neurons=table,
        written=frame,
        provenance=model.provenance(model.prepend_bos, new=new, temperature=temperature, seed=seed),
        model=model,
    )


def choose(model: Model, concept: Concept, neurons: NeuronNames | None, most: int) -> pd.DataFrame:
    """The rows of the neurons to hold: those named, or the first found."""
    columns = ["layer", "neuron", "auroc", "held_out", "mean_with", "mean_without", "difference"]
    table = concept.neurons[columns]
    if [*table.groupby("layer").size()] != [*model.widths]:
        raise InputError(f"the concept is of another model than {model.name}")
    if neurons is not None:
        pairs = dict.fromkeys((model.layer(pair_of(one)[0]), model.neuron(one)) for one in neurons)
        return table.set_index(["layer", "neuron"]).loc[[*pairs]].reset_index()
    found = table[concept.neurons["p"] < LEVEL].head(most)
    if not len(found):
        raise InputError("no neuron tells the concept's texts beyond chance: name those to hold (neurons, --neurons)")
    return found


def plan(
    model: Model, concept: Concept, table: pd.DataFrame, strengths: Sequence[float], random: int, seed: int
) -> Iterator[Run]:
    """The neurons, random ones, and the residual stream's direction, at every strength."""
    rng, step = np.random.default_rng(seed), table.set_index(["layer", "neuron"])["difference"]
    without = concept.neurons.set_index(["layer", "neuron"])["mean_without"]
    values = torch.stack([model.ffn[layer].values[neuron].detach() for layer, neuron in step.index])
    pairs, push, controls = set(step.index), {}, []
    for layer in sorted({*table["layer"]}):
        mine = (table["layer"] == layer).tolist()
        norm = (torch.tensor(step[mine].tolist()).to(values) @ values[mine]).norm()
        toward = torch.tensor(concept.directions[min(layer + 1, model.n_layers - 1)]).to(values)
        push[layer] = toward / toward.norm() * norm
    for _ in range(random):
        drawn: dict[tuple[int, int], float] = {}
        for ((layer, _neuron), difference), value in zip(step.items(), values, strict=True):
            every = range(model.widths[layer])
            other = int(rng.choice([n for n in every if (layer, n) not in pairs and (layer, n) not in drawn] or every))
            norm = model.ffn[layer].values[other].detach().norm().clamp(min=1e-12)
            drawn[layer, other] = rng.choice([-1, 1]) * difference * float(value.norm() / norm)
        controls.append(drawn)
    ways = [(NEURONS, 0, dict(step)), *((AT_RANDOM, draw, drawn) for draw, drawn in enumerate(controls))]
    for strength in map(float, strengths):
        for what, draw, steps in ways if strength else ways[:1]:
            yield Run(
                what, strength, draw, {pair: float(without[pair] + strength * one) for pair, one in steps.items()}
            )
        if strength:
            yield Run(RESIDUAL, strength, 0, {}, {layer: strength * one for layer, one in push.items()})


def prefix_of(model: Model, texts: Sequence[list[int]], room: int) -> list[int]:
    """What the reader has read before: the beginnings of some texts, each on a line of its own."""
    found = [one for ids in texts for one in (*ids[:PIECE], *model.ids_of("\n"))][: min(PREFIX, room)]
    return model.begun(found) if model.prepend_bos else found


def curve_of(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Means over continuations, with 95% intervals of what the judges say."""
    for (what, strength), some in frame.groupby(["what", "strength"], sort=False):
        row: dict[str, Any] = {"what": what, "strength": strength}
        for judge in ("reader", "words"):
            mean, off = some[judge].mean(), 1.96 * some[judge].sem()
            row |= {judge: mean, f"{judge}_low": mean - off, f"{judge}_high": mean + off}
        yield row | {"perplexity": float(np.exp(some["loss"].mean())), "repeated": some["repeated"].mean()}


def removed(
    layers: PlainLayers, concept: Concept, runs: Sequence[Run], texts: Sequence[list[int]], rest: Sequence[np.ndarray]
) -> Iterator[dict[str, Any]]:
    """What is lost on held-out texts with the neurons, and random ones, held at their mean without the concept."""
    without = concept.neurons.set_index(["layer", "neuron"])["mean_without"]
    start = [one for one in [layers.model.bos_token_id] if one is not None and layers.model.prepend_bos]
    sets = [[ids for at in some if len(ids := texts[at][: REMOVED[1]]) > 1][: REMOVED[0]] for some in rest]
    for what in dict.fromkeys(run.what for run in runs if run.held):
        held = next(run.held for run in runs if run.what == what)
        run = Run(what, 0.0, 0, {pair: float(without[pair]) for pair in held})
        lost = [float((mean_logs(layers, start, some) - mean_logs(layers, start, some, run)).mean()) for some in sets]
        yield {"what": what, "lost_with": lost[0], "lost_without": lost[1]}
