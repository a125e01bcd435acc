"""``report``: an answer explained directly, and along all paths, in one result."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, SupportsIndex

import pandas as pd

from ..core.provenance import Provenance
from ..core.sheets import Grid, Line, Prompt, line, token
from ..core.types import LOGIT, checked
from ..models.model import Model
from ..show.result import Result
from ..vocabulary.lenses import Lens, describe_lens, load_lens
from .attribution import Attribution, attribute
from .captures import Capture
from .paths import PathAttribution, attribute_paths


@checked
@dataclass(frozen=True, eq=False, repr=False)
class PromptReport(Result):
    """The memories behind an answer, directly and along all paths. Made by :func:`ffnmem.report`.

    Attributes:
        attribution: of the answer, from :func:`ffnmem.attribute`; paths: of the same, from
            :func:`ffnmem.attribute_paths`.
        lens: what values are read in tokens through; lens_name: what that is called.
    """

    heading = "prompt target foil logit error"
    tables: ClassVar = {
        "predictions": "rank token answer logit probability",
        "where_memories_wrote": "",
        "firings": "neuron fired_at position coefficient logit share",
        "neurons": "neuron coefficient logit share promotes suppresses",
        "ledger": "*",
    }
    main, uncut = "neurons", "predictions ledger"

    attribution: Attribution
    paths: PathAttribution
    lens: Any = "logit"
    lens_name: str = "logit"

    @property
    def model(self) -> Model | None:
        return self.attribution.model

    @property
    def provenance(self) -> Provenance:
        return self.attribution.provenance.with_settings(basis="folded", lens=self.lens_name)

    @property
    def title(self) -> Line:
        """Of its page."""
        foil = () if self.foil is None else (" rather than ", token(self.foil, "strong"))
        return line("The memories behind ", token(self.target, "strong"), *foil)

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
        return max(self.attribution.error, self.paths.error)

    @property
    def count(self) -> int:
        return self.attribution.count

    @property
    def count_firings(self) -> int:
        return self.paths.scores.numel()

    @property
    def verdict(self) -> str:
        """What neurons wrote directly, and at all positions."""
        return f"{self.attribution.verdict} {self.paths.verdict}"

    @cached_property
    def predictions(self) -> pd.DataFrame | None:
        """The model's own top tokens, and target and foil among all."""
        return self.attribution.predictions

    def where_memories_wrote(self, top: int | None) -> Grid:
        """What the memories of each layer, firing at each position, add to the answer: where they stand, or carried
        along by attention."""
        return self.paths.shown_map(top)

    def firings(self, top: int | None) -> pd.DataFrame:
        """Single firings at all positions, with what each adds along all paths."""
        return self.paths.top(top)

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
    target: str | SupportsIndex | None = None,
    foil: str | SupportsIndex | None = None,
    position: SupportsIndex = -1,
    *,
    prompt: int | None = None,
    first_token: bool = False,
    lens: Lens = LOGIT,
) -> PromptReport:
    """Everything on the memories behind an answer, on one page.

    Explains the logit of an answer directly and along all paths: the model's own predictions, a map of its FFNs by
    layer and position, the firings and the neurons that wrote most, and everything that adds up to the logit.

    Args:
        capture: of all layers.
        target, foil, prompt, first_token: as :func:`ffnmem.attribute` takes them.
        position: where the answer is read off: 0 is the first token, -1 the last.
        lens: What values are read in tokens through: logit, jacobian, or the file of a fitted one.

    Returns: A :class:`PromptReport`; :func:`ffnmem.pages.page` writes it as one HTML file.

    Raises: as :func:`ffnmem.attribute` and :func:`ffnmem.attribute_paths`.

    Example:
        $ ffnmem report "The Eiffel Tower is located in the city of" --html page.html
        $ ffnmem report "The capital of Italy is" --target " Rome" --foil " Paris"
    """
    attribution = attribute(capture, target, foil, position, prompt=prompt, first_token=first_token)
    through = load_lens(capture.model, lens)
    paths = attribute_paths(capture, attribution.answer, prompt=prompt)
    return PromptReport(attribution, paths, through or LOGIT, describe_lens(through))
