"""Intruders: four examples of a meaning and one that is not: do judges that did not sort the meanings tell which?

Meanings are sorted by what a layer's FFN read; the judges see something else: "state" (whitened inputs of the FFN half
the model away), "around" (the mean input embedding of 8 tokens on each side, frequent ones counting less), "token" (the
input embedding of the firing token), "trigger" (whether it is the same token). The fifth example is of another meaning
of the neuron, of a meaning of another neuron of the layer, or of the same meaning (the null: one in five is found). All
five are of different documents.

``STORE`` is a store with a table of ``ffnmem polysemanticity`` of the sign. Source: Chang et al. 2009, "Reading tea
leaves" for intruders; Arora et al. 2017 for the mean of embeddings.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float32, Float64, Int64

import ffnmem as fm
from ffnmem.models.model import Model
from ffnmem.neurons.counting import content_counts
from ffnmem.neurons.inputs import Background, Inputs, normalise, read_background
from ffnmem.neurons.measuring import opened
from ffnmem.neurons.verdicts import share_interval
from ffnmem.scanning import Store
from ffnmem.scanning.state import position_of, sequence_of
from ffnmem.vocabulary.vectors import side_tokens

JUDGES = ("state", "around", "token", "trigger")
SHOWN = 5  # examples of which one is an intruder
ODD_ONES = ("meaning", "neuron", "half")
COLUMNS = ("layer", "neuron", "sign", "verdict", "odd", "meaning", "other")


@dataclass(frozen=True, eq=False)
class Trials:
    """Some trials of a layer. ``places`` ``[n, SHOWN]``: the intruder is the last. ``rows``: what else is known of
    each, in the order of :data:`COLUMNS`."""

    layer: int
    places: Int64[np.ndarray, "n shown"]
    rows: list[tuple[Any, ...]]


def layer_trials(
    store: Store, rows: Sequence[Mapping[str, Any]], layer: int, odd: Sequence[str], documents: Mapping[int, int],
    seed: int,
) -> Trials:  # fmt: skip
    """At most one trial of each kind for each of a layer's neurons, all with the same four examples.

    All five are of different documents, so that no judge can go by what a text is about.

    Args:
        rows: of the kept table: neuron, sign, verdict, and the lists places and meaning. documents: by sequence.
    """
    found: list[tuple[Any, ...]] = []
    shown: list[list[int]] = []
    homes = [home_of(row, documents, np.random.default_rng([seed, 40, layer, row["neuron"]])) for row in rows]
    having = [at for at, home in enumerate(homes) if home is not None]
    for at in having:
        row, home = rows[at], homes[at]
        assert home is not None
        rng = np.random.default_rng([seed, 41, layer, row["neuron"]])
        label, four, fifth = home
        places, labels = np.array(row["places"], np.int64), np.array(row["meaning"])
        seen = {documents[int(sequence_of(place))] for place in four}
        another = having[int(rng.integers(len(having)))]
        theirs = homes[another]
        strange = {
            "half": [(fifth, label)],
            "meaning": [
                (int(place), int(own))
                for place, own in zip(places, labels, strict=True)
                if own != label and (labels == own).sum() > 1
            ],
            "neuron": []
            if theirs is None or another == at
            else [(place, int(rows[another]["neuron"])) for place in (*theirs[1], theirs[2])],
        }
        for kind in odd:
            apart = [pair for pair in strange[kind] if documents[int(sequence_of(pair[0]))] not in seen]
            if not apart:
                continue
            place, name = apart[int(rng.integers(len(apart)))]
            shown.append([*four, place])
            found.append((layer, row["neuron"], row["sign"], row["verdict"], kind, label, name))
    return Trials(layer, np.array(shown, np.int64).reshape(-1, SHOWN), found)


Home = tuple[int, list[int], int]


def home_of(row: Mapping[str, Any], documents: Mapping[int, int], rng: np.random.Generator) -> Home | None:
    """A meaning, at random of those that five documents have examples of: its number, four examples, and a fifth."""
    places, labels = np.array(row["places"], np.int64), np.array(row["meaning"])
    possible = []
    for label in range(int(labels.max(initial=-1)) + 1):
        some = rng.permutation(places[labels == label])
        own = np.array([documents[int(sequence_of(place))] for place in some], np.int64)
        _, first = np.unique(own, return_index=True)
        if len(first) >= SHOWN:
            possible.append((label, some[np.sort(first)][:SHOWN].tolist()))
    if not possible:
        return None
    label, five = possible[int(rng.integers(len(possible)))]
    return label, five[:-1], five[-1]


# Judges: how alike five examples are, by what did not sort them into meanings.

AROUND = 8  # tokens on each side
SMOOTH = 1e-3  # of the weights by which frequent tokens count for less (Arora 2017)


def judge_layer(layer: int, n_layers: int) -> int:
    """The layer whose inputs judge another's: half the model away."""
    return (layer + n_layers // 2) % n_layers


class Embeddings:
    """The input embeddings, centred on the text's mean; what stands around a place is their mean by Arora's weights."""

    def __init__(self, store: Store, model: Model) -> None:
        self.store = store
        rows = side_tokens(model, "key").float().cpu().numpy()
        counts = content_counts(store).astype(np.float64)
        share = np.pad(counts, (0, max(len(rows) - len(counts), 0)))[: len(rows)] / max(counts.sum(), 1.0)
        self.rows = (rows - share @ rows).astype(np.float32)
        self.weights = SMOOTH / (SMOOTH + share)
        self.weights[list(store.settings.special)] = 0.0

    def tokens(self, places: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        return self.store.sequences.tokens_at(sequence_of(places), position_of(places))

    def token(self, places: Int64[np.ndarray, " n"]) -> Float32[np.ndarray, "n d_model"]:
        return normalise(self.rows[self.tokens(places)])

    def around(self, places: Int64[np.ndarray, " n"]) -> Float32[np.ndarray, "n d_model"]:
        """Of up to AROUND tokens on each side, without the one at the place."""
        found = np.zeros((len(places), self.rows.shape[1]), np.float32)
        lead = self.store.sequences.lead
        for row, place in enumerate(places.tolist()):
            tokens, at = self.store.sequences.sequence_tokens(int(sequence_of(place))), int(position_of(place))
            near = np.concatenate([tokens[max(lead, at - AROUND) : at], tokens[at + 1 : at + 1 + AROUND]])
            found[row] = self.weights[near] @ self.rows[near]
        return normalise(found)


def judged(
    trials: Trials, judge: str, embeddings: Embeddings, inputs: Inputs | None, background: Background | None
) -> Float64[np.ndarray, " n"]:
    """Of each trial, whether a judge found the intruder."""
    places = trials.places.reshape(-1)
    if not len(places):
        return np.empty(0)
    if judge == "trigger":
        tokens = embeddings.tokens(places).reshape(-1, SHOWN)
        return find_odd_one((tokens[:, :, None] == tokens[:, None, :]).astype(np.float64))
    if judge == "state":
        assert inputs is not None
        assert background is not None
        found = background.unit(inputs.at(trials.layer, places))
    else:
        found = embeddings.token(places) if judge == "token" else embeddings.around(places)
    units = found.reshape(-1, SHOWN, found.shape[-1]).astype(np.float64)
    return find_odd_one(units @ units.transpose(0, 2, 1))


def find_odd_one(similarity: Float64[np.ndarray, "n shown shown"]) -> Float64[np.ndarray, " n"]:
    """Whether the last of five is the least like the others: 1, 0, or a share of 1 where it is so with others."""
    alone = similarity.copy()
    alone[:, range(SHOWN), range(SHOWN)] = 0.0
    likeness = alone.sum(2) / (SHOWN - 1)
    least = likeness <= likeness.min(1, keepdims=True) + 1e-9
    return np.where(least[:, -1], 1 / least.sum(1), 0.0)


def all_judged(
    store: Store, model: Model, trials: Sequence[Trials], judges: Sequence[str]
) -> dict[str, list[Float64[np.ndarray, " n"]]]:
    """By judge, what it found of each layer's trials."""
    embeddings = Embeddings(store, model)
    found = {
        judge: [judged(some, judge, embeddings, None, None) for some in trials] for judge in judges if judge != "state"
    }
    if "state" in judges:
        away = [Trials(judge_layer(some.layer, store.n_layers), some.places, some.rows) for some in trials]
        backgrounds = {some.layer: read_background(store, some.layer) for some in away}
        places = {some.layer: some.places.reshape(-1) for some in away if len(some.places)}
        with Inputs(store, model, places) as inputs:
            found["state"] = [judged(some, "state", embeddings, inputs, backgrounds[some.layer]) for some in away]
    return found


def measure(store: Store, arguments: argparse.Namespace) -> pd.DataFrame:
    """A row a trial: what it is of, and by judge 1 where it found the intruder, 0 where not, 1/k where k examples are
    as unlike the others."""
    kept = opened(store, arguments.sign, {})
    if kept is None:
        raise SystemExit(f"{store.folder} keeps no meanings: ffnmem polysemanticity --store {store.folder} first")
    judges = [judge for judge in arguments.judges if judge != "state" or store.n_layers > 1]
    documents: dict[int, int] = {}
    trials = []
    for layer in range(store.n_layers) if arguments.layers is None else arguments.layers:
        own = kept[0].table(layer).select(["neuron", "sign", "verdict", "places", "meaning"]).to_pylist()
        if arguments.per_layer is not None:
            random = np.random.default_rng([arguments.seed, 42, layer])
            own = [own[i] for i in np.sort(random.permutation(len(own))[: arguments.per_layer]).tolist()]
        for row in own:
            for sequence in sequence_of(np.array(row["places"], np.int64)).tolist():
                if sequence not in documents:
                    documents[sequence] = store.sequences.locate(sequence)[0]
        trials.append(layer_trials(store, own, layer, ODD_ONES, documents, arguments.seed))
    scores = all_judged(store, store.read_model(), trials, judges)
    table = pd.DataFrame([row for some in trials for row in some.rows], columns=list(COLUMNS))
    return table.assign(**{judge: np.concatenate([np.empty(0), *found]) for judge, found in scores.items()})


def accuracy(table: pd.DataFrame, judges: Sequence[str], by: Sequence[str] = ("odd",)) -> pd.DataFrame:
    """How often each judge found the intruder, with 95% intervals (Wilson; trials of a neuron share examples)."""
    rows = []
    for names, part in table.groupby(list(by), sort=False):
        for judge in judges:
            low, high = share_interval(float(part[judge].sum()), len(part))
            numbers = {"trials": len(part), "accuracy": float(part[judge].mean()), "low": low, "high": high}
            rows.append({**dict(zip(by, names, strict=True)), "judge": judge, **numbers})
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", metavar="STORE")
    parser.add_argument("--sign", choices=("positive", "negative"), default="positive")
    parser.add_argument("--layers", type=int, nargs="+")
    parser.add_argument("--per-layer", type=int, help="neurons of each layer, at random; default all")
    parser.add_argument("--judges", nargs="+", choices=JUDGES, default=JUDGES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    table = measure(fm.open_store(arguments.store), arguments)
    judges = [judge for judge in arguments.judges if judge in table]
    if arguments.json:
        print(json.dumps(accuracy(table, judges).to_dict("records")))
        return
    print(f"chance {1 / SHOWN:.0%}")
    print(accuracy(table, judges).round(3).to_string(index=False))
    one = table[table["odd"] == "meaning"]
    for by in ("verdict", "layer"):
        print(one.groupby(by)[judges].mean().round(2).assign(trials=one.groupby(by).size()).to_string())


if __name__ == "__main__":
    main()
