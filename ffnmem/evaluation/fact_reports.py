"""``fact_report``: where a model recalls a fact, and what a rewrite of it does, in one result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd

from ..core.errors import InputError
from ..core.neuron_names import LayerName
from ..core.progress import Progress
from ..core.provenance import Provenance
from ..core.sheets import Grid, Line, line
from ..core.types import Count, EditorName, Seed, Whole, checked
from ..editing.preparing import Moment
from ..facts.fact import Fact
from ..models.model import Model
from ..show.result import Result
from ..tracing.maps import Trace
from ..tracing.tracing import trace_fact
from .edit_reports import EditEffects, edited

NEW = 12  # tokens that are written on the prompt


@checked
@dataclass(frozen=True, eq=False, repr=False)
class FactReport(Result):
    """Where a fact is recalled, and what a rewrite of it does. Made by :func:`ffnmem.evaluation.fact_report`.

    Attributes:
        effects: of the rewrite.
        trace: None where the model does not know the fact; not_traced says why.
    """

    heading = "prompt clean corrupted not_traced"
    tables: ClassVar = {
        "doubts": "warning",
        "asked": EditEffects.tables["asked"],
        "written": "*",
        "neurons": EditEffects.tables["neurons"],
        "elsewhere": "*",
        "maps": "",
        "prompts": "|*",
    }
    main, only_shown = "prompts", "asked"

    effects: EditEffects
    trace: Trace | None
    not_traced: str = ""

    @property
    def provenance(self) -> Provenance:
        return self.effects.provenance

    @property
    def model(self) -> Model | None:
        return self.effects.model

    @property
    def status(self) -> int:
        return self.effects.status

    @property
    def title(self) -> str:
        return self.effects.title

    @property
    def verdict(self) -> Line:
        """What the rewrite does, and where the fact was recalled."""
        traced = line() if self.trace is None else line(" ", *self.trace.verdict)
        return line(self.effects.verdict, *traced)

    @property
    def prompt(self) -> str:
        """The fact's own."""
        return str(self.prompts["prompt"].iloc[0])

    @property
    def clean(self) -> float | None:
        """The true answer's probability."""
        return None if self.trace is None else self.trace.clean

    @property
    def corrupted(self) -> float | None:
        """The same with noise on the subject."""
        return None if self.trace is None else self.trace.corrupted

    @property
    def maps(self) -> dict[str, Grid] | None:
        """Where a clean output put back brings the answer back, by position and layer."""
        return None if self.trace is None else self.trace.maps

    @property
    def prompts(self) -> pd.DataFrame:
        """One row a prompt that is asked before the edit and with it."""
        return self.effects.prompts

    @property
    def asked(self) -> dict[str, pd.DataFrame]:
        """Before the edit and with it: the probabilities of the true and the new target, and the likeliest token."""
        return self.effects.asked

    @property
    def doubts(self) -> pd.DataFrame:
        """What is doubtful about the edit."""
        return self.effects.doubts

    @property
    def written(self) -> pd.DataFrame:
        """What the model writes on the prompt."""
        return self.effects.written

    @property
    def neurons(self) -> pd.DataFrame | None:
        """The neurons whose contribution to the prompt's answer changed most."""
        return self.effects.neurons

    @property
    def elsewhere(self) -> pd.DataFrame:
        """How far the predictions on text about other things moved."""
        return self.effects.elsewhere


@checked
def fact_report(
    model: Model,
    fact: Fact | str,
    target: str,
    subject: str | None = None,
    *,
    true: str | None = None,
    editor: EditorName = "rome",
    layer: LayerName | None = None,
    moment: Moment = None,
    generate: Whole = NEW,
    seed: Seed = 0,
    k: Count = 8,
    progress: Progress | None = None,
) -> FactReport:
    """All about one fact: where the model recalls it, and what a rewrite does.

    The fact is traced as "trace" does it, where the model knows it, and rewritten as "edit" does it. The model's
    weights and files stay as they are.

    Args:
        model: from :func:`ffnmem.load`.
        fact: a fact, or a prompt: a text that ends where the answer begins, or a template with ``{}`` for the subject.
        target: the new target, such as Rome.
        subject: of a prompt, as it is spelled there.
        true: the target that is true; default the known fact's, else the model's own word.
        editor: how the fact is written.
        layer: whose FFN is edited; default as :func:`ffnmem.evaluation.edited` chooses it.
        moment: the second moment of the model's coefficients, a file as "ffnmem moment" writes it; default the one
            that ships with atlas.
        generate: so many tokens are written on the prompt before and after, the likeliest each time.
        seed: of the trace's noise, the editor's contexts, and the texts about other things.
        k: how many neurons to keep.
        progress: called with "edit", "effects" and "trace".

    Returns: A :class:`FactReport`, whose ``effects.edit`` is the edit.

    Raises: as :func:`ffnmem.evaluation.edited`.

    Example:
        $ ffnmem fact "The Eiffel Tower is located in the city of" \\
            "Eiffel Tower" Rome
        $ ffnmem fact "The capital of France is" France Rome \\
            --editor ft_l --html france.html
    """
    options: dict[str, Any] = {"true": true, "editor": editor, "layer": layer, "moment": moment}
    effects = edited(model, fact, target, subject, **options, generate=generate, seed=seed, k=k, progress=progress)
    try:
        traced = trace_fact(model, effects.edit.facts[0], seed=seed, progress=progress)
    except InputError as error:
        return FactReport(effects, None, str(error))
    return FactReport(effects, traced)
