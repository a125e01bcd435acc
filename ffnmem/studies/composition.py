"""How memories compose into a layer's prediction, how few of them do, and how layers refine the model's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import no_type_check

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from numba import njit
from torch import Tensor

from ..core.progress import Progress
from ..core.types import Basis
from ..models.answers import LOGITS
from ..models.model import Model
from ..models.norms import at_least_float32
from ..models.residual import passed_on
from ..scanning.store import Store
from ..vocabulary.kernels import dot
from ..vocabulary.scoring import in_threads
from ..vocabulary.uncompiled import LANES
from .agreement import quantiles, unigram
from .prefixes import Layer, Lens, Places, Positions, batches, mean_interval, share_interval
from .study import report_progress

# How few sub-updates mᵢvᵢ make up an FFN's output: counted by what is left of the output, and by weight |mᵢ|·‖vᵢ‖.

SHARES = (0.5, 0.8, 0.95)


# no_type_check keeps the tests' import hook from wrapping what numba has to compile.
@njit(nogil=True, cache=True)
@no_type_check
def explain(order, coefficients, values, outputs, shares, first, last, needed):
    """For the rows ``first`` to ``last``, subtract sub-updates in order until what is left is small enough.

    ``needed[r, s]`` becomes the smallest k with 1 − ‖y − y_k‖²/‖y‖² ≥ shares[s]. One vector of d_model numbers is all
    that is kept.
    """
    width = values.shape[1]
    left = np.empty(width, np.float64)
    lanes = np.empty(LANES, np.float64)
    for r in range(first, last):
        for j in range(width):
            left[j] = outputs[r, j]
        whole = dot(left, left, lanes)
        found = 0
        square = whole
        for k in range(order.shape[1] + 1):
            while found < shares.shape[0] and square <= (1.0 - shares[found]) * whole:
                needed[r, found] = k
                found += 1
            if found == shares.shape[0] or k == order.shape[1]:
                break
            neuron = order[r, k]
            m = coefficients[r, neuron]
            value = values[neuron]
            for j in range(width):
                left[j] -= m * value[j]
            square = dot(left, left, lanes)
        for s in range(found, shares.shape[0]):
            needed[r, s] = order.shape[1]


def updates_needed(
    coefficients: Float[np.ndarray, "rows d_mlp"],
    values: Float[np.ndarray, "d_mlp d_model"],
    shares: tuple[float, ...] = SHARES,
) -> tuple[Int64[np.ndarray, "rows shares"], Int64[np.ndarray, "rows shares"]]:
    """How many of the largest sub-updates it takes to explain each share of an FFN's output, without its bias.

    Args:
        coefficients: m, of one layer at some positions. values: v. shares: ascending, between 0 and 1.

    Returns:
        by output: the smallest k with 1 − ‖y − y_k‖²/‖y‖² ≥ share, where y = Σᵢ mᵢvᵢ and y_k is the sum of the k
        sub-updates of the largest |mᵢ|·‖vᵢ‖; by weight: the smallest k whose weights are that share of Σᵢ |mᵢ|·‖vᵢ‖.
        An output of zero needs none. ``[rows, d_mlp, d_model]`` never exists: the memory is that of the arguments.

    Source: Geva et al. 2022 (2203.14680), §3.2: dominant sub-updates by |mᵢ|·‖vᵢ‖.
    """
    m, v = (np.ascontiguousarray(array, np.float64) for array in (coefficients, values))
    weights = np.abs(m) * np.sqrt((v * v).sum(axis=-1))
    order = np.argsort(-weights, axis=-1, kind="stable")
    wanted = np.array(shares, np.float64)
    by_output = np.zeros((len(m), len(shares)), np.int64)
    outputs = m @ v
    in_threads(lambda first, last: explain(order, m, v, outputs, wanted, first, last, by_output), len(m))
    return by_output, weights_needed(np.take_along_axis(weights, order, axis=-1), wanted)


def needed_at_random(
    coefficients: Float[np.ndarray, "rows d_mlp"],
    values: Float[np.ndarray, "d_mlp d_model"],
    shares: tuple[float, ...] = SHARES,
) -> Int64[np.ndarray, "rows shares"]:
    """How many sub-updates it takes in random order: the smallest k of which the expected share is large enough.

    What is left of y after k of n sub-updates u, drawn without replacement, has the expected square
    j/(n(n−1))·((j−1)·‖y‖² + (n−j)·Σ‖uᵢ‖²), with j = n − k. Memory: ``[rows, d_mlp]``.
    """
    m, v = (np.asarray(array, np.float64) for array in (coefficients, values))
    n = m.shape[1]
    whole = ((m @ v) ** 2).sum(axis=-1, keepdims=True)
    squares = (m * m) @ (v * v).sum(axis=-1)[:, np.newaxis]
    j = np.arange(n, -1, -1.0)
    left = j * ((j - 1) * whole + (n - j) * squares) / max(n * (n - 1), 1)
    left[:, 0] = whole[:, 0]  # of a single sub-update too
    return np.stack([(left <= (1 - share) * whole).argmax(axis=-1) for share in shares], axis=-1)


def weights_needed(
    falling: Float64[np.ndarray, "rows d_mlp"], shares: Float64[np.ndarray, " shares"]
) -> Int64[np.ndarray, "rows shares"]:
    """The smallest number of the largest weights, here in falling order, that sum to each share of all."""
    sums = np.cumsum(falling, axis=-1)
    wanted = shares * sums[:, -1:]
    return np.stack([(sums < wanted[:, s : s + 1]).sum(axis=-1) + 1 for s in range(len(shares))], axis=-1) * (
        sums[:, -1:] > 0
    )


# How memories compose into a layer's prediction, and how layers refine the model's, over random prefixes.

CASES = ("residual", "agreement", "composition", "ffn")
FREQUENT = 50  # the corpus's most frequent tokens, which stand for the paper's stop words
SHORT = 5  # tokens: a prefix with fewer is short, as in the paper
MEASURES = {"output": "by_output", "random": "by_random", "weight": "by_weight"}
SPREAD = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, eq=False)
class Readings:
    """What every layer makes of every prefix.

    Attributes:
        active: memories with a coefficient above 0.
        ffn, residual, out: the tokens that the FFN's output, the residual stream before it and after it predict.
        final: the model's own prediction. probability: of ``final``, read off the residual stream before each FFN.
        by_all: whether any value of the layer predicts what the FFN's output does; by_active: any active memory's.
        by_chance: by layer, how often an active memory of one prefix predicts what the FFN's output does at another.
        by_output, by_weight, by_random: sub-updates needed, see :func:`updates_needed` and :func:`needed_at_random`;
            of some of the prefixes.
        lengths: tokens of each prefix, BOS not counted.
    """

    active: Int64[np.ndarray, "n layers"]
    ffn: Int64[np.ndarray, "n layers"]
    residual: Int64[np.ndarray, "n layers"]
    out: Int64[np.ndarray, "n layers"]
    final: Int64[np.ndarray, " n"]
    probability: Float64[np.ndarray, "n layers"]
    by_all: Bool[np.ndarray, "n layers"]
    by_active: Bool[np.ndarray, "n layers"]
    by_chance: Float64[np.ndarray, " layers"]
    by_output: Int64[np.ndarray, "some layers shares"]
    by_weight: Int64[np.ndarray, "some layers shares"]
    by_random: Int64[np.ndarray, "some layers shares"]
    lengths: Int64[np.ndarray, " n"]


def read_positions(
    model: Model,
    places: Places,
    value_tokens: list[Int64[np.ndarray, " d_mlp"]],
    *,
    lead: int,
    updates: int,
    basis: Basis = "folded",
    progress: Progress | None = None,
) -> Readings:
    """Run the prefixes and read every layer at their last tokens.

    Args:
        value_tokens: per layer, the token that each value predicts, see :func:`predictions`.
        lead: 1 if prefixes begin with BOS. updates: at how many of them, drawn evenly, sub-updates are counted.
    """
    n, layers = len(places), model.n_layers
    whole = {name: np.zeros((n, layers), np.int64) for name in ("active", "ffn", "residual", "out")}
    agrees = {name: np.zeros((n, layers), bool) for name in ("by_all", "by_active")}
    final, probability = np.zeros(n, np.int64), np.zeros((n, layers))
    counted = np.unique(np.linspace(0, n - 1, min(updates, n)).round().astype(np.int64))
    place_of = np.full(n, -1, np.int64)
    place_of[counted] = np.arange(len(counted))
    needed = {
        name: np.zeros((len(counted), layers, len(SHARES)), np.int64)
        for name in ("by_output", "by_weight", "by_random")
    }
    reader, lens = Positions(model), Lens(model)
    predicted = [Predicted(torch.from_numpy(ids).to(model.device)) for ids in value_tokens]
    done = 0
    for rows, tokens, ends in batches(places.prefixes, model.device, most=max(1, LOGITS // model.d_vocab)):
        found = reader.layers(tokens, ends)
        answer = lens.logits(found[-1].out).argmax(dim=-1)
        final[rows] = answer.cpu().numpy()
        some = place_of[rows] >= 0
        for index, layer in enumerate(found):
            before, written = lens.logits(layer.residual), lens.written(layer.ffn, basis).argmax(dim=-1)
            mine = before.gather(1, answer.unsqueeze(-1)).squeeze(-1) - before.logsumexp(dim=-1)
            probability[rows, index] = mine.exp().double().cpu().numpy()
            tops = before.argmax(dim=-1), written, lens.logits(layer.out).argmax(dim=-1)
            for name, ids in zip(("residual", "ffn", "out"), tops, strict=True):
                whole[name][rows, index] = ids.cpu().numpy()
            whole["active"][rows, index] = (layer.coefficients > 0).sum(dim=-1).cpu().numpy()
            for name, mask in zip(agrees, predicted[index].members(layer, written), strict=True):
                agrees[name][rows, index] = mask.cpu().numpy()
            if some.any():
                # As the stream gets them: one scale of a norm behind the FFN is common to all, and no share sees it.
                values = passed_on(model, index, at_least_float32(model.ffn[index].values.detach()))
                m, v = layer.coefficients.cpu().numpy()[some], values.cpu().numpy()
                counts = (*updates_needed(m, v), needed_at_random(m, v))
                for kept, count in zip(needed.values(), counts, strict=True):
                    kept[place_of[rows[some]], index] = count
        done += len(rows)
        report_progress(progress, "positions", done, n)
    lengths = np.array([len(ids) - lead for ids in places.prefixes], np.int64)
    chances = zip(predicted, whole["ffn"].T, agrees["by_active"].T, strict=True)
    by_chance = np.array([memories.by_chance(written, mask) for memories, written, mask in chances])
    return Readings(
        **whole, **agrees, **needed, final=final, probability=probability, by_chance=by_chance, lengths=lengths
    )


class Predicted:
    """The tokens that one layer's values predict, and at how many positions so far an active memory predicts each."""

    def __init__(self, tokens: Int[Tensor, " d_mlp"]) -> None:
        self.tokens = tokens
        self.distinct, self.which = torch.unique(tokens, return_inverse=True)
        self.positions = torch.zeros_like(self.distinct)

    def members(
        self, layer: Layer, written: Int[Tensor, " rows"]
    ) -> tuple[Bool[Tensor, " rows"], Bool[Tensor, " rows"]]:
        """Whether any value, and whether any active memory's, predicts the token of each row; counts the rows' own."""
        active = layer.coefficients > 0
        hits = torch.zeros(len(active), len(self.distinct), device=active.device)
        self.positions += (hits.scatter_add_(1, self.which.expand_as(active), active.float()) > 0).sum(dim=0)
        same = self.tokens == written.unsqueeze(-1)
        return same.any(dim=-1), (same & active).any(dim=-1)

    def by_chance(self, written: Int64[np.ndarray, " n"], agreeing: Bool[np.ndarray, " n"]) -> float:
        """How often an active memory of one position predicts what the layer does at another: over all ordered pairs
        of the positions counted, of which ``agreeing`` agree with themselves; NaN of a single one."""
        distinct, positions = self.distinct.cpu().numpy(), self.positions.cpu().numpy()
        at = np.minimum(np.searchsorted(distinct, written), len(distinct) - 1)
        pairs = int(positions[at][distinct[at] == written].sum()) - int(agreeing.sum())
        n = len(written)
        return pairs / (n * (n - 1)) if n > 1 else float("nan")


def composition_table(
    readings: Readings, value_tokens: list[Int64[np.ndarray, " d_mlp"]], store: Store, seed: int
) -> pd.DataFrame:
    """By layer: active memories, and how often the layer's prediction is none of its memories'.

    Returns:
        layer, positions; active (mean number of memories with m > 0) with low, high, active_share (of d_mlp) and its
        quantiles over positions; zero_agreement (share of positions where no value of the layer predicts what the
        FFN's output does) with low, high; zero_agreement_active (no *active* memory does) with low, high, and
        zero_agreement_shuffled, the same by chance: the layer's prediction against the active memories of other
        positions. Of the positions with agreement (any value), frequent_share, where the token is among the corpus's
        50 most frequent, and short_share, where the prefix has fewer than 5 tokens; predicted (how many different
        tokens the layer's values predict: the fewer, the rarer agreement can be).
    """
    frequent = np.argsort(-unigram(store), kind="stable")[:FREQUENT]
    rows = []
    for layer, tokens in enumerate(value_tokens):
        width = len(tokens)
        active = readings.active[:, layer]
        mean, low, high = mean_interval(active.astype(np.float64), seed)
        agrees = readings.by_all[:, layer]
        row: dict[str, float] = {"layer": layer, "positions": len(active), "active": mean, "active_low": low}
        row |= {"active_high": high, "active_share": mean / width, **quantiles(active / width, SPREAD, "active_share")}
        for name, mask in (("zero_agreement", agrees), ("zero_agreement_active", readings.by_active[:, layer])):
            share, low, high = share_interval(int((~mask).sum()), len(mask))
            row |= {name: share, f"{name}_low": low, f"{name}_high": high}
        row["zero_agreement_shuffled"] = 1 - float(readings.by_chance[layer])
        row["frequent_share"] = mean_of(np.isin(readings.ffn[agrees, layer], frequent))
        row["short_share"] = mean_of(readings.lengths[agrees] < SHORT)
        row["predicted"] = len(np.unique(tokens))
        rows.append(row)
    return pd.DataFrame(rows)


def mean_of(mask: np.ndarray) -> float:
    return float(mask.mean()) if len(mask) else float("nan")


def cases(readings: Readings) -> dict[str, Bool[np.ndarray, "n layers"]]:
    """Of which part the residual stream after each FFN takes its prediction: every position is one of the four.

    residual: what stood there before; ffn: what the FFN wrote; agreement: both; composition: neither.
    """
    kept, wrote = readings.out == readings.residual, readings.out == readings.ffn
    return {
        "residual": kept & ~wrote,
        "agreement": kept & wrote,
        "composition": ~kept & ~wrote,
        "ffn": ~kept & wrote,
    }


def refinement_table(readings: Readings, seed: int) -> pd.DataFrame:
    """By layer: how near the residual stream before its FFN is to the model's answer, and what the FFN does to it.

    Returns:
        layer, positions; match (share where the residual's top token is the model's final one) with low, high;
        probability (mean, of the final token, read off the residual) with low, high and quantiles; and the shares of
        the four cases residual, agreement, composition, ffn.
    """
    rows = []
    shares = cases(readings)
    for layer in range(readings.out.shape[1]):
        match = readings.residual[:, layer] == readings.final
        share, low, high = share_interval(int(match.sum()), len(match))
        row: dict[str, float] = {"layer": layer, "positions": len(match), "match": share, "match_low": low}
        row["match_high"] = high
        probability = readings.probability[:, layer]
        mean, low, high = mean_interval(probability, seed)
        row |= {"probability": mean, "probability_low": low, "probability_high": high}
        row |= quantiles(probability, SPREAD, "probability")
        rows.append(row | {name: mean_of(shares[name][:, layer]) for name in CASES})
    return pd.DataFrame(rows)


def update_table(readings: Readings, model: Model) -> pd.DataFrame:
    """By layer, share and measure: how many of the largest sub-updates it takes, as quantiles over positions.

    Returns:
        layer, measure ("output": of 1 − ‖y − y_k‖²/‖y‖²; "random": of the same, taken in random order; or "weight": of
        Σ|mᵢ|·‖vᵢ‖), share, positions, needed_5, needed_25, needed_50, needed_75, needed_95, and part (the median as a
        share of the layer's neurons).
    """
    rows = []
    for layer in range(model.n_layers):
        for measure, name in MEASURES.items():
            counts: Int64[np.ndarray, "some layers shares"] = getattr(readings, name)
            for index, share in enumerate(SHARES):
                mine = counts[:, layer, index]
                needed = quantiles(mine, SPREAD, "needed")
                part = needed["needed_50"] / model.ffn[layer].d_mlp
                about = {"layer": layer, "measure": measure, "share": share, "positions": len(mine)}
                rows.append({**about, **needed, "part": part})
    return pd.DataFrame(rows)
