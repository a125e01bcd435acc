"""Whether a value predicts what follows its key's trigger: argmax of softmax(v·E) against the next token, all keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

from ..core.progress import Progress
from ..core.types import Basis
from ..models.model import Model
from ..models.norms import at_least_float32
from ..scanning.contexts import Window
from ..scanning.store import Store
from ..vocabulary.scoring import BLOCK
from ..vocabulary.vectors import side_tokens, side_vectors
from .prefixes import UNIGRAM, followers, share_interval, triggers
from .study import report_progress

SCORES = 1 << 24  # of one block of values and the vocabulary
RANKS = (0.05, 0.25, 0.5, 0.75, 0.95)
CONFIDENT = 100  # values of the highest probability, as in the paper's table


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a layer's values predict.

    Attributes:
        token: argmax of each value's distribution p over the vocabulary.
        probability: its p.
        rank: of some token of each key's in p, from 1; 0 where none was asked for.
    """

    token: Int64[np.ndarray, " d_mlp"]
    probability: Float32[np.ndarray, " d_mlp"]
    ranks: Int64[np.ndarray, "asked d_mlp"]


def predictions(
    model: Model, layer: int, asked: Int64[np.ndarray, "asked d_mlp"], basis: Basis = "folded"
) -> Predictions:
    """The top token of every value of a layer, its probability, and the ranks of the tokens asked for (−1: none).

    A rank is one more than the number of tokens with a larger score; ``[neurons, vocab]`` exists in blocks only.
    """
    tokens = at_least_float32(side_tokens(model, "value"))
    width = model.ffn[layer].d_mlp
    top, probability = np.empty(width, np.int64), np.empty(width, np.float32)
    ranks = np.zeros((len(asked), width), np.int64)
    step = min(BLOCK, max(1, SCORES // len(tokens)))
    for start in range(0, width, step):
        block = list(range(start, min(start + step, width)))
        scores = side_vectors(model, layer, block, "value", basis) @ tokens.T
        best, ids = scores.max(dim=-1)
        part = slice(start, start + len(block))
        top[part] = ids.cpu().numpy()
        probability[part] = (best - scores.logsumexp(dim=-1)).exp().cpu().numpy()
        for row, wanted in enumerate(asked):
            ranks[row, part] = ranked(scores, wanted[part])
    return Predictions(top, probability, ranks)


def ranked(scores: Float[Tensor, "rows vocab"], wanted: Int64[np.ndarray, " rows"]) -> Int64[np.ndarray, " rows"]:
    """The rank of one token in each row, from 1; 0 where the token is −1."""
    ids = torch.from_numpy(np.maximum(wanted, 0)).to(scores.device).unsqueeze(-1)
    above = (scores > scores.gather(1, ids)).sum(dim=-1).cpu().numpy()
    return np.where(wanted < 0, 0, above + 1)


@dataclass(frozen=True, eq=False)
class Agreement:
    """One layer's keys and values side by side.

    Attributes:
        triggers: the keys' trigger prefixes, with ``follower``, the next token's id or −1.
        following: of every key, the token that follows its best trigger prefix that anything follows; −1 if none.
        values: what the values predict; its ranks are those of ``following`` and of random tokens.
    """

    triggers: pd.DataFrame
    following: Int64[np.ndarray, " d_mlp"]
    values: Predictions


def agreements(
    model: Model, store: Store, *, basis: Basis, seed: int, progress: Progress | None = None
) -> list[Agreement]:
    """Keys' triggers and values' predictions of all layers.

    The trigger of a key is its best prefix that a token follows, as in the paper, where every prefix has a next token.
    """
    frequencies = unigram(store)
    done, total = 0, sum(ffn.d_mlp for ffn in model.ffn)
    found = []
    for layer in range(model.n_layers):
        width = model.ffn[layer].d_mlp
        rows = triggers(store, layer)
        rows["follower"] = followers(
            store.sequences, rows["sequence"].to_numpy(np.int64), rows["position"].to_numpy(np.int64)
        )
        best = rows[rows["follower"] >= 0].drop_duplicates("neuron")
        following = np.full(width, -1, np.int64)
        following[best["neuron"].to_numpy()] = best["follower"].to_numpy()
        generator = np.random.default_rng([seed, UNIGRAM, layer])
        random = generator.choice(len(frequencies), width, p=frequencies)
        asked = np.stack([following, np.where(following < 0, -1, random)])
        found.append(Agreement(rows, following, predictions(model, layer, asked, basis)))
        done += width
        report_progress(progress, "weights", done, total)
    return found


def unigram(store: Store) -> Float64[np.ndarray, " vocab"]:
    """The share of each token in the store's corpus, special ones left out."""
    counts = np.array(store.corpus.token_counts, np.float64)
    counts[[i for i in store.settings.special if i < len(counts)]] = 0
    return counts / counts.sum()


def agreement_table(found: list[Agreement], store: Store, d_vocab: int) -> pd.DataFrame:
    """By layer, how often the value's top token is the one that follows the key's trigger, and that token's rank.

    Returns:
        layer, keys, without (keys of which no kept trigger is followed by a token), agreement with its 95% interval
        (low, high), and what agreement would be by chance: ``unigram``, if what followed were drawn from the corpus's
        tokens; ``shuffled``, from what follows the layer's other keys; ``uniform``, from the vocabulary. Then quantiles
        of the next token's rank over keys, and the median rank of a token drawn from the corpus, ``random_rank_50``.
    """
    frequencies = unigram(store)
    rows = []
    for layer, agreement in enumerate(found):
        kept = agreement.following >= 0
        wanted, top = agreement.following[kept], agreement.values.token[kept]
        same = int((wanted == top).sum())
        share, low, high = share_interval(same, len(wanted))
        chance = frequencies[np.minimum(top, len(frequencies) - 1)] * (top < len(frequencies))
        size = max(d_vocab, len(frequencies))
        pairs = np.bincount(wanted, minlength=size) @ np.bincount(top, minlength=size)
        rows.append(
            {
                "layer": layer,
                "keys": len(kept),
                "without": int((~kept).sum()),
                "agreement": share,
                "low": low,
                "high": high,
                "unigram": float(chance.mean()) if len(top) else float("nan"),
                "shuffled": float(pairs - same) / (len(top) * (len(top) - 1)) if len(top) > 1 else float("nan"),
                "uniform": 1 / d_vocab,
                **quantiles(agreement.values.ranks[0][kept], RANKS, "rank"),
                **quantiles(agreement.values.ranks[1][kept], (0.5,), "random_rank"),
            }
        )
    return pd.DataFrame(rows)


def quantiles(values: np.ndarray, of: tuple[float, ...], name: str) -> dict[str, float]:
    """Quantiles as plain numbers, by column (``rank_50``); NaN of nothing."""
    found = np.quantile(values, of) if len(values) else np.full(len(of), np.nan)
    return {f"{name}_{100 * q:.0f}": float(value) for q, value in zip(of, found, strict=True)}


def confident_table(found: list[Agreement], model: Model, store: Store, count: int = CONFIDENT) -> pd.DataFrame:
    """The values of the highest probability over all layers, and whether what follows their keys' triggers agrees.

    Returns:
        rank, layer, neuron, probability, predicted_token, triggers (kept ones that a token follows), agreeing (of
        them, followed by the prediction), precision (agreeing/triggers), prefix (the best that agrees, or the best).
    """
    layers = np.concatenate([np.full(len(a.values.token), layer) for layer, a in enumerate(found)])
    neurons = np.concatenate([np.arange(len(a.values.token)) for a in found])
    probability = np.concatenate([a.values.probability for a in found])
    order = np.argsort(-probability, kind="stable")[:count]
    ids = np.concatenate([a.values.token for a in found])[order]
    rows, places = [], []
    for rank, (index, token, text) in enumerate(
        zip(order, ids, model.token_strings(ids.tolist()), strict=True), start=1
    ):
        layer, neuron = int(layers[index]), int(neurons[index])
        mine = found[layer].triggers
        mine = mine[(mine["neuron"] == neuron) & (mine["follower"] >= 0)]
        agreeing = mine[mine["follower"] == token]
        best = agreeing if len(agreeing) else mine
        places.append(None if best.empty else (int(best["sequence"].iloc[0]), int(best["position"].iloc[0])))
        precision = len(agreeing) / len(mine) if len(mine) else float("nan")
        rows.append((rank, layer, neuron, float(probability[index]), text, len(mine), len(agreeing), precision))
    names = ["rank", "layer", "neuron", "probability", "predicted_token", "triggers", "agreeing", "precision"]
    windows = iter(store.contexts.windows([place for place in places if place is not None], 16))
    texts = ["" if place is None else before(next(windows)) for place in places]
    return pd.DataFrame(rows, columns=names).assign(prefix=texts)


def before(window: Window) -> str:
    """The text of a window up to its position."""
    return "".join(window.tokens[: window.at + 1])
