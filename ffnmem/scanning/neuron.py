"""``Neuron``: all that a store knows of one neuron, ready to be shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..token_text import printable
from ..vocabulary.vectors import SIGNS
from .cases import CASES, COLUMNS
from .contexts import Window
from .writing import STATS

if TYPE_CHECKING:
    from ..semantics.meanings import Meanings
    from .store import Store

CONTEXTS = 3  # examples of each meaning


@dataclass(frozen=True, eq=False)
class Neuron:
    """One neuron of a store.

    Attributes:
        store: where it comes from.
        layer, neuron: which.
        stats: its row of :meth:`Store.stats`.
        examples: as :meth:`Store.examples` gives them, of the kinds asked for.
        windows: the tokens around each row of ``examples``.
        histogram, by_token, by_position, values: as the store's methods of these names.
        context: tokens on each side in ``windows``.
    """

    store: Store
    layer: int
    neuron: int
    stats: dict[str, Any]
    examples: pd.DataFrame
    windows: tuple[Window, ...]
    histogram: pd.DataFrame
    by_token: pd.DataFrame
    by_position: pd.DataFrame
    values: pd.DataFrame
    context: int = 12

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.neuron}"

    @property
    def gated(self) -> bool:
        """Whether it has a gate beside its key."""
        return self.store.gated

    @property
    def cases(self) -> tuple[dict[str, Any], ...]:
        """Of a gated neuron, for each sign case: case, share (of positions), mean (coefficient; NaN for none)."""
        if not self.gated:
            return ()
        return tuple(
            {"case": case, "share": self.stats[f"share_{column}"], "mean": self.stats[f"mean_{column}"]}
            for case, column in zip(CASES, COLUMNS, strict=True)
        )

    @cached_property
    def meanings(self) -> tuple[Meanings, ...]:
        """What :func:`ffnmem.polysemanticity` keeps of it beside the store, for each sign; empty if nothing is."""
        from ..semantics.meanings import saved_meanings  # the one thing of a card that is from a room above

        return saved_meanings(self.store, self.layer, self.neuron, k=CONTEXTS, context=self.context)

    def tokens(self, sign: str, side: str = "value") -> list[str]:
        """The tokens that its value promotes, or suppresses, most; best first. Of a gated neuron also those that raise,
        or lower, its ``side`` "gate" or "key" most."""
        rows = self.values[(self.values["side"] == side) & (self.values["sign"] == sign)]
        return [str(token) for token in rows.sort_values("rank")["token"]]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "layer": self.layer,
            "neuron": self.neuron,
            "stats": self.stats,
            "promoted": self.tokens("promoted"),
            "suppressed": self.tokens("suppressed"),
            **self.keys_and_cases(),
            **{
                name: getattr(self, name).to_dict("records")
                for name in ("examples", "histogram", "by_token", "by_position")
            },
            "meanings": [found.as_dict() for found in self.meanings],
            "provenance": self.store.provenance,
        }

    def keys_and_cases(self) -> dict[str, Any]:
        """What :meth:`as_dict` has of a gated neuron besides."""
        if not self.gated:
            return {}
        sides = {side: {sign: self.tokens(sign, side) for sign in SIGNS} for side in ("gate", "key")}
        return {**sides, "cases": list(self.cases)}

    def _repr_html_(self) -> str:
        from ..reports.display import neuron_html

        return neuron_html(self)

    def __repr__(self) -> str:
        rate = f"fires at {self.stats['firing_rate']:.1%} of tokens"
        promoted = ", ".join(self.tokens("promoted")[:5])
        return printable(f"Neuron({self.name} of {self.store.model}: {rate}, promotes {promoted})")


def read_neuron(
    store: Store, layer: int, neuron: int, *, kind: str | Sequence[str] | None, k: int | None, context: int
) -> Neuron:
    """Everything about one neuron; layer and neuron are indices, the rest as :meth:`Store.examples` takes it."""
    rows = store.example_rows(layer, neuron, kind=kind, k=k)
    windows = store.windows(rows, context)
    stats = store.opened(STATS).one(layer, neuron)
    return Neuron(
        store=store,
        layer=layer,
        neuron=neuron,
        stats=stats,
        examples=store.with_contexts(rows, windows),
        windows=tuple(windows),
        histogram=store.histogram(layer, neuron),
        by_token=store.by_token(layer, neuron),
        by_position=store.by_position(layer, neuron),
        values=store.values(layer, neuron),
        context=context,
    )
