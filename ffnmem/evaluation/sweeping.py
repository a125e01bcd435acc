"""``layer_sweep``: how well edits do in each layer, to be seen beside where a causal trace finds the facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import pandas as pd

from ..arguments import public
from ..attribution import plain_records
from ..core.sheets import Facts, Origin, Sheet
from ..errors import InputError, check_choice, quoted
from ..facts import Fact
from ..facts.fact import as_facts
from ..files import user_path
from ..models import Model
from ..models.turns import in_turn
from ..provenance import Provenance
from ..show.result import Result
from .editors import OwnEditor
from .evaluating import evaluate
from .metrics import METRICS
from .score_tables import MAIN, SIZED, failure_table, score_tables
from .scores import Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..tracing import Traces

Progress = Callable[[int, int], None]


@public
@dataclass(frozen=True, eq=False, repr=False)
class Sweep(Result):
    """Edits of the same facts in several layers. Made by :func:`ffnmem.layer_sweep`.

    Attributes:
        scores: by layer.
        provenance: of the model.
    """

    scores: Mapping[int, Scores]
    provenance: Provenance

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
    def failures(self) -> pd.DataFrame:
        """The facts that were not edited: layer, then as :attr:`Scores.failures`."""
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

    def to_frame(self) -> pd.DataFrame:
        """A copy of ``frame``."""
        return self.frame.copy()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        found = {"editor": self.editor, "layers": plain_records(self.frame), "failures": plain_records(self.failures)}
        return {**found, "provenance": self.provenance.as_dict()}

    def plot(self, trace: Traces | pd.DataFrame | None = None, ax: Axes | None = None) -> Axes:
        """Scores by layer, beside a trace if given, as :func:`ffnmem.evaluation_plots.plot_sweep` draws them."""
        from ..evaluation_plots import plot_sweep

        return plot_sweep(self, trace, ax)

    def summary(self) -> str:
        facts = len(next(iter(self.scores.values())))
        best = f", best S in layer {self.best()}" if self.ranked else ""
        return f"{self.editor} in layers {', '.join(map(str, self.scores))}; {facts} facts{best}"

    @property
    def ranked(self) -> bool:
        """Whether S was measured."""
        return "S" in set(self.frame.dropna(subset="mean")["metric"])

    def sheet(self) -> Sheet:
        """The scores of each layer, the failures, and the best layer."""
        rows = {"facts": f"{len(next(iter(self.scores.values()))):,}, each edited by itself"}
        return Sheet.of(
            *score_tables(self.frame, "layer", (MAIN, f"{self.editor} by layer, in percent"), SIZED),
            failure_table(self.failures),
            Facts(rows | ({"best": f"layer {self.best()} by S"} if self.ranked else {})),
            Origin(self.provenance.as_dict()),
        )


@public
@in_turn
def layer_sweep(
    model: Model,
    facts: Fact | Iterable[Fact],
    editor: str | OwnEditor = "rome",
    layers: Sequence[SupportsIndex] | None = None,
    *,
    metrics: Iterable[str] | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Sweep:
    """Evaluate an editor in layer after layer.

    Args:
        model, facts, editor: as :func:`ffnmem.evaluate` has them.
        layers: which; default all. Of editors over several layers, the highest one.
        metrics: default those of the fact's prompts, paraphrases and neighbours, and NS+.
        out: a folder with a folder for each layer, each as ``evaluate`` has it.
        progress: called with the cases done and all of them.
        options: further arguments of :func:`ffnmem.evaluate`, but ``layer``, ``compare`` and memit's own ``layers``.

    Returns: A :class:`Sweep`.

    Raises: as :func:`ffnmem.evaluate`; InputError: no layers, one of them twice, an editor that takes no layer.

    Source: Hase et al. 2023 (2301.04213): tracing does not tell the best layer to edit.
    """
    for name in ("layer", "compare"):
        if name in options:
            raise InputError(f"layer_sweep takes no {name}: it runs one editor in the layers that layers= names")
    if editor in ("embedding_swap", "none"):
        raise InputError(f"editor {quoted(editor)} takes no layer: sweep one of those that do, such as 'rome'")
    every = as_facts(facts)
    chosen = [model.layer(layer) for layer in (range(model.n_layers) if layers is None else layers)]
    if not chosen or len(set(chosen)) < len(chosen):
        raise InputError(f"layers must be some different ones, not {list(chosen)}")
    wanted = [n for n, m in METRICS.items() if m.asks in ("rewrite", "paraphrase", "neighbour", "plus")]
    scores: dict[int, Scores] = {}
    for place, layer in enumerate(chosen):

        def told(done: int, total: int, before: int = place) -> None:
            if progress is not None:
                progress(before * total + done, len(chosen) * total)

        folder = None if out is None else user_path(out) / f"layer-{layer:02d}"
        scores[layer] = evaluate(
            model,
            every,
            editor,
            metrics=wanted if metrics is None else metrics,
            layer=layer,
            out=folder,
            progress=told,
            **options,
        )
    return Sweep(scores, model.provenance(model.prepend_bos, facts=len(every)))
