"""What ``ffnmem evaluate`` shows on a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd
from rich.text import Text

from ..show.terminal import captioned, console, labelled, number, plain_table, provenance_line, user_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..evaluation import Decay, Scores, Sweep

MAIN = ("S", "ES", "PS", "NS", "NS_plus")
SIZES = ("EM", "PM", "NM", "exact", "exact_paraphrase", "NKL")
DRIFT = ("drift_kl", "drift_perplexity", "change", "steps")
PROBES = ("portability", "reverse", "alias", "unrelated", "GE", "RS")
SIZED, DRIFTED = "margins and exact answers, in percent; NKL in nats", "what else moved"
TABLES = ((MAIN, "scores, in percent"), (SIZES, SIZED), (DRIFT, DRIFTED), (PROBES, "more, in percent"))
NAMES = {
    "NS_plus": "NS+", "exact_paraphrase": "exact P", "drift_kl": "drift KL",
    "drift_perplexity": "perplexity ×", "change": "‖ΔW‖/‖W‖",
}  # fmt: skip
FEW = ("S", "ES", "PS", "NS", "NS_plus")
REASONS = 5


def print_scores(scores: Scores, relations: bool, folder: str | None) -> None:
    """The scores of each editor with their intervals, the sizes of what moved, and the failures."""
    out = console()
    before = before_row(scores)
    summary = pd.concat([before, scores.summary], ignore_index=True) if before is not None else scores.summary
    print_tables(out, summary, "editor", TABLES)
    if relations:
        out.print(relation_table(scores))
        out.print()
    print_failures(out, scores.failures)
    rows = {"facts": Text(f"{len(scores):,}, each edited by itself")}
    if folder is not None:
        rows["kept in"] = user_text(folder)
    out.print(labelled(rows))
    out.print()
    out.print(provenance_line(scores.provenance.as_dict(), out.width))


def print_tables(out: Console, summary: pd.DataFrame, column: str, tables: Sequence[tuple[Sequence[str], str]]) -> None:
    """The tables in which something was measured, each with its title."""
    for names, title in tables:
        table = score_table(summary, column, names, title)
        if table is not None:
            out.print(table)
            out.print()


def print_failures(out: Console, failures: pd.DataFrame) -> None:
    if len(failures):
        out.print(failure_table(failures))
        out.print()


def before_row(scores: Scores) -> pd.DataFrame | None:
    """The unedited model's scores on the same prompts, as rows of a summary; None where it was an editor itself."""
    if "none" in scores.editors:
        return None
    from ..evaluation.bootstrap import summarised
    from ..evaluation.metrics import METRICS

    names = [name for name in scores.metrics if METRICS[name].before]
    cases = scores.of()
    renamed = cases[[f"{name}_before" for name in names]].set_axis(names, axis=1)
    return summarised(renamed, names, scores.draws, scores.seed).assign(editor="(unedited)")


def score_table(summary: pd.DataFrame, column: str, names: Sequence[str], title: str) -> Table | None:
    """A row for each value of a column; the mean of a metric above its interval. None where nothing was measured."""
    known = set(summary.dropna(subset="mean")["metric"])
    shown = [name for name in names if name in known]
    if not shown:
        return None
    table = plain_table(column, "n", *(NAMES.get(name, name) for name in shown), left=[column], title=title)
    for value, rows in summary.groupby(column, sort=False):
        found = rows.set_index("metric")
        counts = [
            int(found.loc[n, "n"]) for n in shown if n in found.index and n not in ("drift_kl", "drift_perplexity")
        ]
        table.add_row(user_text(str(value)), span(counts), *(figure(found, name) for name in shown))
    return table


def span(counts: Sequence[int]) -> str:
    """How many facts metrics are means over: not all have all kinds of prompts."""
    if not counts:
        return "–"
    least, most = min(counts), max(counts)
    return f"{most:,}" if least == most else f"{least:,}–{most:,}"


def figure(found: pd.DataFrame, name: str) -> Text:
    """A mean, and below it its interval; a dash where there is none."""
    if name not in found.index or not math.isfinite(found.loc[name, "mean"]):
        return Text("–")
    mean, low, high = (float(found.loc[name, part]) for part in ("mean", "low", "high"))
    text = Text(written(name, mean, True), "bold" if name == "S" else "")
    return text if math.isnan(low) else text.append(f"\n{written(name, low)}–{written(name, high)}", "dim")


def written(name: str, value: float, fine: bool = False) -> str:
    """As many digits as mean something: of an interval's ends fewer than of the mean."""
    if name == "drift_kl" or abs(value) >= 1000:
        return f"{value:.{int(fine)}e}" if value else "0"
    places = {"drift_perplexity": 3, "change": 2, "NKL": 1}.get(name, 0) + int(fine)
    return number(value, places)


def relation_table(scores: Scores) -> Table:
    """The main scores of each relation, without their intervals."""
    known = [name for name in FEW if name in set(scores.relations.dropna(subset="mean")["metric"])]
    table = plain_table(
        "relation", "editor", "n", *(NAMES.get(name, name) for name in known), left=["relation", "editor"]
    )
    table.title, table.title_justify, table.title_style = Text("by relation"), "left", "bold"
    for (editor, relation), rows in scores.relations.groupby(["editor", "relation"], sort=False):
        found = rows.set_index("metric")
        means = [number(float(found.loc[name, "mean"]), 1) if name in found.index else "–" for name in known]
        n = span([int(found.loc[name, "n"]) for name in known if name in found.index])
        table.add_row(user_text(str(relation)), user_text(str(editor)), n, *means)
    return captioned(table, "--csv and --json have the intervals")


def failure_table(failures: pd.DataFrame) -> Table:
    """The first facts that were not edited, and why."""
    names = [name for name in ("layer", "editor", "id", "failure") if name in failures]
    table = plain_table(*names, left=names[:-1], wraps=["failure"])
    table.title = Text(f"{len(failures):,} edits were not made")
    table.title_justify, table.title_style = "left", "bold"
    for row in failures.head(REASONS).to_dict("records"):
        table.add_row(*(user_text(str(row[name])) for name in names))
    return captioned(table, "--json has all of them") if len(failures) > REASONS else table


def print_sweep(sweep: Sweep) -> None:
    """The scores of each layer."""
    out = console()
    print_tables(out, sweep.frame, "layer", ((MAIN, f"{sweep.editor} by layer, in percent"), (SIZES, SIZED)))
    print_failures(out, sweep.failures)
    rows = {"facts": Text(f"{len(next(iter(sweep.scores.values()))):,}, each edited by itself")}
    if "S" in set(sweep.frame.dropna(subset="mean")["metric"]):
        rows["best"] = Text(f"layer {sweep.best()} by S")
    out.print(labelled(rows))
    out.print()
    out.print(provenance_line(sweep.provenance.as_dict(), out.width))


def print_decay(decay: Decay) -> None:
    """The scores of all edits so far, after so many."""
    out = console()
    title = f"{decay.editor}, one edit after another, in percent"
    print_tables(out, decay.frame, "edits", ((MAIN, title), (SIZES, SIZED), (DRIFT, DRIFTED)))
    print_failures(out, decay.failures)
    out.print(provenance_line(decay.provenance.as_dict(), out.width))
