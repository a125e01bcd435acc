"""The pass itself: batches through the bare body into the state, with checkpoints from which it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from einops import rearrange

from ..corpus import Batch, Sequences
from ..errors import InputError
from ..models import Model
from ..models.layer_pass import LayerPass
from . import kernels
from .cases import CASES
from .reduction import BatchPlan, Planner, Reducer, Workers, as_float32, gated_batch, observe_sample
from .sampling import Sample
from .state import EXTREMES, NOWHERE, ScanState, place_of, sequence_of
from .state_file import Identity, Progress, save_state

CHECKPOINT_SECONDS = 60.0
Report = Callable[[str, int, int], None]
"""Called as (phase, done, total): tokens in the phase "scan", sequences in the phase "rescore"."""
Receive = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor | None], None]
"""Called with a layer, its pre-activations, its coefficients, and the linear parts of a gated one."""


@dataclass(eq=False)
class Scanner:
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
    sample: Sample
    state: ScanState
    identity: Identity
    progress: Progress
    path: Path
    report: Report | None = None
    every: float = CHECKPOINT_SECONDS

    def checkpoint(self) -> None:
        save_state(self.path, self.state, self.identity, self.progress)
        self.saved = time.monotonic()

    def my_units(self) -> list[int]:
        index, count = self.progress.shard
        return list(range(index, len(self.sequences.units), count))

    def planner(self) -> Planner:
        return Planner(self.state, self.sample, frozenset(self.state.settings.special))

    # -- the pass ------------------------------------------------------------------------------------------------

    def scan(self) -> None:
        """Scan the shard's units that are not done yet."""
        self.saved = time.monotonic()
        done = set(self.state.done.tolist())
        units = [unit for unit in self.my_units() if unit not in done]
        if not units:
            return
        sizes = {unit: int(self.sequences.lengths(self.sequences.units[unit]).sum()) for unit in self.my_units()}
        total, count = sum(sizes.values()), sum(sizes[unit] for unit in done if unit in sizes)
        settings = self.state.settings
        body = LayerPass(self.model, getattr(torch, settings.dtype))
        workers = Workers()
        reducer = Reducer(self.state, self.planner(), workers)
        try:
            for unit in units:
                skip = self.progress.batch
                for number, batch in enumerate(
                    self.sequences.iter_batches(self.sequences.units[unit], settings.batch_tokens)
                ):
                    count += int(batch.lengths.sum())
                    if number < skip:
                        continue
                    self.run(body, reducer, batch)
                    self.progress = self.progress.with_(batch=number + 1)
                    if self.report is not None:
                        self.report("scan", count, total)
                    if time.monotonic() - self.saved > self.every:
                        self.checkpoint()
                self.state.done = np.sort(np.append(self.state.done, unit))
                self.progress = self.progress.with_(batch=0)
        finally:
            workers.close()
        self.checkpoint()

    def run(self, body: LayerPass, reducer: Reducer, batch: Batch) -> None:
        plan = reducer.begin(batch)
        tokens = torch.from_numpy(batch.tokens).to(self.model.device)
        try:
            run_layers(body, tokens, lambda *found: reducer.layer(plan, *found))
        except InputError as error:
            first, last = int(batch.sequences.min()), int(batch.sequences.max())
            raise InputError(f"{error}, somewhere in sequences {first} to {last}") from None

    # -- after a half-precision pass -------------------------------------------------------------------------------

    def rescore(self) -> None:
        """Run the candidates' and the sample's sequences again in float32, each alone, and keep their exact
        extremes."""
        if not self.state.settings.rescored:
            return
        wanted = Wanted(self.state, self.sample, self.my_sequences())
        numbers = wanted.sequences
        body = LayerPass(self.model, torch.float32)
        planner = self.planner()
        self.saved = time.monotonic()
        for index in range(self.progress.rescored, len(numbers)):
            number = int(numbers[index])
            ids = self.sequences.sequence_tokens(number)
            batch = Batch(rearrange(ids, "pos -> 1 pos"), np.array([number]), np.array([len(ids)]))
            plan = planner.plan(batch)
            tokens = torch.from_numpy(batch.tokens).to(self.model.device)
            run_layers(body, tokens, lambda *found, plan=plan, number=number: wanted.keep(plan, number, *found))
            self.progress = self.progress.with_(rescored=index + 1)
            if self.report is not None:
                self.report("rescore", index + 1, len(numbers))
            if time.monotonic() - self.saved > self.every:
                self.checkpoint()

    def my_sequences(self) -> Callable[[int], bool]:
        """Whether a sequence of the corpus was scanned here."""
        done = self.state.done
        starts = self.sequences.units.sequences
        return lambda number: bool(np.isin(np.searchsorted(starts, number, side="right") - 1, done))


def run_layers(body: LayerPass, tokens: torch.Tensor, receive: Receive) -> None:
    """One pass, each layer told at once with its linear parts."""
    linear: dict[int, torch.Tensor] = {}
    body.run(
        tokens,
        lambda layer, pre, m: receive(layer, pre, m, linear.pop(layer, None)),
        on_linear=lambda layer, part: linear.__setitem__(layer, part),
    )


class Wanted:
    """Which sequences must run again, and which neurons' extremes each of them is for."""

    def __init__(self, state: ScanState, sample: Sample, mine: Callable[[int], bool]) -> None:
        self.state = state
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

    def keep(
        self,
        plan: BatchPlan,
        number: int,
        layer: int,
        pre: torch.Tensor,
        coefficients: torch.Tensor,
        linear: torch.Tensor | None,
    ) -> None:
        """Note the float32 extremes of one sequence for the neurons that hold it as a candidate."""
        state = self.state.layers[layer]
        m = as_float32(coefficients)
        pos, width = m.shape
        high, low = np.empty((1, width), np.float32), np.empty((1, width), np.float32)
        kernels.extremes(m, plan.mask, pos, 0, width, high, low)
        gated = None if linear is None else gated_batch(plan, as_float32(pre), m, linear)
        observe_sample(state, plan, m, high, low, gated)
        extremes = {"high": high, "low": low}
        if gated is not None:
            gated.look()
            extremes |= dict(zip(CASES, gated.best, strict=True))
        for side, extreme in extremes.items():
            key = (layer, side)
            first, last = np.searchsorted(self.sorted[key], [number, number + 1])
            slots = self.order[key][first:last]
            ranking = state.ranking(side)
            neurons, columns = np.divmod(slots, ranking.value.shape[1])
            values = extreme[0, neurons]
            rows = np.zeros(len(neurons), np.int64)
            if gated is None:
                at = kernels.positions_of(m, plan.mask, pos, rows, neurons, values)
            else:
                at = gated.positions(side, rows, neurons, values)
            # In float32 a sequence may never be in the case that it was in: then it is no candidate any more.
            there = values > 0 if side not in EXTREMES else np.ones(len(neurons), bool)
            neurons, columns, at = neurons[there], columns[there], at[there]
            ranking.exact[neurons, columns] = values if side in EXTREMES else m[at, neurons]
            ranking.exact_at[neurons, columns] = place_of(np.int64(number), at)
            if gated is not None and ranking.parts is not None:
                ranking.parts[:, neurons, columns] = gated.parts(at, neurons)
