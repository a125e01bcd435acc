"""How many random directions get each verdict of ``ffnmem polysemanticity``, beside a sample of neurons?

    OMP_NUM_THREADS=1 python benchmarks/by_chance.py STORE --layers 2 8 14 20 26 --per-layer 100 --budget 20000

Each neuron stands beside one direction of each kind:

- matched: the neuron's key (of a gated neuron its gate and key together) rotated at random in the space of whitened
  inputs. Its coefficient has the neuron's mean and variance, so that it fires about as often.
- isotropic: a random direction with the key's length and the key's mean product with inputs.
- mixed (gated neurons): the neuron's key with the gate of another neuron.

All read the same text, and their examples are chosen in the same way. In a mixture of experts a direction stands behind
its neuron's router. ``fewer`` and ``larger MS`` are the chance that a neuron has fewer meanings, or a larger MS, than a
direction of the kind; .5 means no difference. Intervals are 95% (Wilson).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import mannwhitneyu

import ffnmem as fm
from ffnmem.core.types import VERDICTS
from ffnmem.corpus.excerpts import BATCH_TOKENS, Page, Selection, draw_tokens
from ffnmem.corpus.passes import read
from ffnmem.models.layer_pass import LayerPass
from ffnmem.neurons.clustering import Draws, Examples
from ffnmem.neurons.inputs import TOP, Background, Firing, Inputs, read_background, sampled_sequences
from ffnmem.neurons.measuring import chosen_layers
from ffnmem.neurons.sample_measures import KeyPairs, coefficients, own_keys, rotate_isotropic
from ffnmem.neurons.verdicts import RULE, share_interval, verdicts
from ffnmem.scanning import Store
from ffnmem.scanning.state import place_of

KINDS = ("own", "matched", "isotropic", "mixed")  # "own" is the neuron itself


def make_directions(
    kind: str, model: fm.Model, layer: int, neurons: np.ndarray, background: Background, seed: int
) -> KeyPairs:
    """What the neurons, or the directions made of them, compare their input with: keys and gates, with biases."""
    rng = np.random.default_rng([seed, 31, layer, KINDS.index(kind)])
    own = own_keys(model, layer, torch.from_numpy(neurons).to(model.device))
    if kind == "own":
        return own
    if kind == "isotropic":
        return rotate_isotropic(own, torch.from_numpy(background.mean).to(own[0][0]), rng)
    if kind == "matched":
        return rotate_whitened(own, background, rng)
    others = rng.permutation(model.ffn[layer].d_mlp)
    partner = others[(np.argsort(others)[neurons] + 1) % len(others)]  # the next in a random circle: never itself
    return [own[0], own_keys(model, layer, torch.from_numpy(partner).to(model.device))[1]]


def rotate_whitened(own: KeyPairs, background: Background, rng: np.random.Generator) -> KeyPairs:
    """Keys, and gates with them, rotated in the space of whitened inputs, in which all directions vary alike. The mean
    and variance of their products with inputs stay, and so does the correlation of gate and key."""
    whiten = background.whiten.astype(np.float64)
    mean, inputs = background.mean.astype(np.float64), background.rows.astype(np.float64)
    vectors = np.stack([keys.double().cpu().numpy() for keys, _ in own], axis=-1)  # [n, d_model, keys]
    _, shape = np.linalg.qr(np.einsum("de,nek->ndk", np.linalg.inv(whiten), vectors))
    drawn, _ = np.linalg.qr(rng.standard_normal(vectors.shape))
    turned = np.einsum("de,nek->ndk", whiten, drawn @ shape)
    # Whitening has a ridge, so that directions in which inputs hardly vary count for less than they would.
    before, after = (np.einsum("md,ndk->mnk", inputs, some).std(0)[:, None] for some in (vectors, turned))
    turned *= np.divide(before, after, out=np.ones_like(after), where=after > 0)
    found: KeyPairs = []
    for place, (keys, bias) in enumerate(own):
        shift = torch.from_numpy((vectors[:, :, place] - turned[:, :, place]) @ mean).to(keys)
        found.append((torch.from_numpy(turned[:, :, place]).to(keys), shift if bias is None else bias + shift))
    return found


class Highest:
    """Of each of n directions, the ``TOP`` largest coefficients, each of another sequence, largest first, ties in the
    text's order; the largest of each sampled sequence; their places; and how often the coefficient was above 0."""

    def __init__(self, sampled: int, n: int) -> None:
        self.top, self.sample = (np.full((rows, n), -np.inf, np.float32) for rows in (TOP, sampled))
        self.places, self.sample_places = (np.zeros((rows, n), np.int64) for rows in (TOP, sampled))
        self.fired = np.zeros(n, np.int64)

    def add(self, here: np.ndarray, sequences: np.ndarray, sampled: np.ndarray) -> None:
        """Add coefficients ``[sequences, positions, n]`` (−∞: not counted) of some sequences."""
        values, places = here.max(1), place_of(sequences[:, None], here.argmax(1))
        self.fired += (here > 0).sum((0, 1))
        known = np.isin(sequences, sampled)
        at = np.searchsorted(sampled, sequences[known])
        self.sample[at], self.sample_places[at] = values[known], places[known]
        values, places = np.concatenate([self.top, values]), np.concatenate([self.places, places])
        order = np.lexsort((places, -values), axis=0)[:TOP]
        self.top, self.places = (np.take_along_axis(some, order, axis=0) for some in (values, places))

    def firing(self, layer: int, neurons: np.ndarray) -> Firing:
        """The examples, chosen as those of a store's neurons are."""
        columns = (self.top.astype(np.float64), self.places, self.sample.astype(np.float64), self.sample_places)
        return Firing.of(layer, neurons, zip(*(rows.T for rows in columns), strict=True))


def chance_verdicts(
    store: Store, model: fm.Model, *, layers: Any = None, per_layer: int = 64, kinds: tuple[str, ...] = KINDS,
    sign: str = "positive", seed: int = 0, draws: int = 200, budget: int | None = None,
) -> pd.DataFrame:  # fmt: skip
    """One row for each neuron drawn and each kind: layer, neuron, kind, examples, firing_rate, meanings and ms with
    their ``_low``, ``_high``, ``_null`` and ``_p``, verdict, why. ``budget``: tokens to read for where directions fire,
    beside the store's random sequences; None for all of its text."""
    store.check_model(model)
    factor = 1.0 if sign == "positive" else -1.0
    chosen = chosen_layers(store, layers)
    asked = [kind for kind in KINDS if kind == "own" or (kind in kinds and (store.gated or kind != "mixed"))]
    backgrounds = {layer: read_background(store, layer) for layer in chosen}
    drawn = {i: np.random.default_rng([seed, 30, i]).permutation(store.d_mlp(i))[:per_layer] for i in chosen}
    neurons = {layer: np.sort(some) for layer, some in drawn.items()}
    reading = {
        (i, kind): make_directions(kind, model, i, neurons[i], backgrounds[i], seed) for i in chosen for kind in asked
    }
    sample = np.unique(sampled_sequences(store))
    found = {one: Highest(len(sample), len(pairs[0][0])) for one, pairs in reading.items()}
    body, positions = LayerPass(model), 0

    def keep(page: Page, layer: int, x: torch.Tensor) -> None:
        mask = page.mask.reshape(len(page.batch.sequences), -1)
        for kind in asked if layer in chosen else ():
            of = torch.from_numpy(neurons[layer]).to(model.device)
            here = factor * coefficients(model, layer, x.flatten(0, 1), reading[layer, kind], of)
            here = np.moveaxis(here.reshape(len(here), *mask.shape), 0, -1)
            found[layer, kind].add(np.where(mask[:, :, None], here, -np.inf), page.batch.sequences, sample)

    def take(page: Page) -> None:
        nonlocal positions
        positions += int(page.mask.sum())
        tokens = torch.from_numpy(page.batch.tokens).to(model.device)
        body.run(tokens, on_input=partial(keep, page), until=max(chosen))

    numbers = np.union1d(draw_tokens(store.sequences, budget, seed), sample).astype(np.int64)
    settings = replace(store.settings, batch_tokens=BATCH_TOKENS)
    read(Selection(store.sequences, settings, numbers, together=len(numbers)), take, "read", None)
    firings = {(layer, kind): found[layer, kind].firing(layer, neurons[layer]) for layer, kind in reading}
    places = {i: np.concatenate([f.places[f.places >= 0] for f in firings.values() if f.layer == i]) for i in chosen}
    frames = []
    with Inputs(store, model, places) as inputs:
        for (layer, kind), firing in firings.items():
            shared = Draws(draws, seed, len(backgrounds[layer].units))
            examples = Examples(firing, partial(inputs.at, layer), backgrounds[layer], shared)
            estimates = examples.estimates("meanings", "ms")
            told, why = verdicts(firing.extreme > 0, firing.counts, estimates["meanings"], RULE)
            columns = {"layer": layer, "neuron": firing.neurons, "kind": kind, "examples": firing.counts}
            columns["firing_rate"] = found[layer, kind].fired / max(positions, 1)
            for name, estimate in estimates.items():
                columns |= estimate.columns(name)
            frames.append(pd.DataFrame({**columns, "verdict": told, "why": why}))
    return pd.concat(frames, ignore_index=True)


def shares(table: pd.DataFrame) -> pd.DataFrame:
    """One row a kind: directions, the share of each verdict with ``_low`` and ``_high``, fewer and larger MS."""
    own, rows = table[table["kind"] == "own"], []
    for kind, part in table.groupby("kind", sort=False):
        row: dict[str, Any] = {"kind": kind, "directions": len(part)}
        for verdict in VERDICTS:
            count = int((part["verdict"] == verdict).sum())
            low, high = share_interval(count, len(part))
            row |= {verdict: count / max(len(part), 1), f"{verdict}_low": low, f"{verdict}_high": high}
        fewer, larger = (chance_larger(own[name], part[name]) for name in ("meanings", "ms"))
        rows.append({**row, "fewer": 1 - fewer, "larger MS": larger})
    return pd.DataFrame(rows)


def chance_larger(own: pd.Series, others: pd.Series) -> float:
    """The chance that one of the first is larger than one of the second, ties half; NaN of none."""
    a, b = own.dropna().to_numpy(float), others.dropna().to_numpy(float)
    return float(mannwhitneyu(a, b).statistic / (len(a) * len(b))) if len(a) and len(b) else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", help="the folder of a scan")
    parser.add_argument("--model", help="default: the name that the store gives")
    parser.add_argument("--layers", type=int, nargs="+", help="default: all")
    parser.add_argument("--per-layer", type=int, default=64, help="neurons drawn in each layer")
    parser.add_argument("--kinds", nargs="+", choices=KINDS[1:], default=KINDS[1:])
    parser.add_argument("--sign", choices=("positive", "negative"), default="positive", help="of the coefficient")
    parser.add_argument("--draws", type=int, default=200, help="of bootstrap and null")
    parser.add_argument("--budget", type=int, default=300_000, help="tokens to read; 0: all of the text")
    parser.add_argument("--seed", type=int, default=0)
    asked = vars(parser.parse_args())
    store, name = fm.open_store(asked.pop("store")), asked.pop("model")
    model = store.read_model() if name is None else fm.load(name)
    found = shares(chance_verdicts(store, model, **{**asked, "budget": asked["budget"] or None}))
    for name in VERDICTS:
        cells = zip(100 * found[name], 100 * found.pop(f"{name}_low"), 100 * found.pop(f"{name}_high"), strict=True)
        found[name] = ["{:.1f}% ({:.1f} to {:.1f})".format(*cell) for cell in cells]
    print(found.round(2).to_string(index=False))


if __name__ == "__main__":
    main()
