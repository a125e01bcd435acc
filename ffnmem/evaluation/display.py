"""What terminals and notebooks show of scores: a line, and tables of means with their intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..show.framing import framed, line, provenance, table, whole
from ..show.rendering import MISSING, plain, running_html

if TYPE_CHECKING:
    from .scores import Scores

FIRST = ("S", "ES", "PS", "NS", "NS_plus", "exact", "exact_paraphrase")
NAMES: Mapping[str, str] = {"NS_plus": "NS+", "drift_kl": "drift KL", "drift_perplexity": "drift perplexity"}
FINE = ("NKL", "NKL_mean", "drift_kl", "drift_perplexity", "change", "loss")  # far below 100
REASONS = 5


def scores_line(scores: Scores) -> str:
    """``rome S 92.1, ES 98.0, …; 200 facts, 3 failures``."""
    parts = []
    for editor, rows in scores.summary.groupby("editor", sort=False):
        means = dict(zip(rows["metric"], rows["mean"], strict=True))
        parts.append(f"{editor} " + ", ".join(f"{n} {means[n]:.1f}" for n in FIRST[:4] if n in means))
    failed = f", {len(scores.failures)} failures" if len(scores.failures) else ""
    return f"{'; '.join(parts)}; {len(scores)} facts of {scores.provenance.model}{failed}"


def figure(metric: str, mean: float, low: float, high: float) -> str:
    """A mean with its interval, as precise as its size asks for."""
    if math.isnan(mean):
        return MISSING
    digits = 3 if metric in FINE else 1
    interval = (
        "" if math.isnan(low) else f' <span class="fm-soft">({plain(low, digits)} to {plain(high, digits)})</span>'
    )
    return plain(mean, digits) + interval


def summary_html(summary: pd.DataFrame, column: str, first: Sequence[str] = FIRST) -> str:
    """A summary with a row for each value of a column, and a column for each metric that has a value."""
    known = summary.dropna(subset="mean")
    names = [name for name in first if name in set(known["metric"])]
    names += [name for name in dict.fromkeys(known["metric"]) if name not in names]
    head = "".join(f"<th>{running_html(NAMES.get(name, name))}</th>" for name in (column, *names))
    body = []
    for value, rows in summary.groupby(column, sort=False):
        at: dict[str, Any] = {row.metric: row for row in rows.itertuples()}
        cells = [figure(name, at[name].mean, at[name].low, at[name].high) for name in names if name in at]
        body.append(f"<tr><th>{running_html(str(value))}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return whole(f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>")


def scores_html(scores: Scores) -> str:
    """A row an editor, then the first failures."""
    failures = scores.failures
    said = running_html(f"{len(scores)} facts of {scores.provenance.model}, each edited by itself")
    why = line(f"{len(failures)} failures") + table(failures, REASONS) if len(failures) else ""
    return framed(
        line(str(said)) + summary_html(scores.summary, "editor") + why + provenance(scores.provenance.as_dict())
    )


def curve_html(title: str, frame: pd.DataFrame, column: str, settings: Mapping[str, Any]) -> str:
    """Metrics by layer or by number of edits."""
    return framed(line(str(running_html(title))) + summary_html(frame, column) + provenance(settings))
