"""``report``: which memories wrote one answer, on one page that needs nothing but a browser."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ..core.errors import InputError
from ..core.files import check_destination, write_whole
from ..core.token_text import visible
from ..core.types import LOGIT, Basis, Count, checked
from ..models.model import Model
from ..models.turns import in_turn
from ..prompts.attribution import Attribution, attribute
from ..prompts.captures import Capture, Prompt, answer_probability, capture, with_answer
from ..prompts.paths import PathAttribution, attribute_paths
from ..show.notebook import Axis, Bar, bar, signed
from ..vocabulary.lenses import JacobianLens, Lens, load_lens, name_of, told
from ..vocabulary.projections import project
from .links import Links, nowhere, to_site
from .rendering import render

# The answer in one sentence: what the templates need to say it.


@dataclass(frozen=True)
class Answer:
    """A target's logit (against a foil), and how much of it memories wrote.

    ``in_percent`` is False where a share of the logit would mislead: a logit at or below zero, or one that is small
    beside what was written towards it.
    """

    target: str
    foil: str | None
    logit: float
    ffn: float
    top: float
    n_top: int
    n_neurons: int
    in_percent: bool
    before_cap: str
    probability: float | None = None
    foil_probability: float | None = None


def answer(
    attribution: Attribution, top: int, probability: float | None = None, foil_probability: float | None = None
) -> Answer:
    """The sentence's numbers for an attribution of one position; probabilities of target and foil if known."""
    attribution = attribution.total
    logit = attribution.logit
    parts = attribution.components
    ffn = float(parts.loc[parts["component"] == "ffn", "logit"].sum())
    largest = attribution.top(top)["logit"]
    written = float(largest.sum())
    return Answer(
        target=attribution.target,
        foil=attribution.foil,
        logit=logit,
        ffn=ffn,
        top=written,
        n_top=len(largest),
        n_neurons=math.prod(attribution.neuron_logits.shape[1:]),
        in_percent=logit > 0 and max(abs(ffn), abs(written)) <= 2 * logit,
        before_cap=attribution.provenance.before_cap,
        probability=probability,
        foil_probability=foil_probability,
    )


@dataclass(frozen=True)
class Carried:
    """What memories of all positions add to a logit, and the earlier position whose memories add most."""

    memories: float
    rest: float
    logit: float
    error: float
    place: int | None
    there: float
    in_percent: bool


def carried(paths: PathAttribution) -> Carried:
    """The numbers of the sentence on memories at all positions."""
    by_position = paths.map.sum(0).tolist()
    memories, earlier = sum(by_position), by_position[: paths.answer.positions[0]]
    place = max(range(len(earlier)), key=earlier.__getitem__, default=None)
    there = 0.0 if place is None else earlier[place]
    return Carried(
        memories=memories,
        rest=float(paths.components["logit"].sum()) - memories,
        logit=paths.logit,
        error=paths.error,
        place=place,
        there=there,
        in_percent=paths.logit > 0 and max(abs(memories), abs(there)) <= 2 * paths.logit,
    )


# The layer × position map as geometry: bands of columns, each its own drawing.
#
# On a screen the bands stand side by side and scroll as one; in print they wrap, so that a long prompt stays legible.

WIDE_UP_TO = 18  # columns with room for numbers and upright labels
PAGE = 976  # pixels for the columns on a laptop
LABEL = 11  # characters of an upright label
BAND = 19  # narrow columns that fit the width of a printed page
PAPER = 660  # pixels of that width


@dataclass(frozen=True)
class MapCell:
    y: int
    strength: float
    adds: bool
    text: str
    title: str


@dataclass(frozen=True)
class MapColumn:
    x: int
    position: int
    label: str
    title: str
    read: bool
    cells: tuple[MapCell, ...]


@dataclass(frozen=True)
class Map:
    """``bands`` of columns; sizes in pixels; ``limit``: the largest \\|logit\\|, where colours are strongest."""

    bands: tuple[tuple[MapColumn, ...], ...]
    layers: tuple[tuple[int, int], ...]
    column: int
    row: int
    label: int
    wide: bool
    limit: float
    position: int

    @property
    def height(self) -> int:
        return self.row * len(self.layers) + self.label

    @property
    def width(self) -> int:
        return 76 + self.column * sum(len(band) for band in self.bands)

    @property
    def print_zoom(self) -> float:
        return round(min(1.0, PAPER / (60 + self.column * len(self.bands[0]))), 3)


def heatmap(values: Sequence[Sequence[float]], tokens: Sequence[str], position: int) -> Map:
    """The map of ``values[layer][pos]`` in logits; ``position`` is where the answer is read off."""
    n_layers, n = len(values), len(tokens)
    wide = n <= WIDE_UP_TO
    column = max(min(PAGE // n, 96), 52) if wide else 32
    row = 30 if n_layers <= 16 else 20 if n_layers <= 32 else 15
    limit = max(abs(value) for layer in values for value in layer) or 1.0

    def cell(layer: int, pos: int) -> MapCell:
        value = values[layer][pos]
        strength = abs(value) / limit
        text = signed(value, 2) if wide and row > 15 else ("+" if value > 0 else "−") if strength >= 0.15 else ""
        title = f"layer {layer}, position {pos} {tokens[pos]!r}: {signed(value, 3)}"
        return MapCell((n_layers - 1 - layer) * row, round(strength, 3), value >= 0, text, title)

    def build(pos: int, x: int) -> MapColumn:
        return MapColumn(
            x=x,
            position=pos,
            label=visible(tokens[pos], (column - 4) // 7 if wide else LABEL),
            title=f"position {pos}: {tokens[pos]!r}",
            read=pos == position,
            cells=tuple(cell(layer, pos) for layer in range(n_layers)),
        )

    size = n if wide else BAND
    return Map(
        bands=tuple(
            tuple(build(pos, (pos - start) * column) for pos in range(start, min(start + size, n)))
            for start in range(0, n, size)
        ),
        layers=tuple((layer, (n_layers - 1 - layer) * row) for layer in reversed(range(n_layers))),
        column=column,
        row=row,
        label=40 if wide else 18 + max(8 * len(visible(token, LABEL)) for token in tokens),
        wide=wide,
        limit=limit,
        position=position,
    )


# What the page and the notebook displays show of results, as plain rows with their bars' geometry.

BASIS: Basis = "folded"  # in which values are read as tokens; the page records it


@dataclass(frozen=True)
class Chip:
    """One token as shown. ``kind``: "special", "promoted", "suppressed" or ""; ``named``: target or foil."""

    token: str
    kind: str = ""
    title: str = ""
    named: bool = False


@dataclass(frozen=True)
class Waterfall:
    """Every component, and what they come to."""

    rows: tuple[Any, ...]
    sum: float
    logit: float
    error: float
    sum_bar: Bar
    logit_bar: Bar


def with_bars(frame: pd.DataFrame, column: str) -> list[Any]:
    """The rows of a table as a template reads them, each with the bar of one of its columns."""
    axis = Axis.over(frame[column].tolist())
    return list(frame.assign(bar=[bar(axis, value) for value in frame[column]]).itertuples())


def with_tokens(
    model: Model,
    found: pd.DataFrame,
    tokens: int,
    named: Collection[int],
    fired: str = "coefficient",
    lens: Lens = LOGIT,
) -> pd.DataFrame:
    """A table of neurons with the ``tokens`` tokens that each promotes and suppresses most, as it fired; ``named`` ids
    are marked. ``fired``: the column of coefficients; a negative one promotes what the value suppresses."""
    chips: dict[tuple[int, int, str], list[Chip]] = {}
    for layer in sorted(set(found["layer"])):
        neurons = found.loc[found["layer"] == layer, "neuron"].unique().tolist()
        for row in project(model, layer, neurons, k=tokens, side="value", basis=BASIS, lens=lens).itertuples():
            chip = Chip(row.token, row.sign, f"score {row.score:+.3f}", row.token_id in named)
            chips.setdefault((layer, row.neuron, row.sign), []).append(chip)
    places = list(zip(found["layer"], found["neuron"], found[fired] < 0, strict=True))
    signs = ("promoted", "suppressed")
    return found.assign(
        **{
            sign: [chips.get((*at, other if turned else sign), []) for *at, turned in places]
            for sign, other in zip(signs, signs[::-1], strict=True)
        }
    )


def waterfall(attribution: Attribution) -> Waterfall:
    """The components of an attribution of one position, each beginning where the one before it ends."""
    attribution = attribution.total
    parts = attribution.components
    totals = parts["logit"].cumsum()
    axis = Axis.over([*totals, attribution.logit])
    bars = [bar(axis, logit, total - logit) for logit, total in zip(parts["logit"], totals, strict=True)]
    layers = parts["layer"].astype(object).where(parts["layer"].notna(), None)
    whole = float(attribution.sums[0])
    return Waterfall(
        tuple(parts.assign(layer=layers, total=totals, bar=bars).itertuples()),
        whole,
        attribution.logit,
        attribution.error,
        bar(axis, whole),
        bar(axis, attribution.logit),
    )


def prompt_chips(capture: Capture, prompt: int | None = None, limit: int | None = None) -> list[Chip]:
    """A prompt's tokens, the first ``limit`` at most; special tokens stand back."""
    model, special = capture.model, capture.model.special_token_ids
    ids = [int(i) for i in capture.tokens[capture.row(prompt), : capture.length(prompt)][:limit]]
    chips = []
    for position, (token_id, token) in enumerate(zip(ids, model.token_strings(ids), strict=True)):
        where = f"position {position}, token {token_id}"
        bos = position == 0 and token_id == model.bos_token_id
        chips.append(Chip(token, "special" if token_id in special else "", f"{'beginning of sequence; ' * bos}{where}"))
    return chips


FIRINGS = 10  # rows of the table of single firings
PROMOTED = 8  # tokens of each memory


@checked
@in_turn
def report(
    model: Model,
    prompt: Prompt,
    *,
    target: str | int | None = None,
    foil: str | int | None = None,
    out: str | Path = "report.html",
    top: Count = 20,
    tokens: Count = PROMOTED,
    position: int = -1,
    first_token: bool = False,
    prepend_bos: bool | None = None,
    lens: Lens = LOGIT,
    site: str | Path | None = None,
) -> Path:
    """Write the report of one prompt as one HTML file that needs nothing but a browser; its one script sorts and
    filters tables.

    Args:
        model: from :func:`ffnmem.load`.
        prompt: one text, or its token ids.
        target: the token to explain, as :func:`ffnmem.attribute` takes it; default: the model's own top token.
        foil: a second token: explain the difference of the two logits.
        out: the file to write, in a folder that exists; replaced only once the new one is complete.
        top: how many memories to list.
        tokens: how many promoted and suppressed tokens to show for each.
        position: where the answer is read off; negatives count from the prompt's end.
        first_token: take the first token of a target or foil alone.
        prepend_bos: put the beginning-of-sequence token in front; default ``model.prepend_bos``.
        lens: what the memories' tokens are read through, as :func:`ffnmem.project` takes it.
        site: the folder of a site of the model's neurons (:func:`ffnmem.pages.site`), to which their names lead.

    Returns:
        The path written.

    Raises:
        FileError: ``out`` is a folder, its folder is missing, or it cannot be written; ``site`` is none.
        InputError, OutOfRangeError: as :func:`ffnmem.capture` and :func:`ffnmem.attribute`; several prompts.
    """
    path = check_destination(out)
    others = to_site(site, path, model.fingerprint)
    through = load_lens(model, lens)
    captured = capture(model, prompt, prepend_bos=prepend_bos)
    if captured.tokens.shape[0] != 1:
        raise InputError(f"a report is of one prompt, not {captured.tokens.shape[0]}: write one for each")
    attribution = attribute(captured, target, foil, position, first_token=first_token)
    write_whole(path, prompt_html(captured, attribution, top=top, tokens=tokens, lens=through, links=others))
    return path


def prompt_html(captured: Capture, attribution: Attribution, **shown: Any) -> str:
    """The report of an attribution, whose paths are not known yet; ``shown`` as :func:`report_html` takes it."""
    paths = attribute_paths(captured, attribution.answer)
    return report_html(captured, attribution, paths, **shown)


def report_html(
    captured: Capture,
    attribution: Attribution,
    paths: PathAttribution,
    *,
    top: int,
    tokens: int = PROMOTED,
    lens: JacobianLens | None = None,
    links: Links = nowhere,
) -> str:
    """The page of an attribution of one position of a capture of one prompt, directly and along all paths."""
    attribution, read = attribution.total, attribution.answer
    assert read is not None
    captured, _ = with_answer(captured, read, 0)
    position, target_id, foil_id = attribution.position, attribution.target_ids[0], attribution.foil_id
    roles = {target_id: "target"} if foil_id is None else {foil_id: "foil", target_id: "target"}
    prompt = prompt_chips(captured)
    memories = with_tokens(captured.model, attribution.top(top), tokens, roles, lens=lens or LOGIT)
    other = None if foil_id is None else float(captured.logits_at(0, position).detach().double().softmax(-1)[foil_id])
    return render(
        "report.html",
        links=links,
        prompt=prompt,
        answer=answer(attribution, top, answer_probability(captured, read), other),
        predictions=captured.ranked(position, roles),
        map=heatmap(paths.map.tolist(), [chip.token for chip in prompt[: paths.position + 1]], position),
        carried=carried(paths),
        firings=with_bars(paths.top(min(top, FIRINGS)), "logit"),
        memories=with_bars(memories, "logit"),
        lens=name_of(lens),
        ledger=waterfall(attribution),
        position=position,
        provenance=attribution.provenance.with_settings(basis=BASIS, lens=told(lens)).to_dict(),
    )
