"""What a second moment depends on besides the model and the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
from einops import rearrange
from jaxtyping import Bool

from ..corpus import Batch
from ..errors import InputError, check_count, quoted
from ..models import Model
from ..scanning.jobs import check_shard
from ..scanning.settings import CONTEXT


@dataclass(frozen=True)
class Settings:
    """Checked settings of a pass, see :func:`.accumulating.second_moment`.

    Attributes:
        layers: ascending.
        tokens: after which the text ends, or None.
        context: the longest sequence in tokens, BOS included.
        bos: the id in front of every sequence, or None.
        special: ids that do not count.
        batch_tokens: of one forward pass.
        shard: (index, count).
    """

    layers: tuple[int, ...]
    tokens: int | None
    context: int
    bos: int | None
    special: tuple[int, ...]
    batch_tokens: int
    shard: tuple[int, int]

    @staticmethod
    def checked(
        model: Model,
        layers: Sequence[SupportsIndex] | None,
        tokens: int | None,
        context: int | None,
        prepend_bos: bool | None,
        batch_tokens: int,
        shard: tuple[int, int],
    ) -> Settings:
        """Raises InputError, OutOfRangeError."""
        if not isinstance(layers, Sequence | range | None) or isinstance(layers, str):
            raise InputError(f"layers must be a list of layers, such as [0, 5], not {quoted(layers)}")
        chosen = range(model.n_layers) if layers is None else sorted({model.layer(layer) for layer in layers})
        if not chosen:
            raise InputError("layers is empty: give at least one")
        bos = model.prepend_bos if prepend_bos is None else prepend_bos
        if bos and model.bos_token_id is None:
            raise InputError(f"{model.name}'s tokenizer has no beginning-of-sequence token: use prepend_bos=False")
        longest = min(CONTEXT, model.n_ctx) if context is None else check_count("context", context, least=2)
        if longest > model.n_ctx:
            raise InputError(f"context {longest} is too long: {model.name} reads at most {model.n_ctx} tokens")
        return Settings(
            layers=tuple(chosen),
            tokens=None if tokens is None else check_count("tokens", tokens),
            context=longest,
            bos=model.bos_token_id if bos else None,
            special=tuple(sorted(model.special_token_ids)),
            batch_tokens=check_count("batch_tokens", batch_tokens),
            shard=check_shard(shard),
        )

    @property
    def prepend_bos(self) -> bool:
        return self.bos is not None

    @property
    def shard_text(self) -> str:
        """Which shard, for a message."""
        index, count = self.shard
        return "" if count == 1 else f" in shard {index} of {count}"


def content(batch: Batch, settings: Settings) -> Bool[np.ndarray, "rows pos"]:
    """Where a batch holds text: no BOS in front, pads or special tokens."""
    places = np.arange(batch.tokens.shape[1])
    text = (places >= int(settings.prepend_bos)) & (places < rearrange(batch.lengths, "rows -> rows 1"))
    return text & ~np.isin(batch.tokens, settings.special)
