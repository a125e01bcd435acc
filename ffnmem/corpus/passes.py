"""The one pass over a corpus: pages of text through a model's layers into accumulators, with checkpoints and progress.

A statistic of a corpus is one class, an :class:`Accumulator`. What is read is an
:class:`ffnmem.corpus.excerpts.Excerpt`; the layers run by :class:`Forward`, or in another way (:mod:`ffnmem.neurons`
runs them backwards too); :func:`read` leads the pages through, goes on where a checkpoint was, and says which
sequences a mistake was in. Memory holds one page's coefficients of one layer, and what the accumulators keep.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..core.errors import InputError
from ..core.progress import Progress
from ..models.layer_pass import LayerPass, check_same
from ..models.model import Model
from .excerpts import Excerpt, Page

CHECKPOINT_SECONDS = 60.0


class Accumulator:
    """A statistic of a text, page by page and layer by layer. Only :meth:`add` must be there."""

    def begin(self, page: Page) -> None:
        """Told of a page before its layers."""

    def add(
        self,
        page: Page,
        layer: int,
        pre: Float[Tensor, "cells d_mlp"],
        coefficients: Float[Tensor, "cells d_mlp"],
        linear: Float[Tensor, "cells d_mlp"] | None,
    ) -> None:
        """Take what is wanted of one layer of a page. Tensors are only lent, and hold pads too.

        Args:
            page: whose ``places`` are the rows that count.
            pre: pre-activations, of gated neurons those of their gates.
            coefficients: what the down projection reads. linear: the linear parts of gated neurons.
        """
        raise NotImplementedError

    def end(self, page: Page) -> None:
        """Told of a page after its layers."""


class Forward:
    """Runs pages through the layers of a model by themselves, up to the last one that is wanted.

    Args:
        model: whose weights; hooks on its bridge are not seen.
        accumulators: each is handed every layer of every page, in order.
        dtype: in which the layers run; default the model's own.
        until: the last layer to run; default all.

    Raises: UnsupportedModelError: hooks or an intervention change what the layers compute.
    """

    def __init__(
        self,
        model: Model,
        accumulators: Sequence[Accumulator],
        dtype: torch.dtype | None = None,
        until: int | None = None,
    ) -> None:
        check_same(model)
        self.device, self.accumulators, self.until = model.device, accumulators, until
        self.body = LayerPass(model, dtype)

    def __call__(self, page: Page) -> None:
        linear: dict[int, Tensor] = {}

        def hand(layer: int, pre: Tensor, coefficients: Tensor) -> None:
            part = linear.pop(layer, None)
            for accumulator in self.accumulators:
                accumulator.add(page, layer, pre, coefficients, part)

        for accumulator in self.accumulators:
            accumulator.begin(page)
        tokens = torch.from_numpy(page.batch.tokens).to(self.device)
        self.body.run(tokens, hand, on_linear=linear.__setitem__, until=self.until)
        for accumulator in self.accumulators:
            accumulator.end(page)


@dataclass(frozen=True)
class Checkpoint:
    """How a pass that may be killed goes on.

    Attributes:
        pages: of the excerpt that are in what was kept.
        save: keeps what there is, told of how many pages it is.
        every: seconds between two of them.
    """

    pages: int
    save: Callable[[int], None]
    every: float = CHECKPOINT_SECONDS


def read(
    excerpt: Excerpt,
    take: Callable[[Page], None],
    phase: str,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
) -> None:
    """Lead the pages of an excerpt through ``take``, such as a :class:`Forward`, once.

    Args:
        excerpt: what is read.
        take: given one page after another.
        phase: what ``progress`` is told, with tokens of text done, and in all.
        checkpoint: where to go on, and how to keep what there is.

    Raises:
        InputError: what ``take`` raises, with the sequences that it was in.
    """
    skip = 0 if checkpoint is None else checkpoint.pages
    total = excerpt.n_tokens if progress is not None else 0
    done, saved = excerpt.read_before, time.monotonic()
    for number, page in enumerate(excerpt.pages()):
        done += page.n_tokens
        if number < skip:
            continue
        try:
            take(page)
        except InputError as error:
            first, last = int(page.batch.sequences.min()), int(page.batch.sequences.max())
            raise InputError(f"{error}, somewhere in sequences {first} to {last}") from None
        if progress is not None:
            progress(phase, done, total)
        if checkpoint is not None and time.monotonic() - saved > checkpoint.every:
            checkpoint.save(number + 1)
            saved = time.monotonic()
