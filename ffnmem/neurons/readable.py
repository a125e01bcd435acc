"""``find_readable``: the neurons of a store that are worth opening first, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Float64, Int, Int64
from scipy import special, stats

from ..core.defaults import READABLE
from ..core.neuron_names import LayerName
from ..core.progress import Progress
from ..core.types import COEFFICIENT_SIGNS, Count, checked
from ..corpus.batches import Sequences
from ..scanning.neuron_sides import NEGATIVE, POSITIVE, STRONG, WEAK
from ..scanning.store import Store
from ..scanning.tables import VALUES, layer_examples
from ..show.result import Result
from ..vocabulary.vectors import SIGNS
from .counting import content_counts
from .measuring import chosen_layers
from .survey import kept_verdicts
from .verdicts import RULE, share_interval

WIDE = RULE.examples
"""Examples of different texts that a side must have."""
BEFORE = 4  # tokens in front of the one that it fires at: where these agree too, texts count as one
NAMED = 4  # tokens that are listed of each kind
LEVEL = 0.05  # of the false discovery rate
KEY = ["layer", "neuron", "sign"]
KINDS = {POSITIVE: "top", NEGATIVE: "bottom"}
COLUMNS = [
    *KEY, "largest", "examples", "followed", "followed_low", "followed_high", "chance", "lift", "q", "verdict",
    "meanings", "fires_at", "followed_by", "promotes",
]  # fmt: skip


@checked
@dataclass(frozen=True, eq=False, repr=False)
class ReadableNeurons(Result):
    """The neurons of a store that are worth opening first. Made by :func:`ffnmem.neurons.find_readable`.

    Attributes:
        neurons: followed is how many of the strongest examples go on with a token that the neuron then promotes, by
            chance is how often the text has such tokens, lift is how far the first exceeds the second, in bits. One row
            a side of a neuron (its coefficients of one sign), the first to open first: layer, neuron, sign, largest
            (its coefficient furthest from 0), examples (of different texts, at least half as strong), followed (how
            many of them go on with a token that the side promotes), followed_low and followed_high (95%, of the share),
            chance (the share of such tokens in the corpus), lift (bits by which followed_low exceeds chance: their
            Kullback–Leibler divergence), q (the false discovery rate), verdict and meanings (empty and NaN where they
            were not measured), fires_at, followed_by, promotes (tokens).
        compared: how many sides had enough examples.
        unmeasured: the signs of the sides of which the store keeps no verdicts.
        provenance: plain values.
    """

    tables: ClassVar = {
        "neurons": "neuron fires_at promotes followed examples chance lift verdict | largest followed_by q meanings"
    }
    only_data = "compared unmeasured"

    neurons: pd.DataFrame
    compared: int
    unmeasured: tuple[str, ...]
    provenance: dict[str, Any]

    @property
    def verdict(self) -> str:
        """What they have in common, and whether they may have several meanings."""
        if not len(self.neurons):
            return "No neuron fires in front of a token that it promotes more often than by chance."
        said = "These neurons fire in front of tokens that they promote: their values help to say what comes next."
        if self.unmeasured:
            return f"{said} Whether they have one meaning or several is not measured yet (ffnmem polysemanticity)."
        return f"{said} Those with several meanings are left out, those with one come first."


@checked
def find_readable(
    store: Store,
    *,
    k: Count | None = READABLE,
    layers: LayerName | Iterable[LayerName] | None = None,
    progress: Progress | None = None,
) -> ReadableNeurons:
    """The neurons that are worth opening first.

    Lists sides of neurons (positive and negative coefficients) that are clear, wide enough and promote what comes next:
    8 or more strong examples of different texts, which go on with a token that the side then promotes more often than
    chance has it, and no verdict "polysemantic". Those with the verdict "monosemantic" come first.

    Note: A side is wide enough with 8 or more examples of different texts that reach half of its largest coefficient.
    It promotes what comes next if these go on with one of the ten tokens that it then promotes more often than the
    corpus has these tokens (a binomial test; false discovery rate below 5% over all sides). Sides are ordered by lift:
    the divergence, in bits, of the lower end of the share's interval from the share by chance, so that neither a rare
    token once nor a common one always comes first.

    Args:
        store: from :func:`ffnmem.scan`. Verdicts are those of :func:`ffnmem.polysemanticity`, where they are kept.
        k: how many; None for all.
        layers: Only these layers. [default: all]
        progress: called as ("read", done, all) in neurons; before that as ("project", done, all), where the store has
            no table yet of what its neurons write: that takes the model, and is kept in the store's folder.

    Returns: :class:`ReadableNeurons`.

    Raises: OutOfRangeError: no such layer. ModelError: the model is needed and cannot be loaded by its name. FileError.

    Source: Wilson 1927 for the interval; Benjamini and Hochberg 1995 for the false discovery rate; the choice is ours.

    Example:
        $ ffnmem readable --store runs/atlas
    """
    chosen = chosen_layers(store, layers)
    if not store.projected:
        store.keep_values(progress)
    words, counts = word_codes(store), content_counts(store)
    share = np.bincount(words, weights=counts / max(counts.sum(), 1), minlength=len(words))
    done, total, parts = 0, sum(store.d_mlp(layer) for layer in chosen), []
    for layer in chosen:
        parts.append(judge_sides(store, layer, words, share))
        done += store.d_mlp(layer)
        if progress is not None:
            progress("read", done, total)
    wide = pd.concat(parts, ignore_index=True).query("examples >= @WIDE")
    p = stats.binom.sf(wide["followed"] - 1, wide["examples"], wide["chance"])
    sides = wide.assign(q=stats.false_discovery_control(p) if len(p) else p).query("q < @LEVEL")
    signs = COEFFICIENT_SIGNS if store.gated else (POSITIVE,)
    kept = {sign: table for sign in signs if (table := kept_verdicts(store, sign)) is not None}
    known = pd.concat(kept.values()) if kept else pd.DataFrame(columns=[*KEY, "verdict", "meanings"])
    sides = sides.merge(known.astype(sides[KEY].dtypes), "left", KEY).fillna({"verdict": ""})
    ends = [share_interval(*row) for row in zip(sides["followed"], sides["examples"], strict=True)]
    sides[["followed_low", "followed_high"]] = np.array(ends, np.float64).reshape(-1, 2)
    low, chance = sides["followed_low"], sides["chance"]
    bits = (special.rel_entr(low, chance) + special.rel_entr(1 - low, 1 - chance)) / np.log(2)
    sides["lift"] = bits.where(low > chance, 0.0)
    sides = sides[sides["verdict"] != "polysemantic"]
    last = (sides["verdict"] != "monosemantic", -sides["lift"])
    sides = sides.iloc[np.lexsort((sides["neuron"], sides["layer"], *last[::-1]))][:k]
    found = [store.neuron(row.layer, row.neuron, kind=KINDS[row.sign]).side(row.sign) for row in sides.itertuples()]
    for name in ("fires_at", "followed_by", "promotes"):
        texts = [[text for text, _ in getattr(side, name)[:NAMED]] for side in found]
        sides[name] = pd.Series(texts, sides.index, object)
    sides = sides[COLUMNS].reset_index(drop=True)
    return ReadableNeurons(sides, len(wide), tuple(sign for sign in signs if sign not in kept), store.provenance)


def word_codes(store: Store) -> Int64[np.ndarray, " vocab"]:
    """A number for each token id, the same for those that are one word but for spaces around it and upper case."""
    texts = store.contexts.kept(range(store.corpus.vocab))
    first: dict[str, int] = {}
    return np.array([first.setdefault(text.strip().casefold() or text, index) for index, text in enumerate(texts)])


def judge_sides(
    store: Store, layer: int, words: Int64[np.ndarray, " vocab"], share: Float64[np.ndarray, " vocab"]
) -> pd.DataFrame:
    """Of each side of a layer's neurons: layer, neuron, sign, largest, examples, followed, chance.

    Args: words: the number of each token's word. share: of each word, its share of the corpus.
    """
    side = ["neuron", "sign"]
    signs = {kind: sign for sign, kind in KINDS.items() if sign == POSITIVE or store.gated}
    rows = layer_examples(store.view(layer), store.settings.k, store.sequences)
    rows = rows.assign(sign=rows["kind"].astype(str).map(signs)).dropna(subset="sign")
    rows["size"] = rows["coefficient"] * np.where(rows["sign"] == POSITIVE, 1, -1)
    rows["largest"] = rows.groupby(side)["size"].transform("max")
    furthest = rows.groupby("neuron")["largest"].transform("max")
    strong = (rows["size"] >= STRONG * rows["largest"]) & (rows["largest"] >= WEAK * furthest) & (rows["size"] > 0)
    rows = rows[strong].reset_index(drop=True)
    around = tokens_around(store.sequences, rows["sequence"].to_numpy(), rows["position"].to_numpy())
    new = ~pd.concat([rows[side], pd.DataFrame(around)], axis=1).duplicated()
    rows["word"] = np.where(around[:, -1] < 0, -1, words[around[:, -1]])
    values = store.opened(VALUES).table(layer).select([*side, "side", "token_id"]).to_pandas()
    values = values[(values["side"] == "value") & (values["token_id"] < len(words))]  # a vocabulary may be padded
    ends = values["sign"].astype(str).map(dict(zip(SIGNS, KINDS, strict=True)))
    written = values.assign(sign=ends, word=words[values["token_id"]])[[*side, "word"]].drop_duplicates()
    written["chance"] = share[written["word"]]
    rows = rows[new].merge(written, "left", [*side, "word"])
    found = rows.groupby(side, as_index=False).agg(
        largest=("largest", "first"), examples=("size", "size"), followed=("chance", "count")
    )
    chance = written.groupby(side, as_index=False)["chance"].sum()
    found = found.merge(chance, "left", side).assign(layer=layer)
    found["largest"] *= np.where(found["sign"] == POSITIVE, 1, -1)
    return found


def tokens_around(
    sequences: Sequences, numbers: Int64[np.ndarray, " n"], positions: Int[np.ndarray, " n"]
) -> Int64[np.ndarray, "n around"]:
    """The tokens from BEFORE places before a position of each sequence to the one after it; −1 where it has none."""
    at = positions[:, None] + np.arange(-BEFORE, 2)
    there = (at >= sequences.lead) & (at < sequences.lengths_of(numbers)[:, None])
    found = np.full(at.shape, -1, np.int64)
    found[there] = sequences.tokens_at(np.broadcast_to(numbers[:, None], at.shape)[there], at[there])
    return found
