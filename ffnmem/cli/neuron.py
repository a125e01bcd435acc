"""``ffnmem neuron``: a neuron's card."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from cyclopts.validators import Number

import ffnmem as fm

from ..core.errors import FfnmemError, InputError
from ..core.types import LOGIT, ExampleKind, SignCase
from ..show.records import emit, write
from .options import (
    Full,
    LensName,
    Neurons,
    Output,
    Page,
    Plot,
    ScannedChoice,
    StoreFolder,
    Top,
    note_model,
    save_axes,
)
from .progress import show_progress

if TYPE_CHECKING:
    import pandas as pd

    from ..core.sheets import Sheet
    from ..scanning.store import Store

neuron = App(name="neuron")


@neuron.default
def show_cards(
    neurons: Neurons,
    /,
    *,
    store: StoreFolder,
    kind: list[ExampleKind | SignCase] | None = None,
    top: Top | None = None,
    context: Annotated[int, Parameter(validator=Number(gte=0), metavar="N")] = 12,
    html: Page | None = None,
    shade: Annotated[bool | None, Parameter(negative="--no-shade")] = None,
    lens: LensName = LOGIT,
    plot: Plot | None = None,
    full: Full = False,
    model: ScannedChoice = ScannedChoice(),
    output: Output = Output(),
) -> None:
    """What fires a neuron, how often, how strongly, and what it writes.

    Shows what a scan found out about each neuron. A card tells how often the neuron fires (its pre-activation is above
    0), how its coefficient is distributed, which tokens its value promotes and suppresses, which frequent tokens excite
    it, and where in the corpus it fires. The largest coefficients alone mislead; the quantiles show what is typical.

    A gated neuron's coefficient is act(gate) times a linear part. Its card also tells which tokens its two keys read,
    and treats the four cases of signs (above 0, or not) of gate and linear part apart: the coefficient is positive
    where both agree, so its largest values mix two cases. Its pre-activation is its gate's.

    Examples
      ffnmem neuron 3.17 --store runs/atlas
      ffnmem neuron 3.17 --store runs/atlas --kind bottom --kind random --top 5
      ffnmem neuron 3.17,0.18 --store runs/atlas --html neurons.html

    --csv has one row an example: layer, neuron, kind, rank, coefficient, sequence, position, token, context, extreme,
    band_low, band_high; of a gated neuron gate, linear and case too. --json has what the card shows; with --full all
    examples of these kinds, all bins of the histogram and all frequent tokens.

    Args:
        kind: Which examples: "top" or "bottom" for the largest or smallest coefficients, "quantile" for random
            sequences by quantile, "random" for random positions, or a sign case of a gated neuron, such as
            "gate+ linear-" (repeatable). [default: top, or the four cases of a gated neuron, and quantile]
        context: How many tokens of text on each side of an example.
        html: Write the cards as a page into FILE instead, and print its path.
        shade: Shade every token of the examples by the neuron's coefficient there, which the model computes; in a
            terminal by colour, --json has the numbers. [default: on a page of at most 20 neurons]
    """
    if html is not None and output.form != "table":
        raise InputError(f"--html and --{output.form} exclude each other: give one of them")
    if html is not None and not html.lower().endswith(".html"):
        raise InputError(f"--html {html}: a page's name ends in .html")
    if shade and output.csv:
        raise InputError("--shade does not go with --csv, which has a row an example: --json has every token of them")
    from ..scanning.neuron import kinds_shown

    opened = open_with_model(store, model, bool(shade) or lens != LOGIT or (html is not None and shade is None))
    places = [opened.index(layer, column) for layer, column in neurons]  # refuse all before reading any
    kinds = tuple(opened.check_kinds(kind or kinds_shown(opened)))
    if html is not None:
        with show_progress() as report:
            page = fm.pages.neurons(
                opened, places, html, kind=kinds, k=top, context=context, shade=shade, lens=lens, progress=report
            )
        write(f"{page}\n")
        note_model(opened.model, opened.fingerprint)
    else:
        found = [opened.neuron(*place, kind=kinds, k=top, context=context, lens=lens) for place in places]
        if shade:
            with show_progress() as report:
                found = opened.shaded(found, top, progress=report)
        emit(Cards(found, opened.provenance), output.form, top=top, full=full)
    if plot is not None:
        draws = [partial(fm.plots.histogram, opened.neuron(*place, kind="top", k=1)) for place in places]
        save_axes(draws, plot)


def open_with_model(folder: str, model: ScannedChoice, needed: bool = False) -> Store:
    """A store, with its model where that is ``needed`` or the store has no table of what values write: the one named,
    else by the store's record; a card says so if that cannot be loaded."""
    store = fm.open_store(folder)
    if not model.named and store.projected and not needed:
        return store
    try:
        return fm.open_store(folder, model=model.load(store))
    except FfnmemError:
        if model.named:
            raise
        return store


@dataclass(frozen=True)
class Cards:
    """Results of neurons of one store, one after another, with their provenance once.

    Attributes:
        cards: the results.
        provenance: of all of them.
        origin: what a table says of the provenance, if not all.
    """

    cards: Sequence[Any]
    provenance: Mapping[str, Any]
    origin: Mapping[str, Any] | None = None

    def sheet(self, *top: int) -> Sheet:
        from ..core.sheets import Origin, join_sheets

        origin = Origin(self.origin or self.provenance)
        return join_sheets((one.sheet(*top, origin=False) for one in self.cards), origin)

    def to_dict(self) -> dict[str, Any]:
        return self.values(one.to_dict() for one in self.cards)

    def brief(self, *top: int) -> dict[str, Any]:
        return self.values(one.brief(*top) for one in self.cards)

    def values(self, cards: Iterable[dict[str, Any]]) -> dict[str, Any]:
        """Plain values of the cards, with the provenance beside them."""
        neurons = [{name: value for name, value in one.items() if name != "provenance"} for one in cards]
        return {"neurons": neurons, "provenance": self.provenance}

    def to_frame(self) -> pd.DataFrame:
        import pandas as pd

        return pd.concat(one.to_frame() for one in self.cards)
