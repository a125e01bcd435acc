"""``projection_null``: how large the best scores of a random vector would be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, SupportsIndex

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ..core.neuron_names import LayerName, NeuronName
from ..core.types import LOGIT, Basis, Count, Seed, at_least, checked
from ..models.model import Model
from .lenses import Lens, describe_lens, load_lens, name_of
from .projections import choose_neurons
from .scoring import Scorer, row_norms
from .vectors import SIGNS, check_sides, matrix_of, ready, rows_of, side_tokens

TIED = 1e-6  # relative: scores of equal vectors of other lengths differ by rounding, and must count as equal


@checked
def projection_null(
    model: Model,
    layer: LayerName | NeuronName,
    neuron: SupportsIndex | Iterable[SupportsIndex] | None = None,
    *,
    kind: Literal["random", "shuffled"] = "random",
    draws: Annotated[int, at_least(2)] = 200,
    k: Count = 10,
    seed: Seed = 0,
    basis: Basis = "folded",
    lens: Lens = LOGIT,
    side: str | Sequence[str] | None = None,
) -> pd.DataFrame:
    """How large a neuron's best scores are beside those of random vectors of the same norm.

    Even a random vector has a best token, and an extreme one: the vocabulary is large. A score means something as far
    as it stands out from that.

    Args:
        model: from :func:`ffnmem.load`.
        layer: one layer, or one neuron by its name, such as ``"3.17"``. neuron: one or several of the layer's; None for
            all.
        kind: ``"random"``: Gaussian directions, shared by all neurons asked for; ``"shuffled"``: the neuron's own
            coordinates in random order, which keeps their distribution, outliers too, and costs ``draws`` vectors
            a neuron. Either stands where the neuron's vector stands, before any folding, and is then scaled to its norm
            in the basis used.
        draws: random vectors. seed: of the draws; a neuron's result does not depend on which others are asked for.
        k: the mean of the k best scores is compared too.
        basis, lens, side: as in :func:`project`.

    Returns:
        One row a neuron, side and sign: layer, neuron, side, sign, score (the best), null_mean, null_std, z, p; the
        same of the mean of the k best: topk_score, topk_null_mean, topk_null_std, topk_z, topk_p; basis, lens, kind.
        z is in the sign's direction, positive when further out than the draws' mean; NaN where they do not vary.
        p = (1 + draws at least as far out) / (1 + draws), for one neuron asked beforehand: over many, correct for it.

    Raises:
        OutOfRangeError: no such layer or neuron. InputError: unknown kind, basis or side, or too few draws.

    Source: Phipson and Smyth 2010 (10.2202/1544-6115.1585) for p with the + 1.
    """
    through = load_lens(model, lens)
    sides = check_sides(side, model, through)
    k = min(k, model.d_vocab)
    ((index, neurons),) = choose_neurons(model, layer, neuron)
    rows: list[dict[str, Any]] = []
    for name in sides:
        own = rows_of(matrix_of(model, index, name), neurons)
        scorer = Scorer(
            side_tokens(model, name), k, rows=len(neurons) + draws * (len(neurons) if kind != "random" else 1)
        )
        vectors = ready(model, index, name, own, basis, through)
        observed = statistics(scorer, vectors)
        norms = row_norms(vectors)
        if kind == "random":
            null = unit_statistics(scorer, ready(model, index, name, gaussian(own, draws, seed), basis, through))
            nulls: Iterator[Float64[np.ndarray, "draws 2 2"]] = (null for _ in neurons)
        else:
            nulls = (
                unit_statistics(
                    scorer, ready(model, index, name, shuffled(row, draws, (seed, index, n)), basis, through)
                )
                for n, row in zip(neurons, own, strict=True)
            )
        for n, norm, ends, unit in zip(neurons, norms, observed, nulls, strict=True):
            for place, sign in enumerate(SIGNS):
                compared = compare(ends[place], norm * unit[:, place], -1.0 if sign == "suppressed" else 1.0)
                named = {"layer": index, "neuron": n, "side": name, "sign": sign}
                rows.append({**named, **compared, "basis": basis, "lens": name_of(through), "kind": kind})
    order = {n: place for place, n in enumerate(neurons)}
    result = pd.DataFrame(sorted(rows, key=lambda row: order[row["neuron"]]))
    provenance = model.provenance(basis=basis, lens=describe_lens(through), kind=kind, draws=draws, seed=seed, k=k)
    result.attrs = {"provenance": provenance.to_dict()}
    return result


def gaussian(like: Float[Tensor, "rows d_model"], draws: int, seed: int) -> Float[Tensor, "draws d_model"]:
    """Standard normal vectors of the type and on the device of ``like``."""
    drawn = np.random.default_rng(seed).standard_normal((draws, like.shape[1]))
    return torch.from_numpy(drawn).to(like.dtype).to(like.device)


def shuffled(row: Float[Tensor, " d_model"], draws: int, seed: Sequence[int]) -> Float[Tensor, "draws d_model"]:
    """A vector's coordinates in random orders."""
    order = np.random.default_rng(list(seed)).permuted(np.tile(np.arange(len(row)), (draws, 1)), axis=1)
    return row[torch.from_numpy(order).to(row.device)]


def unit_statistics(scorer: Scorer, vectors: Float[Tensor, "draws d_model"]) -> Float64[np.ndarray, "draws 2 2"]:
    """:func:`statistics` of the vectors scaled to norm 1; a zero vector stays."""
    lengths = row_norms(vectors)
    return statistics(scorer, vectors) / np.where(lengths > 0, lengths, 1.0)[:, None, None]


def statistics(scorer: Scorer, vectors: Float[Tensor, "rows d_model"]) -> Float64[np.ndarray, "rows 2 2"]:
    """By row and sign: the best score, and the mean of the k best."""
    scores = torch.from_numpy(scorer.extremes(vectors)[1]).double()
    return torch.stack([scores[..., 0], scores.mean(dim=-1)], dim=-1).numpy()


def compare(
    observed: Float64[np.ndarray, "2"], null: Float64[np.ndarray, "draws 2"], direction: float
) -> dict[str, float]:
    """The columns of one row: the best score and the mean of the best, each beside its null."""
    row: dict[str, float] = {}
    for place, prefix in enumerate(("", "topk_")):
        score, drawn = float(observed[place]), null[:, place]
        mean, std = float(drawn.mean()), float(drawn.std(ddof=1))
        varies = std > TIED * abs(mean)
        beyond = int((direction * drawn >= direction * score - TIED * abs(score)).sum())
        row |= {
            f"{prefix}score": score,
            f"{prefix}null_mean": mean,
            f"{prefix}null_std": std,
            f"{prefix}z": direction * (score - mean) / std if varies else float("nan"),
            f"{prefix}p": (1 + beyond) / (1 + len(drawn)),
        }
    return row
