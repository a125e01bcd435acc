"""A scan under way: pages into the state, and after a half-precision pass the candidates again in float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
from .reduction import SIDES, LayerBatch, Planner, RandomSample, Reducer, observe_sample
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
        text = Stretch(self.sequences, settings.text, self.progress.shard, done=set(self.state.done.tolist()))
        if not text.pieces:
            return
        forward = Forward(self.model, [self], getattr(torch, settings.dtype))
        threads = Threads(whole=kernels.WIDTH)
        self.reducer = Reducer(self.state, Planner(self.state, self.sample), threads)
        try:
            going_on = Checkpoint(self.progress.batch, lambda _pages: self.checkpoint(), self.every)
            read(text, forward, "scan", self.report, going_on)
        finally:
            threads.close()
        self.state.done = np.union1d(self.state.done, [piece.unit.index for piece in text.pieces])
        self.progress = self.progress.with_(batch=0)

    def begin(self, page: Page) -> None:
        self.unit = int(np.searchsorted(self.sequences.units.sequences, page.batch.sequences[0], side="right")) - 1
        self.plan = self.reducer.begin(page)

    def add(
        self,
        page: Page,
        layer: int,
        pre: torch.Tensor,
        coefficients: torch.Tensor,
        linear: torch.Tensor | None,
    ) -> None:
        self.reducer.layer(self.plan, layer, pre, coefficients, linear)

    def end(self, page: Page) -> None:
        """Note how far the pass is, as a checkpoint tells it."""
        if page.ends:
            self.state.done = np.union1d(self.state.done, [self.unit])
        self.progress = self.progress.with_(batch=0 if page.ends else self.progress.batch + 1)

    # -- after a half-precision pass -------------------------------------------------------------------------------

    def rescore(self) -> None:
        """Run the candidates' and the sample's sequences again in float32, each alone, and keep their exact
        extremes."""
        if not self.state.settings.rescored:
            return
        wanted = Wanted(self.state, self.sample, self.my_sequences())
        again = Selection(self.sequences, self.state.settings.text, wanted.sequences, together=1)
        forward = Forward(self.model, [wanted], torch.float32)

        def save(pages: int) -> None:
            self.progress = self.progress.with_(rescored=pages)
            self.checkpoint()

        read(again, forward, "rescore", self.report, Checkpoint(self.progress.rescored, save, self.every))

    def my_sequences(self) -> Callable[[int], bool]:
        """Whether a sequence of the corpus was scanned here."""
        done = self.state.done
        starts = self.sequences.units.sequences
        return lambda number: bool(np.isin(np.searchsorted(starts, number, side="right") - 1, done))


class Wanted(Observer):
    """Which sequences must run again, and which neurons' extremes each of them is for."""

    def __init__(self, state: ScanState, sample: RandomSample, mine: Callable[[int], bool]) -> None:
        self.state, self.planner = state, Planner(state, sample)
        extra = [int(n) for n in np.union1d(sample.sequences, sample.draws) if mine(int(n))]
        sides = [(index, side) for index, layer in enumerate(state.layers) for side in layer.sides]
        found = [self.places(layer, side) for layer, side in sides]
        self.order = {key: np.argsort(sequence_of(at), kind="stable") for key, at in zip(sides, found, strict=True)}
        self.sorted = {key: sequence_of(at)[self.order[key]] for key, at in zip(sides, found, strict=True)}
        real = [np.unique(at) for at in self.sorted.values()]
        every = np.unique(np.concatenate([*real, np.array(extra, np.int64)]))
        self.sequences = every[every != sequence_of(NOWHERE)]

    def places(self, layer: int, side: str) -> np.ndarray:
        return rearrange(self.state.layers[layer].ranking(side).at, "d_mlp kept -> (d_mlp kept)")

    def begin(self, page: Page) -> None:
        self.plan = self.planner.plan(page)

    def add(
        self,
        page: Page,
        layer: int,
        pre: torch.Tensor,
        coefficients: torch.Tensor,
        linear: torch.Tensor | None,
    ) -> None:
        """Note the float32 extremes of one sequence for the neurons that hold it as a candidate."""
        number, state = int(page.batch.sequences[0]), self.state.layers[layer]
        batch = LayerBatch.of(self.plan, pre, coefficients, linear)
        batch.reduce(0, len(state.high), None)
        observe_sample(state, batch, 0, len(state.high))
        for side in batch.sides:
            key = (layer, side)
            first, last = np.searchsorted(self.sorted[key], [number, number + 1])
            slots = self.order[key][first:last]
            ranking = state.ranking(side)
            neurons, columns = np.divmod(slots, ranking.value.shape[1])
            values = batch.best[SIDES.index(side), 0, neurons]
            # In float32 a sequence may never be in the case that it was in: then it is no candidate any more.
            there = values > 0 if side not in EXTREMES else np.ones(len(neurons), bool)
            neurons, columns, values = neurons[there], columns[there], values[there]
            at = batch.positions(side, np.zeros(len(neurons), np.int64), neurons)
            ranking.exact[neurons, columns] = values if side in EXTREMES else batch.coefficients[at, neurons]
            ranking.exact_at[neurons, columns] = place_of(np.int64(number), at)
            if batch.linear is not None:
                ranking.parts[:, neurons, columns] = batch.parts(at, neurons)
