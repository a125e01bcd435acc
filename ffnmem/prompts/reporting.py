"""``report``: an answer explained directly and along all paths, with what the model expects after each token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, SupportsIndex

import pandas as pd
import torch

from ..core.errors import check_index
from ..core.neuron_names import LayerName
from ..core.number_text import format_probability, format_share
from ..core.progress import Progress
from ..core.provenance import Provenance
from ..core.sheets import Column, Fitting, Grid, Line, Prompt, Span, Table, line, token
from ..core.types import LOGIT, FiringScore, checked
from ..models.model import Model
from ..show.result import Result
from ..vocabulary.lenses import Lens, describe_lens, load_lens
from .attribution import Attribution, attribute
from .captures import Capture, Target
from .causal import CausalScores, causal_scores
from .paths import PathAttribution, attribute_paths

EXPECTED = 3  # tokens that are told to be likeliest after each
EXACT = 20  # of the largest firings, removed exactly, too


@checked
@dataclass(frozen=True, eq=False, repr=False)
class PromptReport(Result):
    """The memories behind an answer, directly and along all paths. Made by :func:`ffnmem.report`.

    Attributes:
        attribution: of the answer, from :func:`ffnmem.attribute`.
        scores: of the same, from :func:`ffnmem.attribute_paths` or :func:`ffnmem.causal_scores`.
        expected: one row for each of the likeliest tokens after each of the prompt: position, rank, token, token_id,
            logit, probability.
        layer, at: the layer and the position whose firings are listed; None for all.
        lens: what values are read in tokens through; lens_name: what that is called.
    """

    heading = "target foil logit error layer at"
    tables: ClassVar = {
        "text": "",
        "map": "",
        "predictions": "rank token answer logit probability",
        "firings": "neuron fired_at position coefficient logit score exact share promotes",
        "neurons": "neuron coefficient logit share promotes suppresses",
        "ledger": "*",
    }
    main, uncut, only_shown = "neurons", "predictions ledger", "text"
    beside = "firings neurons"

    attribution: Attribution
    scores: PathAttribution | CausalScores
    expected: pd.DataFrame
    layer: int | None = None
    at: int | None = None
    lens: Any = LOGIT
    lens_name: str = LOGIT

    @property
    def model(self) -> Model | None:
        return self.attribution.model

    @property
    def provenance(self) -> Provenance:
        return self.scores.provenance.with_settings(basis="folded", lens=self.lens_name)

    @property
    def title(self) -> Line:
        """Of its page."""
        foil = () if self.foil is None else (" rather than ", token(self.foil.strip() or self.foil, "strong"))
        return line("The memories behind ", token(self.target.strip() or self.target, "strong"), *foil)

    @property
    def prompt(self) -> Prompt:
        return self.attribution.prompt

    @property
    def target(self) -> str:
        return self.attribution.target

    @property
    def foil(self) -> str | None:
        return self.attribution.foil

    @property
    def logit(self) -> float:
        return self.attribution.logit

    @property
    def error(self) -> float:
        """The larger of both sums."""
        return max(self.attribution.error, getattr(self.scores, "error", 0.0))

    @property
    def count(self) -> int:
        return self.attribution.count

    @property
    def count_firings(self) -> int:
        """Of the layer, at the position that are asked for, those that did anything."""
        if self.layer is None and self.at is None:
            return self.scores.count
        return int(self.asked.count_nonzero())

    @property
    def verdict(self) -> Line:
        """How likely the answer is, and how much of it neurons wrote."""
        answer, logit = self.attribution.total, self.logit
        if self.foil is None:
            known = self.predictions
            told = [] if known is None else known.loc[known["answer"] == "target", "probability"].tolist()
            likely = f", probability {format_probability(told[0])}" if told else ""
            standing: tuple[str | Span, ...] = (f" has logit {logit:.2f}{answer.provenance.before_cap}{likely}",)
        else:
            way = "leads" if logit > 0 else "trails"
            standing = (f" {way} ", token(self.foil, "strong"), f" by {abs(logit):.2f} logits")
        wrote = f"neurons wrote {self.share(answer.written)} of it directly, where the answer is read"
        if isinstance(self.scores, PathAttribution):
            every = self.share(float(self.scores.map.sum()))
            own = self.share(answer.written)
            wrote = f"neurons at all positions wrote {every} of it, those at the answer's position {own}"
        agreement = f" {self.scores.verdict}" if self.causal else ""
        return line(token(self.target, "strong"), *standing, f"; {wrote}.{agreement}")

    @property
    def causal(self) -> bool:
        return isinstance(self.scores, CausalScores)

    def share(self, written: float) -> str:
        """A part of the logit in percent, or in logits where percents would mislead."""
        return format_share(written / self.logit, 0) if 0 < abs(written) <= 2 * self.logit else f"{written:+.2f}"

    @cached_property
    def predictions(self) -> pd.DataFrame | None:
        """The model's own top tokens, and target and foil among all."""
        return self.attribution.predictions

    @property
    def text(self) -> Table:
        """The prompt, and what the model expects after each of its tokens."""
        rows = []
        for position, some in self.expected.groupby("position"):
            here = Span(self.attribution.tokens[position], token=True, leads=("position", position))
            shares = [format_share(p, 1) if p >= 0.0005 else "<0.1%" for p in some["probability"]]
            likely = tuple(
                line(token(one), Span(f" {p}", "soft")) for one, p in zip(some["token"], shares, strict=True)
            )
            rows.append((here, Fitting(likely)))
        columns = Column("token"), Column("then the model expects", wraps=True)
        return Table(columns, tuple(rows), title="Text", strong=(self.attribution.position,), tiles=True)

    def map(self, top: int | None) -> Grid:
        """What the neurons of each layer, firing at each position, have to do with the answer."""
        return replace(self.scores.shown_map(top), title="Layers and positions")

    def firings(self, top: int | None) -> pd.DataFrame:
        """Single firings at all positions, or of the layer and at the position that were asked for."""
        if self.layer is None and self.at is None:
            return self.scores.top(top)
        exact: dict[str, Any] = {"exact": ()} if self.causal else {}
        found = replace(self.scores, scores=self.asked, **exact).top(top)
        return found[found[self.scores.column] != 0]

    @property
    def asked(self) -> torch.Tensor:
        # The scores of the layer and at the position that were asked for, 0 elsewhere.
        rows, columns = (slice(None) if one is None else slice(one, one + 1) for one in (self.layer, self.at))
        kept = torch.zeros_like(self.scores.scores)
        kept[rows, columns] = self.scores.scores[rows, columns]
        return kept

    def neurons(self, top: int | None) -> pd.DataFrame | None:
        """The neurons that wrote most at the answer's own position, and what they promote and suppress."""
        return self.attribution.shown_neurons(top)

    @property
    def ledger(self) -> pd.DataFrame | None:
        """Everything that adds up to the logit."""
        return self.attribution.ledger


@checked
def report(
    capture: Capture,
    target: Target = None,
    foil: str | SupportsIndex | None = None,
    position: SupportsIndex = -1,
    *,
    by: FiringScore = "paths",
    layer: LayerName | None = None,
    at: SupportsIndex | None = None,
    prompt: int | None = None,
    first_token: bool = False,
    lens: Lens = LOGIT,
    progress: Progress | None = None,
) -> PromptReport:
    """All about one answer: what the model expects, and which memories wrote it.

    Says what the model expects after each token of the prompt, and of one answer which layers wrote it at which
    positions, which single firings and which neurons count most, and all that adds up to its logit.

    Args:
        capture: of all layers.
        target: as :func:`ffnmem.attribute` takes it.
        foil: as :func:`ffnmem.attribute` takes it.
        position: where the answer is predicted: 0 is the first token, -1 the last.
        by: how firings are scored: by paths (what each wrote towards the answer, carried along by attention), or causal
            (about what the answer would lose without it).
        layer: list firings of this layer alone.
        at: list firings at this position alone.
        prompt: which one, of a capture of several.
        first_token: take the first token of a target or foil alone.
        lens: as :func:`ffnmem.project` takes it.
        progress: called with "exact", the firings that are removed one by one.

    Returns: A :class:`PromptReport`; :func:`ffnmem.pages.page` writes it as a page.

    Raises: as :func:`ffnmem.attribute_paths`, :func:`ffnmem.causal_scores` and :func:`ffnmem.vocabulary.load_lens`.

    Example:
        $ ffnmem report "The Eiffel Tower is located in the city of"
        $ ffnmem report "The capital of Italy is" --target " Rome" --foil " Paris" \\
            --html report.html
    """
    row = capture.row(prompt)
    at_position = capture.position(position, prompt)
    attribution = attribute(capture, target, foil, at_position, prompt=prompt, first_token=first_token)
    answer, through = attribution.answer, load_lens(capture.model, lens)
    if by == "paths":
        scores: Any = attribute_paths(capture, answer, prompt=prompt)
    else:
        scores = causal_scores(capture, answer, prompt=prompt, exact=EXACT, progress=progress)
    places = range(capture.length(prompt))
    return PromptReport(
        attribution=attribution,
        scores=scores,
        expected=pd.concat(
            [capture.predictions(place, EXPECTED, row).assign(position=place) for place in places], ignore_index=True
        ),
        layer=None if layer is None else capture.model.layer(layer),
        at=None if at is None else check_index("at", at, scores.map.shape[1], "this answer's map"),
        lens=through or LOGIT,
        lens_name=describe_lens(through),
    )
