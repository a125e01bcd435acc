"""``intruders``: four examples of a meaning and one that is not: can a judge that did not sort them tell which?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Float32, Float64, Int64

from ..core.errors import InputError, check_choice
from ..core.neuron_names import LayerName
from ..core.number_text import format_interval, format_share
from ..core.progress import Progress
from ..core.sheets import Column, Origin, Sheet, Table, rows
from ..core.types import JUDGES, ODD_ONES, CoefficientSign, Count, Seed, checked
from ..models.model import Model
from ..models.turns import in_turn
from ..scanning.state import position_of, sequence_of
from ..scanning.store import Store
from ..show.result import Result
from ..vocabulary.vectors import side_tokens
from .counting import content_counts
from .inputs import Background, Inputs, normalised, read_backgrounds
from .measuring import MEANINGS, chosen_layers, opened, rule_key
from .measuring import judged as judged_by
from .verdicts import RULE, Rule, share_interval

# Trials: four examples of a meaning, and one that is not of it, or is (the null).

SHOWN = 5
CHANCE = 1 / SHOWN
WORDS = {
    "meaning": "another meaning of the neuron",
    "neuron": "a meaning of another neuron",
    "half": "the same meaning (null)",
}
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


def pick(similarity: Float64[np.ndarray, "n shown shown"]) -> Float64[np.ndarray, " n"]:
    """Whether the last of five is the least like the others: 1, 0, or a share of 1 where it is so with others."""
    alone = similarity.copy()
    alone[:, range(SHOWN), range(SHOWN)] = 0.0
    likeness = alone.sum(2) / (SHOWN - 1)
    least = likeness <= likeness.min(1, keepdims=True) + 1e-9
    return np.where(least[:, -1], 1 / least.sum(1), 0.0)


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
        return normalised(self.rows[self.tokens(places)])

    def around(self, places: Int64[np.ndarray, " n"]) -> Float32[np.ndarray, "n d_model"]:
        """Of up to AROUND tokens on each side, without the one at the place."""
        found = np.zeros((len(places), self.rows.shape[1]), np.float32)
        lead = self.store.sequences.lead
        for row, place in enumerate(places.tolist()):
            tokens, at = self.store.sequences.sequence_tokens(int(sequence_of(place))), int(position_of(place))
            near = np.concatenate([tokens[max(lead, at - AROUND) : at], tokens[at + 1 : at + 1 + AROUND]])
            found[row] = self.weights[near] @ self.rows[near]
        return normalised(found)


def judged(
    trials: Trials, judge: str, embeddings: Embeddings, inputs: Inputs | None, background: Background | None
) -> Float64[np.ndarray, " n"]:
    """Of each trial, whether a judge found the intruder."""
    places = trials.places.reshape(-1)
    if not len(places):
        return np.empty(0)
    if judge == "trigger":
        tokens = embeddings.tokens(places).reshape(-1, SHOWN)
        return pick((tokens[:, :, None] == tokens[:, None, :]).astype(np.float64))
    if judge == "state":
        assert inputs is not None
        assert background is not None
        found = background.unit(inputs.at(trials.layer, places))
    else:
        found = embeddings.token(places) if judge == "token" else embeddings.around(places)
    units = found.reshape(-1, SHOWN, found.shape[-1]).astype(np.float64)
    return pick(units @ units.transpose(0, 2, 1))


# `Intruders`: how often each judge found the one that does not belong.


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Intruders(Result):
    """How often a judge finds the example that is not of a meaning. Made by :func:`ffnmem.neurons.intruders`.

    Attributes:
        model: its name.
        table: one row a trial: layer, neuron, sign, verdict, odd (where the intruder is from), meaning (the number of
            the one that the other four are of), other (the intruder's meaning, or the neuron it is of), and a column
            for each judge: 1 where it found the intruder, 0 where not, 1/k where k examples are as unlike the others.
        provenance: plain values.
    """

    main = "table"
    chance: ClassVar[float] = CHANCE
    in_json = "chance accuracy layers verdicts"

    model: str
    table: pd.DataFrame
    provenance: dict[str, Any]

    @property
    def judges(self) -> list[str]:
        return [judge for judge in JUDGES if judge in self.table.columns]

    def accuracy(self, by: str | None = None) -> pd.DataFrame:
        """One row for each kind of intruder and judge: odd, judge, trials, accuracy with ``_low`` and ``_high`` (95%,
        Wilson); chance is .2. ``by``: a column of ``table``, such as "layer" or "verdict", for a row of each value.

        Raises: InputError: no such column.
        """
        if by is not None:
            check_choice("by", by, COLUMNS)
        found = []
        keys = ["odd"] if by is None else ["odd", by]
        for names, part in self.table.groupby(keys, sort=False):
            for judge in self.judges:
                low, high = share_interval(float(part[judge].sum()), len(part))
                row = dict(zip(keys, names, strict=True))
                row |= {"judge": judge, "trials": len(part), "accuracy": float(part[judge].mean())}
                found.append(row | {"accuracy_low": low, "accuracy_high": high})
        order = ["odd", *([] if by is None else [by]), "judge", "trials", "accuracy", "accuracy_low", "accuracy_high"]
        frame = pd.DataFrame(found, columns=order)
        place = frame["odd"].map({kind: at for at, kind in enumerate(ODD_ONES)})
        return frame.assign(place=place).sort_values(
            ["place", *([] if by is None else [by])], kind="stable", ignore_index=True
        ).drop(columns="place")  # fmt: skip

    @property
    def layers(self) -> pd.DataFrame:
        """:meth:`accuracy` by layer."""
        return self.accuracy("layer")

    @property
    def verdicts(self) -> pd.DataFrame:
        """:meth:`accuracy` by verdict."""
        return self.accuracy("verdict")

    def summary(self) -> str:
        said = [
            f"{WORDS[odd]} {', '.join(f'{format_share(row.accuracy)} by {row.judge}' for row in part.itertuples())}"
            for odd, part in self.accuracy().groupby("odd", sort=False)
        ]
        return f"{self.model}: {'; '.join(said)}; chance {format_share(CHANCE)}"

    def sheet(self) -> Sheet:
        """How often each judge found the intruder, by where it is from, by verdict, and by layer."""
        return Sheet.of(
            self.accuracy_table(), self.split_table("verdict"), self.split_table("layer"), Origin(self.provenance),
            title=f"Intruders: {self.model}",
        )  # fmt: skip

    def accuracy_table(self) -> Table:
        """A row a kind of intruder."""
        shown = rows(
            Column("the fifth is of", wraps=True), Column("trials", "count"),
            *(Column(judge, left=False) for judge in self.judges),
        )  # fmt: skip
        for odd, part in self.accuracy().groupby("odd", sort=False):
            ends = [format_interval(o.accuracy, o.accuracy_low, o.accuracy_high) for o in part.itertuples()]
            shown.add(WORDS[str(odd)], int(part["trials"].iloc[0]), *ends)
        return shown.table(
            "the intruder found",
            caption=f"chance {format_share(CHANCE)}; 95% intervals (Wilson). "
            "state: inputs of the FFN half the model away; around: the text on both sides; "
            "token: embeddings of the firing tokens; trigger: the same token.",
        )

    def split_table(self, by: str) -> Table:
        """The accuracy where the intruder is another meaning of the neuron, by the values of a column."""
        shown = rows(
            Column(by, left=by == "verdict"), Column("trials", "count"),
            *(Column(judge, "number", places=2) for judge in self.judges),
        )  # fmt: skip
        found = self.accuracy(by)
        for value, part in found[found["odd"] == ODD_ONES[0]].groupby(by, sort=False):
            shown.add(str(value), int(part["trials"].iloc[0]), *part["accuracy"].tolist())
        return shown.table(f"{WORDS[ODD_ONES[0]]}, by {by}")


@checked
@in_turn
def intruders(
    store: Store,
    model: Model | None = None,
    *,
    layers: LayerName | Iterable[LayerName] | None = None,
    per_layer: Count | None = None,
    sign: CoefficientSign = "positive",
    odd: str | Iterable[str] = ODD_ONES,
    judges: str | Iterable[str] = JUDGES,
    seed: Seed = 0,
    rule: Rule = RULE,
    progress: Progress | None = None,
) -> Intruders:
    """Show judges four examples of one meaning and one that is not of it: do they find the one that does not belong?

    Meanings are sorted by what a layer's FFN read; the judges see something else. Where they find an example of another
    meaning more often than one in five, the meanings are there for them too. All five are of different documents.

    Args:
        store: from :func:`ffnmem.scan`, with a table of :func:`ffnmem.polysemanticity` of the sign kept in its folder.
        model: the one scanned; default: load it by its name.
        layers: one or several; default all. per_layer: at most so many neurons of each, at random; default all.
        sign: of the coefficient, "positive" or "negative".
        odd: where the fifth is from: "meaning" (another one of the neuron, of two examples at least), "neuron" (a
            meaning of another neuron of the layer) or "half" (the same meaning: the null, at which .2 is right).
        judges: "state" (whitened inputs of the FFN half the model away; not of a model of one layer), "around" (the
            mean input embedding of 8 tokens on each side, frequent ones counting less), "token" (the input embedding of
            the firing token), "trigger" (whether it is the same token).
        seed: of what is drawn. rule: of the verdicts in the table. progress: called as ("read", done, total) in tokens.

    Returns: An :class:`Intruders`.

    Raises:
        OutOfRangeError: no such layer. InputError: no table is kept, another model's store, settings out of range.
        ModelError: the model cannot be loaded by its name.

    Source: Chang et al. 2009, "Reading tea leaves" for intruders; Arora et al. 2017 for the mean of embeddings.
    """
    chosen = chosen_layers(store, layers)
    kinds, asked = several("odd", odd, ODD_ONES), several("judge", judges, JUDGES)
    asked = [judge for judge in asked if judge != "state" or store.n_layers > 1]
    if not asked:
        raise InputError("the judge 'state' reads another layer, and the model has one only")
    kept = opened(store, sign, {})
    if kept is None:
        raise InputError(
            f"{store.folder} keeps no meanings of {sign} coefficients: measure them first, "
            f"fm.polysemanticity(store, sign={sign!r}), or ffnmem polysemanticity"
        )
    model = store.read_model() if model is None else model
    store.check_model(model)
    documents: dict[int, int] = {}
    trials = []
    for layer in chosen:
        read = kept[0].table(layer)
        told = judged_by(read.select([*MEANINGS, "examples", "verdict"]).to_pandas(), rule)["verdict"].tolist()
        own = read.select(["neuron", "sign", "places", "meaning"]).to_pylist()
        own = [{**row, "verdict": verdict} for row, verdict in zip(own, told, strict=True)]
        if per_layer is not None:
            at = np.sort(np.random.default_rng([seed, 42, layer]).permutation(len(own))[:per_layer])
            own = [own[i] for i in at.tolist()]
        for row in own:
            for sequence in sequence_of(np.array(row["places"], np.int64)).tolist():
                if sequence not in documents:
                    documents[sequence] = store.sequences.locate(sequence)[0]
        trials.append(layer_trials(store, own, layer, kinds, documents, seed))
    scores = all_judged(store, model, trials, asked, seed, progress)
    table = pd.DataFrame([row for some in trials for row in some.rows], columns=list(COLUMNS))
    for judge in asked:
        table[judge] = np.concatenate([np.empty(0), *scores[judge]])
    settings: dict[str, Any] = {
        "sign": sign,
        "odd": kinds,
        "judges": asked,
        "per_layer": per_layer,
        "seed": seed,
        "around": AROUND,
        "rule": rule_key(rule),
    }
    return Intruders(store.model, table, {**kept[1]["provenance"], "intruders": settings})


def all_judged(
    store: Store, model: Model, trials: Sequence[Trials], judges: Sequence[str], seed: int, progress: Progress | None
) -> dict[str, list[Float64[np.ndarray, " n"]]]:
    """By judge, what it found of each layer's trials."""
    embeddings = Embeddings(store, model)
    found = {
        judge: [judged(some, judge, embeddings, None, None) for some in trials] for judge in judges if judge != "state"
    }
    if "state" in judges:
        backgrounds = read_backgrounds(store, model, seed, progress)
        away = [Trials(judge_layer(some.layer, store.n_layers), some.places, some.rows) for some in trials]
        places = {some.layer: some.places.reshape(-1) for some in away if len(some.places)}
        with Inputs(store, model, places, progress) as inputs:
            found["state"] = [judged(some, "state", embeddings, inputs, backgrounds[some.layer]) for some in away]
    return found


def several(name: str, asked: str | Iterable[str], possible: Sequence[str]) -> list[str]:
    """What is asked for in the order of what is possible; raises InputError."""
    chosen = [asked] if isinstance(asked, str) else list(asked)
    for one in chosen:
        check_choice(name, one, possible)
    if not chosen:
        raise InputError(f"name one {name} at least: {', '.join(possible)}")
    return [one for one in possible if one in chosen]
