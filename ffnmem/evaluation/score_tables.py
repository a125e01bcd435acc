"""What is shown of scores: tables of means, each above its interval, and of the edits that were not made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from ..core.sheets import Column, Line, Span, Table, line, rows

MAIN = ("S", "ES", "PS", "NS", "NS_plus")
SIZES = ("EM", "PM", "NM", "exact", "exact_paraphrase", "NKL")
DRIFT = ("drift_kl", "drift_perplexity", "change", "steps")
PROBES = ("portability", "reverse", "alias", "unrelated", "GE", "RS")
SIZED, DRIFTED = (SIZES, "margins and exact answers, in percent; NKL in nats"), (DRIFT, "what else moved")
NAMES: Mapping[str, str] = {"NS_plus": "NS+", "drift_kl": "drift KL", "drift_perplexity": "drift perplexity"}
HEADS = {**NAMES, "exact_paraphrase": "exact P", "drift_perplexity": "perplexity ×", "change": "‖ΔW‖/‖W‖"}
REASONS = 5


def score_tables(summary: pd.DataFrame, column: str, *tables: tuple[Sequence[str], str]) -> list[Table]:
    """For each group of metrics and its title, a table where any of them was measured.

    A row for each value of a column; the mean of a metric above its interval.
    """
    known = set(summary.dropna(subset="mean")["metric"])
    found = []
    for names, title in tables:
        measured = [name for name in names if name in known]
        if not measured:
            continue
        columns = [Column(name, left=False) for name in ("n", *(HEADS.get(name, name) for name in measured))]
        shown = rows(column, *columns)
        for value, group in summary.groupby(column, sort=False):
            means = group.set_index("metric")
            counted = [name for name in measured if name in means.index and not name.startswith("drift")]
            n = span([int(means.loc[name, "n"]) for name in counted])
            shown.add(str(value), n, *(figure(means, name) for name in measured))
        found.append(shown.table(title))
    return found


def span(counts: Sequence[int]) -> str:
    """How many facts metrics are means over: not all have all kinds of prompts."""
    if not counts:
        return "–"
    least, most = min(counts), max(counts)
    return f"{most:,}" if least == most else f"{least:,}–{most:,}"


def figure(means: pd.DataFrame, name: str) -> tuple[Line, ...]:
    """A mean, and below it its interval; a dash where there is none."""
    if name not in means.index or not math.isfinite(means.loc[name, "mean"]):
        return (line("–"),)
    mean, low, high = (float(means.loc[name, part]) for part in ("mean", "low", "high"))
    first = line(Span(written(name, mean, True), "strong" if name == "S" else ""))
    return (first,) if math.isnan(low) else (first, line(Span(f"{written(name, low)}–{written(name, high)}", "soft")))


def written(name: str, value: float, fine: bool = False) -> str:
    """As many digits as mean something: of an interval's ends fewer than of the mean."""
    if not math.isfinite(value):
        return "–"
    if name == "drift_kl" or abs(value) >= 1000:
        return f"{value:.{int(fine)}e}" if value else "0"
    places = {"drift_perplexity": 3, "change": 2, "NKL": 1}.get(name, 0) + int(fine)
    return f"{value:.{places}f}"


def relation_table(relations: pd.DataFrame) -> Table:
    """The main scores of each relation, without their intervals."""
    measured = set(relations.dropna(subset="mean")["metric"])
    known = [name for name in MAIN if name in measured]
    heads = [Column(HEADS.get(name, name), "number", places=1) for name in known]
    shown = rows("relation", "editor", Column("n", left=False), *heads)
    for (editor, relation), group in relations.groupby(["editor", "relation"], sort=False):
        means = group.set_index("metric")
        n = span([int(means.loc[name, "n"]) for name in known if name in means.index])
        figures = [float(means.loc[name, "mean"]) if name in means.index else math.nan for name in known]
        shown.add(str(relation), str(editor), n, *figures)
    return shown.table("by relation", caption="--csv and --json have the intervals")


def failure_table(failures: pd.DataFrame) -> Table | None:
    """The first facts that were not edited, and why."""
    if not len(failures):
        return None
    names = [name for name in ("layer", "editor", "id", "failure") if name in failures]
    shown = rows(*names[:-1], Column(names[-1], wraps=True))
    for row in failures.head(REASONS).to_dict("records"):
        shown.add(*(str(row[name]) for name in names))
    more = "--json has all of them" if len(failures) > REASONS else ""
    return shown.table(f"{len(failures):,} edits were not made", caption=more)
