"""A scan under way: pages into the state, and after a half-precision pass the candidates again in float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from einops import rearrange

from ..core.progress import Progress
from ..core.threads import Threads
from ..corpus.batches import Sequences
from ..corpus.excerpts import Page, Selection, Stretch
from ..corpus.passes import CHECKPOINT_SECONDS, Checkpoint, Forward, Observer, read
from ..models.model import Model
from . import kernels
from .reduction import LayerBatch, Planner, RandomSample, Reducer, keep_inputs, observe_sample
from .state import EXTREMES, NOWHERE, ScanState, place_of, sequence_of
from .state_file import Identity, ScanProgress, save_state

# A scan keeps a file of its own, not the one that `accumulate` keeps of other statistics: its checkpoint becomes the
# finished store's state, which is read array by array, and counts whole units, so that a folder that holds a shard can
# be finished as the whole; and a second reading, of the candidates, goes on in it too.


@dataclass(eq=False)
class Scanner(Observer):
    """A scan under way.

    Attributes:
        model, sequences, sample: what is scanned, and which of it is the random sample.
        state, progress, identity: how far it is.
        path: the checkpoint's file.
        report: told of the progress.
        every: seconds between checkpoints.
    """

    model: Model
    sequences: Sequences
    sample: RandomSample
    state: ScanState
    identity: Identity
    progress: ScanProgress
    path: Path
    report: Progress | None = None
    every: float = CHECKPOINT_SECONDS

    def checkpoint(self) -> None:
        save_state(self.path, self.state, self.identity, self.progress)

    # -- the pass ------------------------------------------------------------------------------------------------

    def scan(self) -> None:
        """Scan the shard's units that are not done yet; what was found since the last checkpoint is yet to be saved."""
        settings = self.state.settings
        text = Stretch(self.sequences, settings, self.progress.shard, done=set(self.state.done.tolist()))
        if not text.pieces:
            return
        threads = Threads(whole=kernels.WIDTH)
        observers = [Reducer(self.state, self.sample, threads), self]
        forward = Forward(self.model, observers, getattr(torch, settings.dtype))
        try:
            going_on = Checkpoint(self.progress.batch, lambda _pages: self.checkpoint(), self.every)
            read(text, forward, "scan", self.report, going_on)
        finally:
            threads.close()
        self.state.mark_done([piece.unit.index for piece in text.pieces])
        self.progress = replace(self.progress, batch=0)

    def end(self, page: Page) -> None:
        """Note how far the pass is, as a checkpoint tells it."""
        if page.ends:
            self.state.mark_done([self.unit_of(int(page.batch.sequences[0]))])
        self.progress = replace(self.progress, batch=0 if page.ends else self.progress.batch + 1)

    def unit_of(self, sequence: int) -> int:
        """The unit of the corpus that a sequence is in."""
        return int(self.sequences.unit_of(sequence))

    # -- after a half-precision pass -------------------------------------------------------------------------------

    def rescore(self) -> None:
        """Run the candidates' and the sample's sequences again in float32, each alone, and keep their exact
        extremes and what FFNs read."""
        if not self.state.settings.rescored:
            return
        done = set(self.state.done.tolist())
        wanted = Wanted(self.state, self.sample, lambda number: self.unit_of(number) in done)
        again = Selection(self.sequences, self.state.settings, wanted.sequences, together=1)
        forward = Forward(self.model, [wanted], torch.float32)

        def save(pages: int) -> None:
            self.progress = replace(self.progress, rescored=pages)
            self.checkpoint()

        read(again, forward, "rescore", self.report, Checkpoint(self.progress.rescored, save, self.every))


class Wanted(Observer):
    """Which sequences must run again, and which neurons' extremes each of them is for."""

    def __init__(self, state: ScanState, sample: RandomSample, mine: Callable[[int], bool]) -> None:
        self.layers, self.planner = state.layers, Planner(state, sample)
        self.order: dict[
            tuple[int, int], np.ndarray
        ] = {}  # of each layer and side: the slots, and the sequence of each
        self.sorted: dict[tuple[int, int], np.ndarray] = {}
        for layer, arrays in enumerate(self.layers):
            for side, at in enumerate(arrays.kept_at):
                held = sequence_of(rearrange(at, "d_mlp kept -> (d_mlp kept)"))
                order = self.order[layer, side] = np.argsort(held, kind="stable")
                self.sorted[layer, side] = held[order]
        extra = [int(n) for n in np.union1d(sample.sequences, sample.draws) if mine(int(n))]
        real = [np.unique(held) for held in self.sorted.values()]
        every = np.unique(np.concatenate([*real, np.array(extra, np.int64)]))
        self.sequences = every[every != sequence_of(NOWHERE)]

    def begin(self, page: Page) -> None:
        self.plan = self.planner.plan(page)

    def route(self, page: Page, layer: int, experts: torch.Tensor) -> None:
        self.plan.routed[layer] = experts.cpu().numpy()

    def read(self, page: Page, layer: int, x: torch.Tensor) -> None:
        keep_inputs(self.layers[layer], self.plan, x)

    def add(
        self,
        page: Page,
        layer: int,
        pre: torch.Tensor,
        coefficients: torch.Tensor,
        linear: torch.Tensor | None,
    ) -> None:
        """Note the float32 extremes of one sequence for the neurons that hold it as a candidate."""
        number, state = int(page.batch.sequences[0]), self.layers[layer]
        shares = self.plan.shares(layer, state.expert)
        batch = LayerBatch(self.plan, pre, coefficients, linear, shares)
        batch.reduce(0, coefficients.shape[1], None)
        observe_sample(state, batch, 0, coefficients.shape[1])
        for side in range(len(batch.best)):
            first, last = np.searchsorted(self.sorted[layer, side], [number, number + 1])
            neurons, columns = np.divmod(self.order[layer, side][first:last], state.exact.shape[-1])
            # In float32 a sequence may never be in the case that it was in, or never be routed to the neuron's expert:
            # then it is no candidate any more.
            best = batch.best[side, 0, neurons]
            there = best > 0 if side >= EXTREMES else np.isfinite(best)
            neurons, columns = neurons[there], columns[there]
            at = batch.positions(side, np.zeros(len(neurons), np.int64), neurons)
            state.exact[side, neurons, columns] = batch.coefficients[at, neurons]
            state.exact_at[side, neurons, columns] = place_of(np.int64(number), at)
            if batch.linear is not None:
                state.parts[side][:, neurons, columns] = batch.parts(at, neurons)
