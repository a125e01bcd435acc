"""What the page and the notebook displays show of results, as plain rows with their bars' geometry."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from ..attribution import Attribution
from ..captures import Capture
from ..models import Model
from ..paths import PathAttribution
from ..show.bars import Axis, Bar, bar
from ..vocabulary import project

BASIS = "folded"  # in which values are read as tokens; the page records it


@dataclass(frozen=True)
class Chip:
    """One token as shown. ``kind``: "bos", "special", "promoted", "suppressed" or ""; ``named``: target or foil."""

    token: str
    kind: str = ""
    title: str = ""
    named: bool = False


@dataclass(frozen=True)
class Memory:
    layer: int
    neuron: int
    coefficient: float
    logit: float
    share: float
    bar: Bar
    promoted: tuple[Chip, ...] = ()
    suppressed: tuple[Chip, ...] = ()


@dataclass(frozen=True)
class Firing:
    """One neuron at one position, and what that adds to the answer along all paths."""

    layer: int
    neuron: int
    position: int
    chip: Chip
    coefficient: float
    logit: float
    share: float
    bar: Bar


@dataclass(frozen=True)
class LedgerRow:
    component: str
    layer: int | None
    logit: float
    total: float
    bar: Bar


@dataclass(frozen=True)
class Ledger:
    """Every component, and what they come to."""

    rows: tuple[LedgerRow, ...]
    sum: float
    logit: float
    error: float
    sum_bar: Bar
    logit_bar: Bar


def memories(attribution: Attribution, top: int) -> list[Memory]:
    """The top neurons of an attribution of one position, without their tokens."""
    attribution.single()
    frame = attribution.top(top)
    axis = Axis.over(frame["logit"].tolist())
    return [
        Memory(int(row.layer), int(row.neuron), row.coefficient, row.logit, row.share, bar(axis, row.logit))
        for row in frame.itertuples()
    ]


def firings(paths: PathAttribution, prompt: Sequence[Chip], top: int) -> list[Firing]:
    """The firings that add most; ``prompt`` holds the chips of its positions."""
    frame = paths.top(top)
    axis = Axis.over(frame["logit"].tolist())
    return [
        Firing(
            int(row.layer),
            int(row.neuron),
            int(row.position),
            prompt[int(row.position)],
            row.coefficient,
            row.logit,
            row.share,
            bar(axis, row.logit),
        )
        for row in frame.itertuples()
    ]


def with_tokens(model: Model, found: Sequence[Memory], tokens: int, named: Collection[int]) -> list[Memory]:
    """The same with the ``tokens`` tokens that each value promotes and suppresses most; ``named`` ids are marked."""
    chips: dict[tuple[int, int], dict[str, list[Chip]]] = {}
    for layer in sorted({memory.layer for memory in found}):
        neurons = [memory.neuron for memory in found if memory.layer == layer]
        for row in project(model, layer, neurons, k=tokens, side="value", basis=BASIS).itertuples():
            kinds = chips.setdefault((layer, row.neuron), {"promoted": [], "suppressed": []})
            kinds[row.sign].append(Chip(row.token, row.sign, f"score {row.score:+.3f}", row.token_id in named))
    return [
        replace(memory, promoted=tuple(kinds["promoted"]), suppressed=tuple(kinds["suppressed"]))
        for memory in found
        for kinds in [chips[memory.layer, memory.neuron]]
    ]


def ledger(attribution: Attribution) -> Ledger:
    """The components of an attribution of one position as a waterfall."""
    attribution.single()
    parts = attribution.components
    totals = parts["logit"].cumsum()
    axis = Axis.over([*totals, attribution.logit])
    rows = [
        LedgerRow(
            row.component,
            None if pd.isna(row.layer) else int(row.layer),
            row.logit,
            total,
            bar(axis, row.logit, total - row.logit),
        )
        for row, total in zip(parts.itertuples(), totals, strict=True)
    ]
    whole = float(attribution.sums[0])
    return Ledger(
        tuple(rows), whole, attribution.logit, attribution.error, bar(axis, whole), bar(axis, attribution.logit)
    )


def prompt_chips(capture: Capture, prompt: int = 0, limit: int | None = None) -> list[Chip]:
    """A prompt's tokens, the first ``limit`` at most; special tokens say so, and BOS is called that at the start."""
    model, special = capture.model, capture.model.special_token_ids
    ids = [int(i) for i in capture.tokens[capture.row(prompt), : capture.length(prompt)][:limit]]
    chips = []
    for position, (token_id, token) in enumerate(zip(ids, model.token_strings(ids), strict=True)):
        where = f"position {position}, token {token_id}"
        if position == 0 and token_id == model.bos_token_id:
            chips.append(Chip("BOS", "bos", f"beginning of sequence, {token}; {where}"))
        else:
            chips.append(Chip(token, "special" if token_id in special else "", where))
    return chips
