"""What in a trigger prefix a key looks at: its coefficient when the first, a random or the last token is removed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ..core.progress import Progress
from ..models.layer_pass import LayerPass
from ..models.model import Model
from ..models.norms import at_least_float32
from ..scanning.store import Store
from .prefixes import KEYS, REMOVE, batches, mean_interval, triggers
from .study import report_progress

REMOVED = ("first", "random", "last")
LEAST = 3  # tokens of a prefix, so that there is one between its first and its last
TEXT = 24  # last tokens of a prefix that are shown


@dataclass(frozen=True, eq=False)
class Trial:
    """Prefixes of one layer's keys, whole and with a token removed.

    Attributes:
        frame: a row a prefix: neuron, rank, coefficient, sequence, position, and the relative changes.
        drawn: how many keys were drawn; those without a usable prefix are not in the frame.
    """

    frame: pd.DataFrame
    drawn: int


def removal_trials(
    model: Model, store: Store, *, keys: int, prefixes: int, seed: int, progress: Progress | None = None
) -> list[Trial]:
    """The relative change of coefficients of random keys at their trigger prefixes, by layer.

    Args:
        keys: drawn in each layer, uniformly. prefixes: at most so many of the best of each key.
        seed: of the keys and of the random tokens removed.

    Returns:
        One :class:`Trial` a layer; its columns ``first``, ``random`` and ``last`` are (m' − m)/m, m the coefficient at
        the prefix's last token and m' at that of the prefix without the token. BOS stays; the random token is neither
        the first nor the last. Prefixes of fewer than three tokens are left out.

    Source: Geva et al. 2021 (2012.14913), §3.2, figure 3.
    """
    body = LayerPass(model)
    lead = store.sequences.lead
    found: list[Trial] = []
    for layer in range(model.n_layers):
        generator = np.random.default_rng([seed, KEYS, layer])
        width = model.ffn[layer].d_mlp
        drawn = np.sort(generator.choice(width, min(keys, width), replace=False))
        rows = triggers(store, layer, prefixes)
        rows = rows[rows["neuron"].isin(drawn) & (rows["position"] - lead + 1 >= LEAST)].reset_index(drop=True)
        generator = np.random.default_rng([seed, REMOVE, layer])

        def tell(part: float, before: int = layer, each: int = len(drawn)) -> None:
            report_progress(progress, "prefixes", round(each * (before + part)), each * model.n_layers)

        found.append(Trial(changes(body, store, layer, rows, generator, tell), len(drawn)))
        tell(1.0)
    return found


def changes(
    body: LayerPass,
    store: Store,
    layer: int,
    rows: pd.DataFrame,
    generator: np.random.Generator,
    tell: Callable[[float], None],
) -> pd.DataFrame:
    """Relative changes of each row's coefficient; a row is a neuron and a prefix. ``tell`` hears the part done."""
    text = store.sequences
    whole = [
        text.sequence_tokens(sequence)[: position + 1]
        for sequence, position in zip(rows["sequence"].tolist(), rows["position"].tolist(), strict=True)
    ]
    neurons = rows["neuron"].to_numpy(np.int64)
    inside = [int(generator.integers(text.lead + 1, len(ids) - 1)) for ids in whole]
    runs = [
        whole,
        [np.delete(ids, text.lead) for ids in whole],
        [np.delete(ids, place) for ids, place in zip(whole, inside, strict=True)],
    ]
    read = []
    for index, prefixes in enumerate(runs):

        def part_of_all(part: float, before: int = index) -> None:
            tell((before + part) / len(runs))

        read.append(coefficients(body, layer, prefixes, neurons, part_of_all))
    # The prefix without its last token is the prefix itself, read one token earlier.
    (m, without_last), (without_first, _), (without_random, _) = read
    # Rounding aside, m is the coefficient in the store; read again, both sides of the fraction are rounded alike.
    m = np.where(m == 0, np.nan, m)
    measured = {"first": without_first, "random": without_random, "last": without_last}
    return rows.assign(**{name: values / m - 1 for name, values in measured.items()})


def coefficients(
    body: LayerPass,
    layer: int,
    prefixes: list[np.ndarray],
    neurons: Int64[np.ndarray, " n"],
    tell: Callable[[float], None],
) -> Float64[np.ndarray, "2 n"]:
    """Each prefix's neuron's coefficient at its last token, and at the token before; prefixes have at least two."""
    found = np.empty((2, len(prefixes)))
    device = next(body.network.parameters()).device
    done = 0
    for which, tokens, ends in batches(prefixes, device):
        kept: dict[int, Tensor] = {}
        mine = torch.from_numpy(neurons[which]).to(device)
        rows = torch.arange(len(tokens), device=device) * tokens.shape[1] + ends

        def keep(at: int, _pre: Tensor, m: Float[Tensor, "tokens d_mlp"]) -> None:
            if at == layer:
                kept[at] = at_least_float32(torch.stack([m[rows, mine], m[rows - 1, mine]]))  # noqa: B023 (run below)

        body.run(tokens, keep, until=layer)
        found[:, which] = kept[layer].cpu().numpy()
        done += len(which)
        tell(done / len(prefixes))
    return found


def change_table(trials: list[Trial], seed: int) -> pd.DataFrame:
    """By layer and token removed: the mean over keys of each key's mean change, with its bootstrap interval.

    Returns:
        layer, removed, drawn (keys), keys (with a usable prefix), prefixes, change, low, high, median.
    """
    rows = []
    for layer, trial in enumerate(trials):
        by_key = trial.frame.groupby("neuron")[list(REMOVED)].mean()
        for name in REMOVED:
            change, low, high = mean_interval(by_key[name].to_numpy(), seed)
            median = float(by_key[name].median()) if len(by_key) else float("nan")
            counts = (trial.drawn, len(by_key), len(trial.frame))
            rows.append((layer, name, *counts, change, low, high, median))
    names = ["layer", "removed", "drawn", "keys", "prefixes", "change", "low", "high", "median"]
    return pd.DataFrame(rows, columns=names)


def prefix_table(store: Store, trials: list[Trial], shown: int) -> pd.DataFrame:
    """The best prefixes of the keys drawn, as texts: layer, neuron, rank, coefficient, first, random, last, sequence,
    position, token, prefix (its last tokens, the firing one at the end)."""
    parts = []
    for layer, trial in enumerate(trials):
        frame = trial.frame[trial.frame["rank"] <= shown]
        windows = store.windows(frame, TEXT)
        frame = frame.assign(
            layer=layer,
            token=[window.tokens[window.at] for window in windows],
            prefix=["".join(window.tokens[: window.at + 1]) for window in windows],
        )
        parts.append(frame)
    names = ["layer", "neuron", "rank", "coefficient", *REMOVED, "sequence", "position", "token", "prefix"]
    return pd.concat(parts, ignore_index=True)[names]
