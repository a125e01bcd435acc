"""What an evaluation can measure of an edit: names, the prompts that they need, how they are averaged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..errors import InputError, check_choice


@dataclass(frozen=True)
class Metric:
    """How a metric is measured and shown.

    Attributes:
        asks: the prompts that it is read off: "rewrite", "paraphrase", "neighbour", "plus" (neighbours after the edit's
            own sentence), a kind of probe, "texts" or "generation".
        times: what a mean over records is multiplied by in a summary.
        before: whether it is measured of the unedited model, too.
    """

    asks: str
    times: float = 100.0
    before: bool = True


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "ES": Metric("rewrite"),
        "PS": Metric("paraphrase"),
        "NS": Metric("neighbour"),
        "EM": Metric("rewrite"),
        "PM": Metric("paraphrase"),
        "NM": Metric("neighbour"),
        "NS_plus": Metric("plus"),
        "NKL": Metric("neighbour", 1.0, before=False),
        "NKL_mean": Metric("neighbour", 1.0, before=False),
        "exact": Metric("rewrite"),
        "exact_paraphrase": Metric("paraphrase"),
        "portability": Metric("portability"),
        "reverse": Metric("reverse"),
        "alias": Metric("alias"),
        "unrelated": Metric("unrelated", before=False),
        "drift_kl": Metric("texts", 1.0, before=False),
        "drift_perplexity": Metric("texts", 1.0, before=False),
        "GE": Metric("generation"),
        "RS": Metric("generation"),
    }
)
"""By name; the papers write NS_plus as NS+."""

SCORE = ("ES", "PS", "NS")  # whose harmonic mean is S
ABOUT = ("editor", "id", "relation", "subject", "target_true", "target")  # columns of a case besides what is measured
NUMBERS = ("change", "steps", "loss")  # of the editor, summarised as they are


def check_metrics(metrics: Iterable[str] | None, generate: bool) -> tuple[str, ...]:
    """The metrics that are wanted, in the order of METRICS.

    Args:
        metrics: names; S stands for ES, PS and NS. None: all but those of generated text.
        generate: these too.

    Raises: InputError: no metric, or an unknown one.
    """
    if isinstance(metrics, str):
        metrics = (metrics,)
    if metrics is None:
        wanted = {name for name, metric in METRICS.items() if metric.asks != "generation"}
    else:
        wanted = {check_choice("metric", name, (*METRICS, "S")) for name in metrics}
        if not wanted:
            raise InputError("metrics is empty: name at least one, such as 'ES'")
    if "S" in wanted:
        wanted = (wanted - {"S"}) | set(SCORE)
    if generate:
        wanted |= {name for name, metric in METRICS.items() if metric.asks == "generation"}
    return tuple(name for name in METRICS if name in wanted)


def columns_of(metrics: Iterable[str]) -> list[str]:
    """The columns of a table of cases that metrics fill: after the edit, then before it."""
    names = list(metrics)
    return [*names, *(f"{name}_before" for name in names if METRICS[name].before)]
