"""``chance_verdicts``: the verdicts on directions that no training chose, beside those on a layer's own neurons."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from einops import rearrange
from jaxtyping import Float32, Int64
from torch import Tensor

from ..core.defaults import MEANING_BUDGET, MEANING_DRAWS
from ..core.errors import FileError, InputError, check_choice, warn
from ..core.neuron_names import LayerName
from ..core.number_text import format_interval, format_number, format_share
from ..core.progress import Progress
from ..core.sheets import Column, Origin, Sheet, Table
from ..core.types import DIRECTIONS, VERDICTS, CoefficientSign, Count, Seed, at_least, checked
from ..corpus.excerpts import BATCH_TOKENS, Page, Selection, draw_tokens
from ..corpus.passes import read
from ..models.layer_pass import LayerPass
from ..models.model import Model
from ..models.turns import in_turn
from ..scanning.state import place_of
from ..scanning.store import Store
from ..show.result import Result
from .clustering import Draws, Examples
from .inputs import TOP, Background, Firing, Inputs, read_background, sampled_sequences
from .measuring import chosen_layers, judged, rule_key, store_key
from .sample_measures import KeyPairs, coefficients, own_keys, rotate_isotropic
from .verdicts import RULE, Rule, share_interval, verdicts

# Directions to hold neurons against: what each reads with.
#
# What most strongly lies along any direction is of several kinds, so many of them are polysemantic too. A share of
# neurons says something where it differs from theirs.

WORDS = {
    "own": "neurons",
    "matched": "random directions that fire as often",
    "isotropic": "random directions",
    "mixed": "gates and keys of different neurons",
}
PER_LAYER = 64
ENDS = ("", "_low", "_high")  # of a share's columns


def make_directions(
    kind: str, model: Model, layer: int, neurons: Int64[np.ndarray, " n"], background: Background, seed: int
) -> KeyPairs:
    """What the neurons, or directions made of them, compare their input with."""
    rng = np.random.default_rng([seed, 31, layer, DIRECTIONS.index(kind)])
    own = own_keys(model, layer, torch.from_numpy(neurons).to(model.device))
    if kind == "own":
        return own
    mean = torch.from_numpy(background.mean).to(own[0][0])
    if kind == "isotropic":
        return rotate_isotropic(own, mean, rng)
    if kind == "matched":
        return rotate_whitened(own, background, rng)
    others = rng.permutation(model.ffn[layer].d_mlp)
    partner = others[(np.argsort(others)[neurons] + 1) % len(others)]  # the next in a random circle: never itself
    return [own[0], own_keys(model, layer, torch.from_numpy(partner).to(model.device))[1]]


def rotate_whitened(own: KeyPairs, background: Background, random: np.random.Generator) -> KeyPairs:
    """Keys, and gates with them, turned at random in the space of whitened inputs, in which all directions vary alike.

    What they give has the mean and the variance that it had, and gate and key the correlation that they had, over
    random positions: so they fire about as often.
    """
    root = np.linalg.inv(background.whiten.astype(np.float64))
    mean, inputs = background.mean.astype(np.float64), background.rows.astype(np.float64)
    vectors = np.stack([keys.double().cpu().numpy() for keys, _ in own], axis=-1)  # [n, d_model, keys]
    _, shape = np.linalg.qr(np.einsum("de,nek->ndk", root, vectors))
    anyhow, _ = np.linalg.qr(random.standard_normal(vectors.shape))
    turned = np.einsum("de,nek->ndk", background.whiten.astype(np.float64), anyhow @ shape)
    # Whitening has a ridge, so that directions in which inputs hardly vary count for less than they would.
    before, after = (np.einsum("md,ndk->mnk", inputs, some).std(0)[:, None] for some in (vectors, turned))
    turned *= np.divide(before, after, out=np.ones_like(after), where=after > 0)
    found: KeyPairs = []
    for place, (keys, bias) in enumerate(own):
        moved = (vectors[:, :, place] - turned[:, :, place]) @ mean
        shift = torch.from_numpy(moved).to(keys)
        found.append((torch.from_numpy(turned[:, :, place]).to(keys), shift if bias is None else bias + shift))
    return found


# Where they fire most: one pass over the text.


class Highest:
    """Of each of n directions, the TOP largest coefficients, each of a sequence of its own and largest first, ties in
    the text's order; the largest of every sampled sequence; where they are (``place_of``); and how often it was above
    0. As large for any text."""

    def __init__(self, sampled: int, n: int) -> None:
        self.top, self.sample = (np.full((rows, n), -np.inf, np.float32) for rows in (TOP, sampled))
        self.places, self.sample_places = (np.zeros((rows, n), np.int64) for rows in (TOP, sampled))
        self.fired = np.zeros(n, np.int64)

    def add(
        self, here: Float32[np.ndarray, "rows pos n"], sequences: Int64[np.ndarray, " rows"],
        sampled: Int64[np.ndarray, " sampled"],
    ) -> None:  # fmt: skip
        """Some sequences' coefficients; −∞ where none counts. ``sampled``: which sequences are, ascending."""
        values, places = here.max(1), place_of(sequences[:, None], here.argmax(1))
        self.fired += (here > 0).sum((0, 1))
        known = np.isin(sequences, sampled)
        at = np.searchsorted(sampled, sequences[known])
        self.sample[at], self.sample_places[at] = values[known], places[known]
        values, places = np.concatenate([self.top, values]), np.concatenate([self.places, places])
        order = np.lexsort((places, -values), axis=0)[:TOP]
        self.top, self.places = (np.take_along_axis(some, order, axis=0) for some in (values, places))

    def firing(self, layer: int, neurons: Int64[np.ndarray, " n"]) -> Firing:
        """The examples, chosen as those of a store's neurons are."""
        columns = (self.top.astype(np.float64), self.places, self.sample.astype(np.float64), self.sample_places)
        return Firing.of(layer, neurons, zip(*(rows.T for rows in columns), strict=True))


def read_highest(
    store: Store, model: Model, numbers: Int64[np.ndarray, " sequences"], sample: Int64[np.ndarray, " sampled"],
    reading: Mapping[int, Mapping[str, KeyPairs]], neurons: Mapping[int, Int64[np.ndarray, " n"]],
    factor: float, progress: Progress | None,
) -> tuple[dict[int, dict[str, Highest]], int]:  # fmt: skip
    """Of each layer's directions of each kind, which stand in the places of these neurons, in the sequences of these
    numbers, some of which are the sample; and how many positions these have."""
    of = {layer: torch.from_numpy(some).to(model.device) for layer, some in neurons.items()}
    body, until, positions = LayerPass(model), max(reading), 0
    found = {
        layer: {kind: Highest(len(sample), len(pairs[0][0])) for kind, pairs in kinds.items()}
        for layer, kinds in reading.items()
    }

    def keep(page: Page, layer: int, x: Tensor) -> None:
        if layer not in reading:
            return
        mask = rearrange(page.mask, "(rows pos) -> rows pos", rows=len(page.batch.sequences))
        for kind, pairs in reading[layer].items():
            here = factor * coefficients(model, layer, rearrange(x, "rows pos d -> (rows pos) d"), pairs, of[layer])
            here = rearrange(here, "n (rows pos) -> rows pos n", rows=len(mask))
            found[layer][kind].add(np.where(mask[:, :, None], here, -np.inf), page.batch.sequences, sample)

    def take(page: Page) -> None:
        nonlocal positions
        positions += int(page.mask.sum())
        tokens = torch.from_numpy(page.batch.tokens).to(model.device)
        body.run(tokens, on_input=partial(keep, page), until=until)

    settings = replace(store.settings, batch_tokens=BATCH_TOKENS)
    read(Selection(store.sequences, settings, numbers, together=len(numbers)), take, "directions", progress)
    return found, positions


# `ChanceVerdicts`: the verdicts on neurons and on directions, in one table.


@checked
@dataclass(frozen=True, eq=False, repr=False)
class ChanceVerdicts(Result):
    """Verdicts on a sample of neurons and on random directions. Made by :func:`ffnmem.neurons.chance_verdicts`.

    Attributes:
        model: its name.
        table: one row for each neuron drawn and each kind of direction made of it: layer, neuron, kind ("own" is the
            neuron itself), sign, examples, firing_rate, meanings and ms with their ``_low``, ``_high``, ``_null`` and
            ``_p``, verdict, why.
        provenance: plain values.
    """

    main = "table"
    in_json = "shares layers"

    model: str
    table: pd.DataFrame
    provenance: dict[str, Any]

    @property
    def kinds(self) -> list[str]:
        return [kind for kind in DIRECTIONS if kind in set(self.table["kind"])]

    def shares(self, layer: int | None = None) -> pd.DataFrame:
        """One row a kind: kind, directions (how many), each verdict's share with its ``_low`` and ``_high`` (95%,
        Wilson), and meanings_told, ms_told: the chance that a neuron has fewer meanings (a larger MS) than a direction
        of the kind, ties half; .5 says nothing. Of all layers, or one."""
        table = self.table if layer is None else self.table[self.table["layer"] == layer]
        own = table[table["kind"] == "own"]
        found = []
        for kind in self.kinds:
            part = table[table["kind"] == kind]
            row: dict[str, Any] = {"kind": kind, "directions": len(part)}
            for verdict in VERDICTS:
                count = int((part["verdict"] == verdict).sum())
                low, high = share_interval(count, len(part))
                row |= {verdict: count / max(len(part), 1), f"{verdict}_low": low, f"{verdict}_high": high}
            row["meanings_told"] = 1 - chance_larger(own["meanings"], part["meanings"])
            row["ms_told"] = chance_larger(own["ms"], part["ms"])
            found.append(row)
        return pd.DataFrame(found)

    def sentence(self, verdict: str = "monosemantic", own: float | None = None) -> str:
        """One verdict's share of neurons (``own``, of all, where it is known) against that of directions, in a line."""
        shares = self.shares().set_index("kind")
        said = [
            f"{format_interval(*(row[verdict + end] for end in ENDS))} of {WORDS[str(kind)]}"
            for kind, row in shares.iterrows()
        ]
        return f"{verdict} {said[0] if own is None else format_share(own)} against {', '.join(said[1:])}"

    @property
    def layers(self) -> pd.DataFrame:
        """:meth:`shares` of each layer: layer, and its columns."""
        layers = sorted(set(self.table["layer"]))
        frames = [self.shares(layer) for layer in layers]
        return pd.concat(frames, keys=map(int, layers), names=["layer"]).reset_index(level=0).reset_index(drop=True)

    def summary(self) -> str:
        return f"{self.model}: {self.sentence()}"

    def sheet(self) -> Sheet:
        """Shares of each verdict by kind of direction, then monosemantic ones by layer."""
        return Sheet.of(
            self.share_table(), self.layer_table(), Origin(self.provenance), title=f"Verdicts by chance: {self.model}"
        )

    def share_table(self) -> Table:
        """A row a kind of direction."""

        def interval(name: str) -> Column:
            return Column(name, left=False, of=lambda row: format_interval(*(row[name + end] for end in ENDS)))

        def chance(name: str, head: str) -> Column:
            return Column(
                head, left=False, of=lambda row: None if row["kind"] == "own" else format_number(row[f"{name}_told"], 2)
            )

        return Table.of(
            self.shares(),
            Column("", wraps=True, of=lambda row: WORDS[row["kind"]]),
            Column("directions", "count"),
            *map(interval, VERDICTS[:3]),
            Column("inactive", "percent"),
            chance("meanings", "meanings"),
            chance("ms", "MS"),
            title="neurons and directions",
            caption="95% intervals (Wilson); meanings, MS: the chance that a neuron has fewer, or a larger one.",
        )

    def layer_table(self) -> Table:
        """The monosemantic share of each kind, a row a layer."""
        wide = self.layers.pivot(index="layer", columns="kind", values="monosemantic").reset_index()
        kinds = (Column(WORDS[kind], "percent", of=kind) for kind in self.kinds)
        return Table.of(wide, "layer", *kinds, title="monosemantic by layer")


def chance_larger(own: pd.Series, others: pd.Series) -> float:
    """The chance that one of the first is larger than one of the second, ties half; NaN of none."""
    from scipy.stats import mannwhitneyu  # slow to import, and rarely needed

    a, b = own.dropna().to_numpy(float), others.dropna().to_numpy(float)
    return float(mannwhitneyu(a, b).statistic / (len(a) * len(b))) if len(a) and len(b) else float("nan")


@checked
@in_turn
def chance_verdicts(
    store: Store,
    model: Model | None = None,
    *,
    layers: LayerName | Iterable[LayerName] | None = None,
    per_layer: Count = PER_LAYER,
    kinds: str | Iterable[str] | None = None,
    sign: CoefficientSign = "positive",
    seed: Seed = 0,
    draws: Annotated[int, at_least(20)] = MEANING_DRAWS,
    budget: Annotated[int, at_least(1000)] | None = MEANING_BUDGET,
    rule: Rule = RULE,
    progress: Progress | None = None,
) -> ChanceVerdicts:
    """Measure how many random directions get each verdict of :func:`ffnmem.polysemanticity`, beside as many neurons.

    What most strongly lies along a random direction is of several kinds too, so a share of polysemantic neurons is to
    be held against one of directions. All are read in the same text, and their examples are chosen in the same way. In
    a mixture of experts a direction stands in its neuron's expert: it fires only where tokens are routed to that one.

    Args:
        store: from :func:`ffnmem.scan`. model: the one scanned; default: load it by its name.
        layers: one or several; default all.
        per_layer: how many neurons of each are drawn. Each gives one direction of each kind.
        kinds: of directions, default all that there are:
            "matched": the neuron's key (of a gated one its gate and key together) turned at random in the space of
            whitened inputs: what it gives has the mean and variance that the neuron's has, so it fires about as often;
            "isotropic": drawn anyhow, with the key's length and its mean product with inputs: these mostly lie along
            what all inputs share;
            "mixed": of gated neurons, the neuron's key with another one's gate.
        sign: of the coefficient, "positive" or "negative".
        seed, draws, rule: as :func:`ffnmem.polysemanticity` has them.
        budget: tokens to read at most for where directions fire, None for all of the store's text; its random sequences
            come on top.
        progress: called as (phase, done, total) with the phases "directions" and "read" (tokens), and "verdicts"
            (directions).

    Returns: A :class:`ChanceVerdicts`. One of all layers and kinds is kept in the store's folder, and shown with the
    verdicts on its neurons.

    Raises:
        OutOfRangeError: no such layer. InputError: another model's store, settings out of range, "mixed" of classic
        neurons. ModelError: the model cannot be loaded by its name.

    Source: ours; Bricken et al. 2023 and Gurnee et al. 2023 (2305.01610) compare neurons with random directions.
    """
    factor = 1.0 if sign == "positive" else -1.0
    chosen, asked = chosen_layers(store, layers), check_kinds(kinds, store.gated)
    model = store.read_model() if model is None else model
    store.check_model(model)
    backgrounds = {layer: read_background(store, layer) for layer in chosen}
    neurons = {
        layer: np.sort(np.random.default_rng([seed, 30, layer]).permutation(store.d_mlp(layer))[:per_layer])
        for layer in chosen
    }
    reading = {
        layer: {kind: make_directions(kind, model, layer, neurons[layer], backgrounds[layer], seed) for kind in asked}
        for layer in chosen
    }
    sample = np.unique(sampled_sequences(store))
    numbers = np.union1d(draw_tokens(store.sequences, budget, seed), sample).astype(np.int64)
    found, positions = read_highest(store, model, numbers, sample, reading, neurons, factor, progress)
    firings = {(layer, kind): found[layer][kind].firing(layer, neurons[layer]) for layer in chosen for kind in asked}
    places = {
        layer: np.concatenate([f.places[f.places >= 0] for (own, _), f in firings.items() if own == layer])
        for layer in chosen
    }
    frames = []
    with Inputs(store, model, places, progress) as inputs:
        for (layer, kind), firing in firings.items():
            frame = judge_directions(firing, inputs, reading[layer][kind], backgrounds[layer], seed, draws, rule)
            rate = found[layer][kind].fired / max(positions, 1)
            frame = pd.DataFrame({"layer": layer, "neuron": firing.neurons, "kind": kind, "sign": sign}).join(frame)
            frame.insert(frame.columns.get_loc("examples") + 1, "firing_rate", rate)
            frames.append(frame)
            if progress is not None:
                progress("verdicts", sum(map(len, frames)), sum(len(one.neurons) for one in firings.values()))
    settings: dict[str, Any] = {"sign": sign, "per_layer": per_layer, "seed": seed, "draws": draws}
    settings |= {"rule": rule_key(rule), "budget": budget, "positions": positions, **store_key(store)}
    provenance = {**store.provenance, "chance_verdicts": settings}
    result = ChanceVerdicts(store.model, pd.concat(frames, ignore_index=True), provenance)
    whole = len(chosen) == store.n_layers and len(asked) == len(check_kinds(None, store.gated))
    if whole and os.access(store.folder, os.W_OK):
        result.save(file_of(store, sign))
    return result


def file_of(store: Store, sign: str) -> Path:
    return store.folder / f"chance-verdicts-{sign}.zip"


def kept_chance(store: Store, sign: str, rule: Rule) -> ChanceVerdicts | None:
    """What the last call of all layers and kinds kept, with the verdicts of a rule; None where there is none of this
    store. A damaged one is warned of."""
    if not file_of(store, sign).exists():
        return None
    try:
        found = ChanceVerdicts.load(file_of(store, sign))
    except FileError as error:
        warn(f"what is known of random directions is left out: {error}")
        return None
    settings = found.provenance["chance_verdicts"]
    mine = json.loads(json.dumps(store_key(store)))
    if any(settings.get(name) != value for name, value in mine.items()):
        return None
    if settings["rule"] == rule_key(rule):
        return found
    again = {**found.provenance, "chance_verdicts": {**settings, "rule": rule_key(rule)}}
    return replace(found, table=judged(found.table, rule), provenance=again)


def judge_directions(
    firing: Firing, inputs: Inputs, pairs: KeyPairs, background: Background, seed: int, draws: int, rule: Rule
) -> pd.DataFrame:
    """Examples, meanings, MS and the verdict on each of some directions."""
    keys = np.stack([keys.float().cpu().numpy() for keys, _ in pairs], axis=1)
    shared = Draws(draws, seed, len(background.units))
    examples = Examples(firing, partial(inputs.at, firing.layer), keys, background, shared)
    found = examples.estimates("meanings", "ms")
    told, why = verdicts(firing.extreme > 0, firing.counts, found["meanings"], rule)
    columns: dict[str, Any] = {"examples": firing.counts}
    for name, estimate in found.items():
        columns |= estimate.columns(name)
    return pd.DataFrame({**columns, "verdict": told, "why": why})


def check_kinds(kinds: str | Iterable[str] | None, gated: bool) -> list[str]:
    """The kinds asked for, "own" first; raises InputError."""
    possible = [kind for kind in DIRECTIONS if gated or kind != "mixed"]
    if kinds is None:
        return possible
    asked = [kinds] if isinstance(kinds, str) else list(kinds)
    for kind in asked:
        check_choice("kind", kind, DIRECTIONS)
        if kind not in possible:
            raise InputError(f"kind {kind!r} is of gated neurons: those of this store have no gates")
    return [kind for kind in possible if kind == "own" or kind in asked]
