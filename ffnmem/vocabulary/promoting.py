"""``promoters``: the neurons that most promote and most suppress a token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

import numpy as np
import pandas as pd
from jaxtyping import Float

from ..core.arguments import public
from ..core.errors import InputError, check_choice, check_count
from ..core.neuron_names import LayerName
from ..models.model import Model
from ..models.norms import at_least_float32
from ..models.turns import in_turn
from .loops import loops_for
from .scoring import in_threads
from .vectors import BASES, SIGNS, check_sides, everything, side_tokens, side_vectors

Tokens = str | SupportsIndex | Iterable[str | SupportsIndex]


@public
@in_turn
def promoters(
    model: Model,
    tokens: Tokens,
    *,
    k: int = 10,
    layer: LayerName | None = None,
    basis: str = "folded",
    side: str | Sequence[str] | None = "value",
    first_token: bool = False,
) -> pd.DataFrame:
    """Which neurons most promote and most suppress a token, or a set of tokens on average.

    Args:
        model: from :func:`ffnmem.load`.
        tokens: one token, as text with its leading space or as an id; or several, whose mean score counts.
        k: neurons a side and sign.
        layer: only this layer; default all.
        basis: ``"folded"`` or ``"raw"``, as in :func:`project`, whose scores these are.
        side: ``"value"`` (default): the neurons that write the token; ``"key"``: those that it excites; ``"gate"`` of
            gated models: those whose gates it opens; several, or None for all.
        first_token: take the first token of a text of several tokens instead of refusing it.

    Returns:
        Columns layer, neuron, side, sign, rank, score, basis, then token and token_id of a single token, or tokens (a
        list of texts). Ties by layer, then neuron.

    Raises:
        InputError: a text that is not one token, no token, or an unknown basis or side. OutOfRangeError: no such layer.

    Source: Geva et al. 2022 (2203.14680), §4, read in the other direction.
    """
    check_choice("basis", basis, BASES)
    sides = check_sides(side, model)
    count = check_count("k", k)
    ids = token_ids(model, tokens, first_token)
    layers = list(range(model.n_layers)) if layer is None else [model.layer(layer)]
    owners = np.array([(index, neuron) for index in layers for neuron in everything(model, index)])
    frames = []
    for name in sides:
        scores = np.concatenate([mean_scores(model, index, ids, name, basis) for index in layers])
        for sign, order in zip(
            SIGNS, (np.argsort(-scores, kind="stable"), np.argsort(scores, kind="stable")), strict=True
        ):
            best = order[:count]
            columns = {"layer": owners[best, 0], "neuron": owners[best, 1], "side": name, "sign": sign}
            columns |= {"rank": np.arange(1, len(best) + 1), "score": scores[best].astype(np.float64), "basis": basis}
            frames.append(pd.DataFrame({**columns, **asked(model, ids, len(best))}))
    result = pd.concat(frames, ignore_index=True)
    result.attrs = {"provenance": model.provenance(basis=basis).to_dict()}
    return result


def token_ids(model: Model, tokens: Tokens, first: bool) -> list[int]:
    """The ids of one token or several, each once."""
    given = [tokens] if isinstance(tokens, str) or not isinstance(tokens, Iterable) else list(tokens)
    if not given:
        raise InputError("no token given: name at least one, such as ' Paris'")
    return list(dict.fromkeys(model.token_id(token, first) for token in given))


def mean_scores(model: Model, layer: int, ids: list[int], side: str, basis: str) -> Float[np.ndarray, " neurons"]:
    """Of every neuron of a layer, the mean over the tokens of the canonical score: of one token, the score itself."""
    vectors = side_vectors(model, layer, everything(model, layer), side, basis).cpu().numpy()
    rows = at_least_float32(side_tokens(model, side)[ids]).cpu().contiguous().numpy()
    scores = np.empty((len(vectors), len(ids)), vectors.dtype)
    score_rows = loops_for(vectors.size * len(ids)).score_rows
    in_threads(lambda first, last: score_rows(vectors, rows, first, last, scores), len(vectors))
    return scores.mean(axis=1, dtype=np.float64).astype(vectors.dtype)


def asked(model: Model, ids: list[int], rows: int) -> dict[str, Any]:
    """The columns that say which tokens the scores are about."""
    texts = model.token_strings(ids)
    return {"token": texts[0], "token_id": ids[0]} if len(ids) == 1 else {"tokens": [texts] * rows}
