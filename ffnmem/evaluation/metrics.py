"""The metrics of edits, and their means with bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pandas as pd
from jaxtyping import Float64
from torch import Tensor

from ..core.errors import InputError, check_choice, listed
from ..facts.fact import KINDS
from ..models.answers import Answered, Question

# What an evaluation can measure of an edit: a row each of what is asked, how a number is read off, how it is averaged.

TRUE, NEW = 0, 1  # of a question's answers; a probe has one


@dataclass(frozen=True, eq=False)
class Replies:
    """What a model says to a case's questions of one kind; every method gives an entry a question."""

    questions: Sequence[Question]
    said: Sequence[Answered]

    def mean(self, answer: int) -> list[float]:
        """The mean log-probability of an answer's tokens."""
        return [one.mean_log(answer) for one in self.said]

    def sum(self, answer: int) -> list[float]:
        """The logarithm of the whole answer's probability."""
        return [float(one.log_probabilities[answer].sum()) for one in self.said]

    def first(self, answer: int) -> list[float]:
        """That of the first token that tells the two answers apart; no entry where one begins with the other."""
        found = []
        for question, one in zip(self.questions, self.said, strict=True):
            pairs = zip(*question.answers, strict=False)
            at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
            found += [] if at is None else [float(one.log_probabilities[answer][at])]
        return found

    def exact(self, answer: int) -> list[float]:
        """Whether greedy decoding writes an answer."""
        return [float(one.exact[answer]) for one in self.said]

    def next_logs(self) -> list[Tensor]:
        """The log-probabilities of the next token."""
        return [one.next_log for one in self.said if one.next_log is not None]


Values = list[float]


def beats(winner: int, how: Callable[[Replies, int], Values] = Replies.mean) -> Callable[[Replies], Values]:
    """Whether one answer is likelier than the other."""
    return lambda said: [float(a > b) for a, b in zip(how(said, winner), how(said, 1 - winner), strict=True)]


def margin(winner: int) -> Callable[[Replies], Values]:
    """By how much it is likelier."""

    def read(said: Replies) -> Values:
        return [math.exp(a) - math.exp(b) for a, b in zip(said.mean(winner), said.mean(1 - winner), strict=True)]

    return read


def divergences(before: Replies, after: Replies) -> Values:
    """KL(before‖after) of the next token, in nats; NaN of a model that says no numbers."""
    found = []
    for old, new in zip(before.next_logs(), after.next_logs(), strict=True):
        a, b = old.double(), new.double()
        # Rounding may leave a difference below 0 where nothing changed.
        found.append(max(0.0, float((a.exp() * (a - b)).sum())) if bool(b.isfinite().all()) else math.nan)
    return found


def unmoved(before: Replies, after: Replies) -> Values:
    """Whether the likeliest next token is the same."""
    pairs = zip(before.next_logs(), after.next_logs(), strict=True)
    return [float(old.argmax() == new.argmax()) for old, new in pairs]


def mean(values: Sequence[float]) -> float:
    """NaN of none."""
    return float(np.mean(values)) if values else math.nan


def total(values: Sequence[float]) -> float:
    """NaN of none."""
    return math.fsum(values) if values else math.nan


@dataclass(frozen=True)
class Metric:
    """How a metric is measured and shown.

    Attributes:
        asks: the prompts that it is read off: "rewrite", "paraphrase", "neighbour", "plus" (neighbours after the edit's
            own sentence), a kind of probe, or "texts"; of what is written in answer, a kind of
            :data:`ffnmem.evaluation.written.KINDS`.
        of: a number a prompt, read off what a model says to them; measured before and after the edit.
        moved: a number a prompt, read off what the model says before and after the edit.
        times: what a mean over records is multiplied by in a summary.
        written: of what is written in answer, which match counts: "wanted", "exact" or "unwanted"; else empty.
        average: of a case's prompts.
        head: of its column in tables; default its name.
    """

    asks: str
    of: Callable[[Replies], Values] | None = None
    moved: Callable[[Replies, Replies], Values] | None = None
    times: float = 100.0
    written: str = ""
    average: Callable[[Sequence[float]], float] = mean
    head: str = ""

    @property
    def before(self) -> bool:
        """Whether it is measured of the unedited model, too."""
        return self.moved is None and self.asks != "texts"


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "ES": Metric("rewrite", beats(NEW)),
        "PS": Metric("paraphrase", beats(NEW)),
        "NS": Metric("neighbour", beats(TRUE)),
        "ES_first": Metric("rewrite", beats(NEW, Replies.first), head="ES 1st"),
        "PS_first": Metric("paraphrase", beats(NEW, Replies.first), head="PS 1st"),
        "NS_first": Metric("neighbour", beats(TRUE, Replies.first), head="NS 1st"),
        "ES_sum": Metric("rewrite", beats(NEW, Replies.sum), head="ES sum"),
        "PS_sum": Metric("paraphrase", beats(NEW, Replies.sum), head="PS sum"),
        "NS_sum": Metric("neighbour", beats(TRUE, Replies.sum), head="NS sum"),
        "EM": Metric("rewrite", margin(NEW)),
        "PM": Metric("paraphrase", margin(NEW)),
        "NM": Metric("neighbour", margin(TRUE)),
        "NS_plus": Metric("plus", beats(TRUE), head="NS+"),
        "NKL": Metric("neighbour", moved=divergences, times=1.0, average=total),
        "NKL_mean": Metric("neighbour", moved=divergences, times=1.0),
        "exact": Metric("rewrite", lambda said: said.exact(NEW)),
        "exact_paraphrase": Metric("paraphrase", lambda said: said.exact(NEW), head="exact P"),
        "reverse": Metric("reverse", lambda said: said.exact(0)),
        "alias": Metric("alias", lambda said: said.exact(0)),
        "unrelated": Metric("unrelated", moved=unmoved),
        "drift_kl": Metric("texts", times=1.0, head="drift KL"),
        "drift_perplexity": Metric("texts", times=1.0, head="perplexity ×"),
        "says": Metric("prompt", written="wanted"),
        "says_exact": Metric("prompt", written="exact", head="exactly"),
        "says_paraphrase": Metric("paraphrase", written="wanted", head="P"),
        "says_paraphrase_exact": Metric("paraphrase", written="exact", head="P exactly"),
        "says_attacked": Metric("attack", written="wanted", head="attacked"),
        "old_attacked": Metric("attack", written="unwanted", head="old"),
        "says_negated": Metric("negated", written="unwanted", head="negated"),
        "overflow": Metric("other", written="unwanted"),
        "others_right": Metric("other", written="wanted", head="others"),
        "neighbours_overflow": Metric("neighbour", written="unwanted", head="N new"),
        "neighbours_right": Metric("neighbour", written="wanted", head="N right"),
    }
)
"""By name; the papers write NS_plus as NS+.

p(o|x) is the exponential of the mean log-probability of the tokens of " o". The mean favours an answer of many tokens,
most of which follow from those before: _sum takes the probability of the whole string, _first that of the first token
in which the two answers differ.

Source: Meng et al. 2022 (2202.05262), §4.2 and appendix D; NS+ and NKL: Hoelscher-Obermaier et al. 2023 (2305.17553),
    §3.
"""

NEEDS = {
    "paraphrase": "paraphrases",
    "neighbour": "neighbours",
    "plus": "neighbours",
    **dict.fromkeys(KINDS, "probes of their kind"),
    "prompt": "a prompt with room for an answer",
    "attack": "a true target, and a prompt with room for an answer",
    "negated": "a prompt that can be negated",
    "other": "another relation of its subject among the facts",
}
"""What a fact must have for the metrics that are read off some prompts."""
NO_TEXT = "there is no text that mentions none of the subjects"
SCORES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {f"S{suffix}": tuple(f"{name}{suffix}" for name in ("ES", "PS", "NS")) for suffix in ("", "_first", "_sum")}
)
"""Harmonic means, and what of."""
ABOUT = ("editor", "id", "relation", "subject", "target_true", "target")  # columns of a case besides what is measured
NUMBERS = ("change", "steps", "loss", "reached")  # of the editor, summarised as they are; the last is a share


def check_metrics(metrics: Iterable[str] | None, written: bool = False) -> tuple[str, ...]:
    """The metrics that are wanted, in the order of METRICS.

    Args:
        metrics: names; S stands for ES, PS and NS. None: all but those of written answers.
        written: those of written answers, too.

    Raises: InputError: no metric, or an unknown one; one of written answers where these are not asked for.
    """
    if isinstance(metrics, str):
        metrics = (metrics,)
    if metrics is None:
        wanted = {name for name in METRICS if not METRICS[name].written}
    else:
        wanted = {check_choice("metric", name, (*METRICS, *SCORES)) for name in metrics}
        if not wanted:
            raise InputError("metrics is empty: name at least one, such as 'ES'")
        strange = next((name for name in METRICS if name in wanted and METRICS[name].written), None)
        if strange is not None and not written:
            raise InputError(f"{strange} is read off what the model writes: evaluate with protocol='generated'")
    for score in SCORES.keys() & wanted:
        wanted = (wanted - {score}) | set(SCORES[score])
    if written:
        wanted |= {name for name, metric in METRICS.items() if metric.written}
    return tuple(name for name in METRICS if name in wanted)


def from_prompts(names: Iterable[str] = METRICS) -> tuple[str, ...]:
    """Those of some metrics that are read off probabilities after a fact's own prompts."""
    return tuple(name for name in names if METRICS[name].of or METRICS[name].moved)


def roles_of(names: Iterable[str]) -> set[str]:
    """The kinds of prompts whose probabilities some metrics are read off."""
    return {METRICS[name].asks for name in from_prompts(names)}


def explain_missing(summary: pd.DataFrame, cases: pd.DataFrame) -> dict[str, str]:
    """By name, the metrics of a summary of cases that have no value anywhere, and why."""
    most = summary.groupby("metric", sort=False)["n"].max()
    edited = cases[(cases["failure"] == "") | cases["change"].notna()]  # one that is not reached was made
    who = "no fact" if len(edited) == len(cases) else "no fact that was edited"
    room = " that the model has room for" if (edited["unasked"] > 0).any() else ""
    reasons: dict[str, str] = {}
    for name in map(str, most.index[most == 0]):
        if edited.empty and name not in NUMBERS:
            reasons[name] = "no fact was edited"
        elif name in SCORES:
            *parts, last = SCORES[name]
            reasons[name] = f"it takes {listed(parts)} and {last}"
        elif name in METRICS:
            asks = METRICS[name].asks
            reasons[name] = f"{who} has {NEEDS[asks]}{room}" if asks in NEEDS else NO_TEXT
    return reasons


# Means over records with 95% intervals: records are drawn anew, the same ones for every metric and every editor.

AT_ONCE = 1 << 21  # numbers drawn at a time
INTERVAL = (0.025, 0.975)
FEW = 5  # records, below which there is no interval: draws of two or three say how few they are, not how far off
COLUMNS = ("metric", "mean", "low", "high", "n")

Cases = Float64[np.ndarray, "records metrics"]


def resample_means(values: Cases, draws: int, seed: int) -> Float64[np.ndarray, "draws metrics"]:
    """The means of records drawn with replacement, as many as there are; NaN of a draw without a value.

    Records whose value is NaN are drawn like others and not counted. A seed draws the same of as many records.
    """
    generator = np.random.default_rng(seed)
    n = len(values)
    there = ~np.isnan(values)
    filled, found = np.where(there, values, 0.0), []
    for begin in range(0, draws, at_once := max(1, AT_ONCE // max(n, 1))):
        rows = min(at_once, draws - begin)
        picked = generator.integers(0, n, (rows, n)) + n * np.arange(rows)[:, None]
        counts = np.bincount(picked.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)
        with np.errstate(invalid="ignore"):
            found.append((counts @ filled) / (counts @ there.astype(np.float64)))
    return np.concatenate(found) if found else np.empty((0, values.shape[1]))


def means(values: Cases) -> Float64[np.ndarray, " metrics"]:
    """The mean of each column over what is no NaN."""
    there = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.where(there, values, 0.0).sum(axis=0) / there.sum(axis=0)


def harmonic(means: Float64[np.ndarray, "*rows metrics"]) -> Float64[np.ndarray, "*rows"]:
    """The harmonic mean along the last axis; 0 where one is 0, NaN where one is NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = means.shape[-1] / (1.0 / means).sum(axis=-1)
    return np.where((means == 0).any(axis=-1) & ~np.isnan(means).any(axis=-1), 0.0, found)


def interval_ends(draws: Float64[np.ndarray, "draws metrics"]) -> Float64[np.ndarray, "2 metrics"]:
    """The 2.5% and 97.5% quantiles of each column over what is no NaN; NaN of a column without values."""
    found = np.full((2, draws.shape[1]), np.nan)
    some = (~np.isnan(draws)).any(axis=0)
    if some.any():
        found[:, some] = np.nanquantile(draws[:, some], INTERVAL, axis=0)
    return found


def summarise(
    cases: pd.DataFrame, metrics: Sequence[str], draws: int, seed: int, minus: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Mean, 95% interval and number of records for S (where its three parts are there) and each metric.

    Args:
        cases: one row a record.
        metrics: columns of it.
        draws: of the bootstrap. seed: of the same.
        minus: a second table of the same records, whose means are taken off those of the first; over records that both
            have, which are drawn for both alike.

    Returns: Columns metric, mean, low, high, n; multiplied by 100 but for metrics in nats, ratios and an editor's own
        numbers. low and high are NaN of fewer than FEW records.

    Source: percentile bootstrap, Efron 1979.
    """
    names = list(metrics)
    if not names:
        return pd.DataFrame(columns=list(COLUMNS))
    scores = {name: [names.index(part) for part in parts] for name, parts in SCORES.items() if set(parts) <= {*names}}
    sides = [table[names].to_numpy(dtype=np.float64) for table in (cases, minus) if table is not None]
    lacking = np.isnan(sides[0]) | np.isnan(sides[-1])
    both, drawn = [], []
    for side in sides:
        values = np.where(lacking, np.nan, side)
        # Contiguous, so that a harmonic mean is summed row by row however the table lies in memory.
        own = [harmonic(means(np.ascontiguousarray(values[:, at]))) for at in scores.values()]
        both.append(np.append(own, means(values)))
        rows = resample_means(values, draws, seed)
        drawn.append(np.column_stack([*(harmonic(rows[:, at]) for at in scores.values()), rows]))
    n = (~lacking).sum(axis=0)
    low, high = interval_ends(drawn[0] if minus is None else drawn[0] - drawn[1])
    table = pd.DataFrame(
        {
            "metric": [*scores, *names],
            "mean": both[0] if minus is None else both[0] - both[1],
            "low": low,
            "high": high,
            "n": [*(n[at].min() for at in scores.values()), *n],
        }
    )
    table.loc[table["n"] < FEW, ["low", "high"]] = np.nan
    plain = [name.removesuffix("_before") for name in table["metric"]]
    times = [100.0 if name in SCORES else METRICS[name].times if name in METRICS else 1.0 for name in plain]
    table[["mean", "low", "high"]] = table[["mean", "low", "high"]].mul(times, axis=0)
    return table
