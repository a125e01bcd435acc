"""``intervene``: a model whose coefficients are other ones for a while."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, SupportsIndex

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from ..core.errors import HookError, InputError, OutOfRangeError, check_whole, counted, listed, warn
from ..core.types import checked
from ..models.hooks import OpenBlock, UndoList
from ..models.layer_pass import ForwardPass, Reader
from ..models.model import Model
from .changes import LayerChange, NeuronChanges, Plan, make_plan

# `intervene`: a model whose coefficients are other ones for a while.


@checked
def intervene(
    model: Model,
    interventions: NeuronChanges | Sequence[NeuronChanges],
    *,
    positions: SupportsIndex | Iterable[SupportsIndex] | None = None,
) -> AbstractContextManager[None]:
    """Change coefficients of chosen neurons in every forward pass inside a ``with`` block; none of it stays after it.

    All that runs the model sees it: :func:`ffnmem.capture` (whose ``.coefficients`` are the changed ones), the bridge,
    and generation by the bridge or by Hugging Face, with or without a cache. What runs the layers by themselves (a
    scan, :func:`ffnmem.ablate`) refuses to run inside. Blocks nest; an inner one acts on what the outer one left.

    Args:
        model: from :func:`ffnmem.load`.
        interventions: ``{(layer, neuron): what}``, or ``{"3.17": what}``; a neuron of None (``"3.all"``) is every
            neuron of that layer, and one named beside its layer keeps its own. ``what`` is a number, which the
            coefficient becomes, or ``Set(v)``, ``Scale(f)``, ``Add(v)``, ``Mean(source)`` with a Store or a
            Capture as the source. A list of such dicts has one for each row of the batch; an empty
            one leaves its row alone.
        positions: where: None is every position, the beginning-of-sequence token's too, and every token generated.
            Numbers count tokens of a row's own text from 0, pads left out, through what is generated; negative ones
            from the end of the prompt, which is what a pass without a cache reads. Pads, known by the attention mask,
            are never changed by numbered positions, and what happens at them reaches nothing else.

    Raises:
        InputError: nothing to do, a neuron named twice, no finite number, a source of another model, another number of
            rows than a batch has. OutOfRangeError: no such layer, neuron or position; a position that no pass inside
            the block reached is named at its end. HookError: a pass whose positions cannot be told.
    """
    return Intervention(model, make_plan(model, interventions), choose_positions(model, positions))


class Intervention(OpenBlock):
    """What ``intervene`` returns: nothing is changed until a ``with`` enters it, and who forgets that is told."""

    entered = True  # until it is made

    def __init__(self, model: Model, plan: Plan, positions: tuple[int, ...] | None) -> None:
        super().__init__()
        self.model, self.plan, self.positions = model, plan, positions
        self.running: list[RunningIntervention] = []  # of blocks that are open
        self.changed = {model.ffn[layer].project_out: change for layer, change in plan.layers.items()}
        where = "" if positions is None else f" at position{'s' * (len(positions) > 1)} {listed(positions)}"
        self.what = plan.words + where
        self.entered = False

    def begin(self, undo: UndoList) -> None:
        self.entered = True
        active = RunningIntervention(self.model, self.plan, self.positions)
        active.reader.follow(undo)
        for module, change in self.changed.items():
            hook: Any = partial(active.change, change)
            hook.intervention = self.what  # which Model.interventions reads
            undo.hook(module, hook, before=True)
        modules = {layer: self.model.ffn[layer].project_out for layer in self.plan.layers}
        undo.require(active.reader.decoder, modules, self.model.name)
        self.running.append(active)

    def leave(self, *error: Any) -> None:
        active = self.running.pop()
        super().leave(*error)
        if error[0] is None:
            active.check_reached()

    def __repr__(self) -> str:
        return f"<intervene: {self.plan.words}, while entered: with fm.intervene(…): …>"

    def __del__(self) -> None:
        if not self.entered and not sys.is_finalizing():
            warn(f"intervene ({self.plan.words}) was never entered, so nothing was changed: with fm.intervene(…): …")


def choose_positions(model: Model, positions: SupportsIndex | Iterable[SupportsIndex] | None) -> tuple[int, ...] | None:
    """Positions as whole numbers, each once, below the model's context; None for all."""
    if positions is None:
        return None
    asked = list(positions) if isinstance(positions, Iterable) else [positions]
    if not asked:
        raise InputError("positions is empty: name at least one, or leave it out for all")
    found = tuple(dict.fromkeys(check_whole("position", p) for p in asked))
    for position in found:
        if not -model.n_ctx <= position < model.n_ctx:
            raise OutOfRangeError(
                f"position {position} is out of range: {model.name} has positions 0 to {model.n_ctx - 1}"
            )
    return found


class RunningIntervention:
    """An intervention while it acts."""

    def __init__(self, model: Model, plan: Plan, positions: tuple[int, ...] | None) -> None:
        self.model, self.plan, self.positions, self.reader = model, plan, positions, Reader(model)
        # Threads inside the block may run at the same time: sets and dicts are only added to, and known is one value.
        self.reached: set[int] = set()
        self.lengths: set[int] = set()
        self.known: tuple[ForwardPass, Bool[Tensor, "batch pos"] | None] | None = None

    def cells(self, reading: ForwardPass) -> Bool[Tensor, "batch pos"] | None:
        """Which cells of a pass to change; worked out once for all layers. None is all."""
        known = self.known
        if known is None or known[0] is not reading:
            batch = len(reading.positions)
            if self.plan.rows not in (None, batch):
                raise InputError(
                    f"the batch has {batch} row{'s' * (batch > 1)}, but interventions were given for {self.plan.rows}"
                )
            known = self.known = (reading, None if self.positions is None else self.chosen(reading, self.positions))
        return known[1]

    def chosen(self, reading: ForwardPass, positions: tuple[int, ...]) -> Bool[Tensor, "batch pos"]:
        found = torch.zeros(reading.positions.shape, dtype=torch.bool, device=reading.positions.device)
        self.lengths.add(int(reading.positions.max()) + 1)
        for position in positions:
            if position >= 0:
                here = reading.positions == position
            else:
                if reading.lengths is None:
                    raise HookError(
                        f"position {position} counts from the prompt's end, but the pass that read the prompt ran "
                        "before this block: name positions from 0"
                    )
                shortest = int(reading.lengths.min())
                if shortest < -position:
                    raise OutOfRangeError(
                        f"position {position} is out of range: a prompt here has {counted(shortest, 'token')}"
                    )
                here = reading.positions == (reading.lengths + position).unsqueeze(-1)
            if bool(here.any()):
                self.reached.add(position)
            found |= here
        return found

    def check_reached(self) -> None:
        """Raise OutOfRangeError naming positions that no pass reached: nothing was changed there."""
        missed = [p for p in self.positions or () if p not in self.reached]
        if missed and self.reader.ran:
            longest = max(self.lengths, default=0)
            raise OutOfRangeError(
                f"position {listed(missed)} was never reached: the longest text in the block had "
                f"{counted(longest, 'token')}"
            )

    def change(self, change: LayerChange, _module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """What a layer's down projection reads, changed."""
        m, reading = args[0], self.reader.current
        if reading is None:
            if self.positions is not None or not change.uniform:
                raise HookError("an FFN ran outside a pass of its model, so its rows and positions cannot be told")
            return (change.applied(m.reshape(1, -1, m.shape[-1])).reshape(m.shape), *args[1:])
        shaped = m.reshape(*reading.positions.shape, m.shape[-1])  # OPT flattens batch and position
        return (change.applied(shaped, self.cells(reading)).reshape(m.shape), *args[1:])
