"""What forward passes read: which positions of which rows, with pads and caches, told before the layers run."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from ..errors import HookError
from .model import Model


@dataclass(frozen=True, eq=False)
class Reading:
    """One forward pass.

    Attributes:
        positions: ``[batch, pos]``, each column's position in its row's text, −1 at pads. Tokens that a cache holds
            count: the first token after a prompt of 9 stands at position 9.
        lengths: ``[batch]``, tokens of each row's prompt, which is what the first pass without a cache read; None if
            that pass was not seen.
    """

    positions: Int[Tensor, "batch pos"]
    lengths: Int[Tensor, " batch"] | None


class Here(threading.local):
    """What a reader knows of one thread: its pass, and of its last prompt how long each row is and how many pads."""

    current: Reading | None = None
    lengths: Int[Tensor, " batch"] | None = None
    pads: Int[Tensor, " batch"] | None = None

    def __reduce__(self) -> tuple[type[Here], tuple[()]]:
        return Here, ()  # with a copy of a model that is followed


class Reader:
    """Follows a model's forward passes, each thread's by themselves; ``current`` is the one that runs, or None."""

    def __init__(self, model: Model) -> None:
        self.name = model.name
        decoder = model.layout.decoder
        if decoder is None:
            raise HookError(
                f"{model.name}: the module that reads tokens was not found, so its passes cannot be followed"
            )
        self.decoder = decoder
        self.signature = inspect.signature(self.decoder.forward)
        self.ran = False
        self.here = Here()

    @property
    def current(self) -> Reading | None:
        """The pass that runs in this thread."""
        return self.here.current

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow what runs inside the block."""
        handles = [
            self.decoder.register_forward_pre_hook(self.begin, with_kwargs=True),
            self.decoder.register_forward_hook(self.end, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def begin(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found = self.signature.bind_partial(*args, **kwargs).arguments
        read = found.get("input_ids") if found.get("input_ids") is not None else found.get("inputs_embeds")
        if not isinstance(read, Tensor):
            raise HookError(f"{self.name}: a pass without input_ids and inputs_embeds cannot be followed")
        cache = found.get("past_key_values")
        past = 0 if cache is None else int(cache.get_seq_length())
        mask = found.get("attention_mask")
        if mask is not None and (mask.ndim != 2 or mask.shape[1] < past + read.shape[1]):
            shape = list(mask.shape)
            raise HookError(f"{self.name}: positions cannot be told from an attention mask of shape {shape}")
        seen = None if mask is None else mask[:, : past + read.shape[1]].bool()
        self.here.current = self.reading(read.shape[0], read.shape[1], past, seen, read.device)

    def reading(
        self, batch: int, columns: int, past: int, mask: Bool[Tensor, "batch seen"] | None, device: torch.device
    ) -> Reading:
        """What a pass over ``columns`` reads after ``past`` cached ones; without a mask all of a prompt counts."""
        here = self.here
        known = here.lengths is not None and len(here.lengths) == batch
        if mask is None:
            if past == 0 or not known:
                here.pads = torch.zeros(batch, dtype=torch.long, device=device)
            assert here.pads is not None
            positions = past + torch.arange(columns, device=device) - here.pads.unsqueeze(-1)
            positions = positions.clamp(min=-1)
        else:
            positions = (mask.long().cumsum(-1) - 1).masked_fill(~mask, -1)[:, past:]
        if past == 0:
            here.lengths = (positions >= 0).sum(-1)
            here.pads = columns - here.lengths
        elif not known:
            here.lengths = None
        return Reading(positions, here.lengths)

    def end(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        self.ran = self.ran or self.here.current is not None
        self.here.current = None
