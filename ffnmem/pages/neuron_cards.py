"""A neuron's card: what the terminal, the page and the notebook show of it, as plain rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.errors import counted
from ..core.number_text import decimals
from ..core.sheets import Shade
from ..neurons.concepts import Meaning, Meanings
from ..scanning.contexts import Bin
from ..scanning.neuron import KEYS, MEANINGS, Group, Known
from ..show.notebook import Axis, Bar, bar, plain, widens
from .links import anchor
from .prompts import Chip

DRAWN = 40  # bars of a drawing
FEW = 5  # tokens of a brief card's lists
HEIGHT = 100.0
SHARES = (0.25, 0.5, 1.0)  # of the largest magnitude, in the legend of shades


@dataclass(frozen=True)
class MeanRow:
    """A mean coefficient at a token or a range of positions."""

    chip: Chip
    mean: float
    count: int
    bar: Bar


@dataclass(frozen=True)
class Case:
    """One sign case of a gated neuron. ``mean``: of its coefficient there; NaN, without a bar, if it never occurs."""

    name: str
    share: float
    mean: float
    bar: Bar | None


@dataclass(frozen=True)
class Card:
    """``meanings``: by sign, those listed of each; none where no polysemanticity is kept beside the store. ``keys``,
    ``cases``: of a gated neuron, the tokens that its gate and its linear part read, by their name, and its sign
    cases. ``brief``: one of so many that each says the most important alone."""

    neuron: Known
    meanings: tuple[tuple[Meanings, tuple[Meaning, ...]], ...]
    groups: tuple[Group, ...]
    promoted: tuple[Chip, ...]
    suppressed: tuple[Chip, ...]
    frequent: tuple[MeanRow, ...]
    positions: tuple[MeanRow, ...]
    histogram: HistogramDrawing | None
    bins: tuple[Bin, ...]
    keys: tuple[tuple[str, tuple[Chip, ...]], ...] = ()
    cases: tuple[Case, ...] = ()
    brief: bool = False

    @property
    def name(self) -> str:
        return self.neuron.name

    @property
    def verdict(self) -> str:
        """On its positive coefficients; empty where none is kept."""
        return next((found.verdict for found, _ in self.meanings if not found.negative), "")

    @property
    def place(self) -> tuple[int, int]:
        """Layer and neuron."""
        return self.neuron.layer, self.neuron.neuron

    @property
    def anchor(self) -> str:
        return anchor(*self.place)

    @property
    def scale(self) -> tuple[Shade, ...]:
        """What some shades stand for."""
        largest = self.neuron.largest
        places = decimals([largest], 3)
        return tuple(Shade(f" {plain(share * largest, places)}", share, False, "") for share in SHARES)

    @property
    def widen(self) -> str:
        """The id of the checkbox that shows the whole sequences of its examples; empty where these are not there."""
        listed = (one.examples for _, some in self.meanings for one in some)
        there = widens((*listed, *(group.examples() for group in self.groups)))
        return f"w{self.name}" if there else ""


def card(neuron: Known, listed: int | None = None, *, brief: bool = False) -> Card:
    """A neuron's card with at most ``listed`` examples of top, bottom and random (default 10) and a case (5); a
    ``brief`` one has fewer tokens, and no tables of the histogram and of positions nor what other cards fold."""
    some = FEW if brief else None
    return Card(
        neuron=neuron,
        meanings=tuple((m, m.first(MEANINGS, neuron.passages, neuron.largest)) for m in neuron.meanings),
        groups=tuple(group for group in neuron.groups(listed) if not (brief and group.folded)),
        promoted=scored_chips(neuron, "promoted"),
        suppressed=scored_chips(neuron, "suppressed"),
        frequent=mean_rows(neuron.frequent[:some]),
        positions=() if brief else mean_rows(neuron.positions),
        histogram=histogram_drawing(neuron),
        bins=() if brief else neuron.bins(),
        keys=tuple((name, scored_chips(neuron, sign, side)[:some]) for (side, sign), name in KEYS.items())
        if neuron.gated and not neuron.lack
        else (),
        cases=case_rows(neuron),
        brief=brief,
    )


def case_rows(neuron: Known) -> tuple[Case, ...]:
    """The sign cases of a gated neuron, in their fixed order."""
    cases = neuron.cases
    axis = Axis.over([case["mean"] for case in cases])
    return tuple(
        Case(case["case"], case["share"], case["mean"], bar(axis, case["mean"]) if case["share"] > 0 else None)
        for case in cases
    )


def scored_chips(neuron: Known, sign: str, side: str = "value") -> tuple[Chip, ...]:
    """The tokens that its value promotes or suppresses, or that raise or lower a key, best first."""
    return tuple(Chip(text, sign, f"score {score:+.3f}") for text, score in neuron.scores(sign, side))


def mean_rows(rows: Sequence[tuple[str, float, int]]) -> tuple[MeanRow, ...]:
    """Means by token or positions, as :attr:`Known.frequent` and :attr:`Known.positions` give them."""
    axis = Axis.over([mean for _, mean, _ in rows])
    return tuple(MeanRow(Chip(str(name)), mean, count, bar(axis, mean)) for name, mean, count in rows)


@dataclass(frozen=True)
class HistogramBar:
    """One bar of the drawing, in 0…1000 × 0…:data:`HEIGHT`."""

    x: float
    width: float
    y: float
    height: float
    bin: Bin
    total: int

    @property
    def fires(self) -> bool:
        return self.bin.low >= 0

    @property
    def title(self) -> str:
        b = self.bin
        return f"{b.low:.4g} to {b.high:.4g}: {counted(b.count, 'token')}, {b.count / self.total:.2%}"


@dataclass(frozen=True)
class Tick:
    """A place on an axis and its number. ``at``: of the whole, from 0 to 100."""

    at: float
    label: str


@dataclass(frozen=True)
class HistogramDrawing:
    """A histogram as geometry. ``zero``: where 0 is, in 0…1000; ``lines``: whole powers of ten, ``ticks``: of the
    coefficient."""

    columns: tuple[HistogramBar, ...]
    lines: tuple[Tick, ...]
    ticks: tuple[Tick, ...]
    zero: float | None
    text: str

    def path(self, fires: bool) -> str:
        """The bars above zero, or below it, as one path."""
        some = (c for c in self.columns if c.height and c.fires == fires)
        return "".join(f"M{c.x:g} {HEIGHT:g}v{-c.height:g}h{c.width:g}v{c.height:g}z" for c in some)


def histogram_drawing(neuron: Known) -> HistogramDrawing | None:
    """The coefficient's histogram: heights are densities on a logarithmic scale. None where nothing was counted."""
    found = neuron.bins(DRAWN)
    if not found:
        return None
    low, high = found[0].low, found[-1].high
    span = (high - low) or 1.0
    total = sum(b.count for b in found)
    densities = [density for b in found if (density := b.density) > 0] or [1.0]
    floor, top = math.log10(min(densities)) - 0.4, math.log10(max(densities))
    scale = HEIGHT / max(top - floor, 1e-9)

    def column(b: Bin) -> HistogramBar:
        density = b.density
        height = round((math.log10(density) - floor) * scale, 2) if density else 0.0
        x, end = (round(1000 * (edge - low) / span, 2) for edge in (b.low, b.high))
        return HistogramBar(x, round(end - x, 2), round(HEIGHT - height, 2), height, b, total)

    tens = range(math.ceil(floor), math.floor(top) + 1)
    fires = sum(b.count for b in found if b.low >= 0)
    middle = middle_half(found, total)
    return HistogramDrawing(
        columns=tuple(column(b) for b in found),
        lines=tuple(
            Tick(round(HEIGHT - (ten - floor) * scale, 2), f"{10.0**ten:,.9g}" if -3 < ten < 6 else f"1e{ten}")
            for ten in tens
        ),
        ticks=axis_ticks(low, high),
        zero=round(1000 * -low / span, 2) if low <= 0 <= high else None,
        text=f"Histogram of the coefficient from {low:.3g} to {high:.3g}: half of all tokens lie from "
        f"{middle[0]:.2g} to {middle[1]:.2g}, and {fires / total:.1%} at 0 or above",
    )


def middle_half(found: Sequence[Bin], total: int) -> tuple[float, float]:
    """Between which edges of bins the middle half of what was counted lies."""
    below, low, high = 0, found[0].low, found[-1].high
    for b in found:
        if below <= total / 4 < below + b.count:
            low = b.low
        if below < 3 * total / 4 <= below + b.count:
            high = b.high
        below += b.count
    return low, high


def axis_ticks(low: float, high: float) -> tuple[Tick, ...]:
    """Some five round numbers from ``low`` to ``high``, and where they stand."""
    span = high - low
    if not 0 < span < math.inf:
        return ()
    raw = span / 5
    ten = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * ten for factor in (1, 2, 5, 10) if factor * ten >= raw)
    places = max(0, -math.floor(math.log10(step)))
    wholes = range(math.ceil(low / step), math.floor(high / step) + 1)
    return tuple(Tick(round(100 * (n * step - low) / span, 2), plain(n * step, places)) for n in wholes)
