"""Prefixes of a store's text, and what every layer makes of their last position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int, Int64
from scipy import stats
from torch import Tensor

from ..core.errors import HookError
from ..corpus.batches import PAD, Sequences, grouped
from ..models.hooks import OnTensor, listening
from ..models.layer_pass import LayerPass
from ..models.model import Model
from ..models.norms import at_least_float32
from ..models.residual import FinalNorm
from ..neurons.verdicts import share_interval as wilson
from ..scanning.store import Store
from ..scanning.tables import layer_examples

# Means and shares with their intervals, as every study gives them.

CONFIDENCE = 0.95
RESAMPLES = 1000
AT_ONCE = 1 << 22  # numbers drawn at a time


def mean_interval(values: np.ndarray, seed: int = 0, resamples: int = RESAMPLES) -> tuple[float, float, float]:
    """The mean of independent values and the ends of its 95% percentile bootstrap interval.

    Args:
        values: ``[n]``, one a neuron or one a position; those that are NaN are left out.
        seed: of the resamples. resamples: how many.

    Returns:
        mean, low, high. Of no value all are NaN; of a single one the ends are.

    Source: Efron 1979, as in ``scipy.stats.bootstrap``.
    """
    kept = np.asarray(values, dtype=np.float64)
    kept = kept[~np.isnan(kept)]
    if len(kept) < 2:
        mean = float(kept[0]) if len(kept) else float("nan")
        return mean, float("nan"), float("nan")
    found = stats.bootstrap(
        (kept,),
        np.mean,
        n_resamples=resamples,
        batch=max(1, AT_ONCE // len(kept)),
        confidence_level=CONFIDENCE,
        method="percentile",
        random_state=np.random.default_rng(seed),
    ).confidence_interval
    return float(kept.mean()), float(found.low), float(found.high)


def share_interval(count: int, total: int) -> tuple[float, float, float]:
    """A share of independent cases and the ends of its 95% Wilson interval, which is right for shares near 0 and 1 too.

    Returns:
        share, low, high; all NaN of no case.

    Source: Wilson 1927.
    """
    return count / total if total else float("nan"), *wilson(count, total)


# Prefixes of a store's text: those that trigger keys, random ones, what follows them, and how they are batched.

BATCH_TOKENS = 2048  # as scans have it
DRAW, KEYS, REMOVE, UNIGRAM = 1, 2, 3, 4  # independent streams of one seed


@dataclass(frozen=True, eq=False)
class Places:
    """Positions of a corpus, one of each of some sequences.

    Attributes:
        sequences: in ascending order. positions: within each, BOS counted.
        prefixes: the token ids up to and with each position, BOS in front if the sequences have one.
    """

    sequences: Int64[np.ndarray, " n"]
    positions: Int64[np.ndarray, " n"]
    prefixes: tuple[np.ndarray, ...]

    def __len__(self) -> int:
        return len(self.sequences)


def random_places(store: Store, count: int, seed: int) -> Places:
    """One uniformly random position, of no special token, of each of ``count`` random sequences (fewer if the corpus
    has fewer)."""
    generator = np.random.default_rng([seed, DRAW])
    text = store.sequences
    chosen = np.sort(generator.choice(len(text), min(count, len(text)), replace=False))
    special = np.array(store.settings.special, np.int64)
    sequences, positions, prefixes = [], [], []
    for sequence in chosen.tolist():
        ids = text.sequence_tokens(sequence)
        content = np.flatnonzero(~np.isin(ids, special))
        content = content[content >= text.lead]
        if len(content):
            position = int(generator.choice(content))
            sequences.append(sequence)
            positions.append(position)
            prefixes.append(ids[: position + 1])
    return Places(np.array(sequences, np.int64), np.array(positions, np.int64), tuple(prefixes))


def triggers(store: Store, layer: int, most: int | None = None) -> pd.DataFrame:
    """The trigger prefixes of a layer's keys: the positions of their largest coefficients, at most one of a sequence.

    Returns:
        neuron, rank, coefficient (above 0), sequence, position, by neuron and rank; at most ``most`` a neuron.
    """
    rows = layer_examples(store.view(layer), store.settings.k, store.sequences)
    rows = rows[(rows["kind"] == "top") & (rows["coefficient"] > 0)]
    rows = rows if most is None else rows[rows["rank"] <= most]
    names = ["neuron", "rank", "coefficient", "sequence", "position"]
    return rows[names].sort_values(["neuron", "rank"], ignore_index=True)


def followers(
    text: Sequences, sequences: Int64[np.ndarray, " n"], positions: Int64[np.ndarray, " n"]
) -> Int64[np.ndarray, " n"]:
    """The token that follows each position within its sequence, or −1 where the sequence ends there."""
    found = np.full(len(sequences), -1, np.int64)
    inside = positions < text.lengths_of(sequences) - 1
    found[inside] = text.tokens_at(sequences[inside], positions[inside] + 1)
    return found


def batches(
    prefixes: Sequence[np.ndarray], device: torch.device, limit: int = BATCH_TOKENS, most: int = BATCH_TOKENS
) -> Iterator[tuple[Int64[np.ndarray, " rows"], Int[Tensor, "rows pos"], Int[Tensor, " rows"]]]:
    """Prefixes of like length together, at most ``most``: which ones, their tokens padded on the right, and where each
    one's last token is."""
    lengths = np.array([len(ids) for ids in prefixes], np.int64)
    groups = grouped(lengths, limit) if len(lengths) else []
    for rows in (part for group in groups for part in np.array_split(group, -(-len(group) // most))):
        tokens = np.full((len(rows), int(lengths[rows].max())), PAD, np.int64)
        for place, row in enumerate(rows.tolist()):
            tokens[place, : lengths[row]] = prefixes[row]
        yield rows, torch.from_numpy(tokens).to(device), torch.from_numpy(lengths[rows] - 1).to(device)


# What every layer makes of one position: coefficients, the FFN's output and the residual stream, for many prefixes.


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer at the last token of some prefixes.

    Attributes:
        coefficients: m. ffn: y, what the FFN adds to the residual stream, with its bias. out: o = r + y, the residual
            stream after the layer.
    """

    coefficients: Float[Tensor, "rows d_mlp"]
    ffn: Float[Tensor, "rows d_model"]
    out: Float[Tensor, "rows d_model"]

    @property
    def residual(self) -> Float[Tensor, "rows d_model"]:
        """r, what the FFN's output is added to (attention's output of this layer included)."""
        return self.out - self.ffn


class Positions:
    """Runs prefixes through a model's layers and gives what stands at each one's last token."""

    def __init__(self, model: Model) -> None:
        self.model = model
        body = LayerPass(model)
        self.body, self.projections = body.body, body.projections
        # What a layer leaves is what the next one, or the final norm, is given.
        self.after = [body.plain(block.whole) for block in model.layout.blocks[1:]]
        self.added = [
            body.plain(block.project_out if block.post is None else block.post) for block in model.layout.blocks
        ]
        self.after.append(body.plain(model.layout.final_norm))

    def layers(self, tokens: Int[Tensor, "rows pos"], ends: Int[Tensor, " rows"]) -> list[Layer]:
        """All layers at the position ``ends[r]`` of each row of right-padded ``tokens``, in float32 or float64.

        Raises HookError if a layer did not show what passed.
        """
        rows = torch.arange(len(tokens), device=tokens.device) * tokens.shape[1] + ends
        kept: dict[tuple[str, int], Tensor] = {}

        def keep(name: str, layer: int) -> OnTensor:
            def receive(tensor: Tensor) -> None:
                # A copy: Falcon adds to what it is given in place.
                kept[name, layer] = at_least_float32(tensor.detach().reshape(-1, tensor.shape[-1])[rows]).clone()

            return receive

        outs = [parts.out for parts in self.projections]
        inputs = [(project_out, keep("coefficients", layer)) for layer, project_out in enumerate(outs)]
        inputs += [(norm, keep("out", layer)) for layer, norm in enumerate(self.after)]
        outputs = [(added, keep("ffn", layer)) for layer, added in enumerate(self.added)]
        with torch.inference_mode(), listening(inputs, outputs):
            self.body(input_ids=tokens, use_cache=False)
        if len(kept) != 3 * self.model.n_layers:
            raise HookError(f"{self.model.name}: a layer did not show its coefficients, output and residual stream")
        factor = self.model.layout.write_scale
        return [
            Layer(kept["coefficients", layer], kept["ffn", layer] * factor, kept["out", layer])
            for layer in range(self.model.n_layers)
        ]


class Lens:
    """Residual streams and writes as predictions: through the final norm, or by the folded basis alone."""

    def __init__(self, model: Model) -> None:
        self.norm = FinalNorm(model)
        self.tokens = at_least_float32(model.unembedding.detach())
        bias = model.unembedding_bias
        self.bias = None if bias is None else at_least_float32(bias.detach())

    def logits(self, stream: Float[Tensor, "rows d_model"]) -> Float[Tensor, "rows vocab"]:
        """What the model would predict if its layers ended here (nostalgebraist 2020's logit lens)."""
        normed = self.norm.norm(at_least_float32(stream))
        return self.norm.model.capped(torch.nn.functional.linear(normed, self.tokens, self.bias))

    def written(self, writes: Float[Tensor, "rows d_model"], basis: str = "folded") -> Float[Tensor, "rows vocab"]:
        """Scores of writes, as :func:`ffnmem.project` has them for values."""
        x = at_least_float32(writes)
        return (self.norm.norm.passed(x) if basis == "folded" else x) @ self.tokens.T
