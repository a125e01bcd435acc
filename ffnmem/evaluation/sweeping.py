"""Evaluations layer by layer: how well edits do in each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from ..core.errors import FileError, InputError, check_choice, listed, quoted
from ..core.files import user_path
from ..core.folders import names_in
from ..core.neuron_names import LayerName
from ..core.progress import Progress
from ..core.provenance import Provenance
from ..core.sheets import Table
from ..core.types import Seed, checked
from ..editing.preparing import Moment, Settings
from ..facts.fact import KINDS, Facts, as_facts
from ..models.model import Model
from ..show.result import Result
from .editors import OwnEditor, check_editors
from .evaluating import evaluate
from .metrics import METRICS, explain_missing, from_prompts
from .scores import MAIN, SIZED, Scores, missing_table, score_tables


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Sweep(Result):
    """Edits of the same facts in several layers. Made by :func:`ffnmem.evaluation.layer_sweep`.

    Attributes:
        scores: by layer.
        provenance: of the model.
    """

    scores: Mapping[int, Scores]
    provenance: Provenance

    heading = "editor facts"
    tables: ClassVar = {"overview": "", "failures": "layer id failure", "not_measured": "metrics reason"}
    main, only_shown, in_full = "frame", "overview", "frame"

    @property
    def verdict(self) -> str:
        """Which layer is best."""
        if not self.ranked:
            return ""
        best, means = self.best(), self.frame[self.frame["metric"] == "S"].set_index("layer")["mean"]
        return f"{self.editor} does best in layer {best}: its score S is {means[best]:.1f} there."

    @property
    def facts(self) -> str:
        """How many."""
        return f"{len(next(iter(self.scores.values()))):,}, each edited by itself"

    @property
    def overview(self) -> dict[str, Table]:
        """Means over the facts, above their intervals."""
        return score_tables(self.frame, "layer", (MAIN, "Scores, in percent", ""), SIZED)

    @property
    def not_measured(self) -> pd.DataFrame:
        """The metrics that no fact gives a value in any layer, and why."""
        return missing_table(self.missing)

    @property
    def editor(self) -> str:
        """The editor's name."""
        return next(iter(self.scores.values())).editors[0]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """Columns layer, metric, mean, low, high, n, as in :attr:`Scores.summary`."""
        tables = [one.summary.drop(columns="editor").assign(layer=layer) for layer, one in self.scores.items()]
        return pd.concat(tables, ignore_index=True)[["layer", "metric", "mean", "low", "high", "n"]]

    @property
    def missing(self) -> dict[str, str]:
        """The metrics that no fact gives a value in any layer, and why."""
        return explain_missing(self.frame, pd.concat([one.cases for one in self.scores.values()]))

    @property
    def failures(self) -> pd.DataFrame:
        """The facts that were not edited, or not reached: layer, then as :attr:`Scores.failures`."""
        tables = [one.failures.assign(layer=layer) for layer, one in self.scores.items()]
        found = pd.concat(tables, ignore_index=True)
        return found[["layer", *found.columns.drop("layer")]]

    def best(self, metric: str = "S") -> int:
        """The layer with the largest mean, the lowest of equal ones. Raises InputError for what was not measured."""
        rows = self.frame[self.frame["metric"] == check_choice("metric", metric, list(self.frame["metric"].unique()))]
        rows = rows.dropna(subset="mean")
        if rows.empty:
            raise InputError(f"{metric} could not be measured in any layer")
        return int(rows.loc[rows["mean"].idxmax(), "layer"])

    @property
    def ranked(self) -> bool:
        """Whether S was measured."""
        return "S" in set(self.frame.dropna(subset="mean")["metric"])


@checked
def layer_sweep(
    model: Model,
    facts: Facts,
    editor: str | OwnEditor = "rome",
    layers: Sequence[LayerName] | None = None,
    *,
    metrics: Iterable[str] | None = None,
    moment: Moment = None,
    settings: Settings = None,
    seed: Seed = 0,
    out: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Sweep:
    """Edit facts in every layer and compare the layers.

    Each fact is edited by itself, as :func:`ffnmem.evaluate` does, in one layer after the other.

    Args:
        model, facts, editor, moment, settings, seed: as :func:`ffnmem.evaluate` has them.
        layers: which; default all. Of editors over several layers, the highest one.
        metrics: default those of the fact's prompts, paraphrases and neighbours, and NS+.
        out: a folder with a folder for each layer, each as ``evaluate`` has it.
        progress: called with "evaluate", the cases done and all of them.
        options: further arguments of :func:`ffnmem.evaluate`, but ``layer``, ``compare`` and memit's own ``layers``.

    Returns: A :class:`Sweep`.

    Raises: as :func:`ffnmem.evaluate`; InputError: no layers, one of them twice, an editor that takes no layer.

    Source: Hase et al. 2023 (2301.04213): tracing does not tell the best layer to edit.

    Example:
        $ ffnmem sweep atlas --limit 1 --settings steps=5 --plot layers.png
    """
    for name in ("layer", "compare"):
        if name in options:
            raise InputError(f"layer_sweep takes no {name}: it runs one editor in the layers that layers= names")
    check_layer_sweep(editor, settings=settings)
    every = as_facts(facts)
    chosen = [model.layer(layer) for layer in (range(model.n_layers) if layers is None else layers)]
    if not chosen or len(set(chosen)) < len(chosen):
        raise InputError(f"layers must be some different ones, not {list(chosen)}")
    if out is not None:
        check_sweep_folder(out)
    wanted = [name for name in from_prompts() if METRICS[name].asks not in KINDS]
    scores: dict[int, Scores] = {}
    for place, layer in enumerate(chosen):

        def report(_phase: str, done: int, total: int, before: int = place) -> None:
            if progress is not None:
                progress("evaluate", before * total + done, len(chosen) * total)

        folder = None if out is None else user_path(out) / f"layer-{layer:02d}"
        scores[layer] = evaluate(
            model,
            every,
            editor,
            metrics=wanted if metrics is None else metrics,
            layer=layer,
            moment=moment,
            settings=settings,
            seed=seed,
            out=folder,
            progress=report,
            **options,
        )
    return Sweep(scores, model.provenance(model.prepend_bos, facts=len(every)))


def check_layer_sweep(editor: str | OwnEditor = "rome", moment: Moment = None, settings: Settings = None) -> None:
    """Raise what needs no model: for an editor that takes no layer, and for settings."""
    if editor == "none":
        raise InputError(f"editor {quoted(editor)} takes no layer: sweep one of those that do, such as 'rome'")
    if isinstance(settings, Mapping) and "layers" in settings:
        raise InputError("settings layers does not go with a sweep, whose layers they would be: leave it out")
    check_editors([editor], None, moment, settings)


def check_sweep_folder(out: str | Path) -> None:
    """Raise FileError for a folder that holds other things than those of layers."""
    folder = user_path(out)
    others = sorted(name for name in names_in(folder) if not name.startswith("layer-")) if folder.is_dir() else []
    if others:
        things = listed(others, 3)
        raise FileError(f"{out} is a folder with other things in it ({things}): name a new one for the sweep")
