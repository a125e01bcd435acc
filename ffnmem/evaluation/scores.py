"""``Scores``: what an evaluation of editors measured, case by case and over all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import pandas as pd

from ..core.errors import check_choice, counted
from ..core.provenance import Provenance
from ..core.saved import NOT_SAVED
from ..core.sheets import Column, Line, Span, Table, line, rows
from ..core.types import Seed, checked
from ..editing.edit import Edit
from ..show.result import Result
from .metrics import COLUMNS, FEW, METRICS, NUMBERS, SCORES, explain_missing, summarise
from .written import COLUMNS as TRANSCRIPT
from .written import read_transcripts

# What is shown of scores: tables of means, each above its interval, and of the edits that were not made.

MAIN = ("S", "ES", "PS", "NS", "NS_plus")
SIZES = ("EM", "PM", "NM", "exact", "exact_paraphrase", "NKL")
DRIFT = ("drift_kl", "drift_perplexity", "drift_loss", "change", "norm", "steps")
PROBES = ("reverse", "alias", "unrelated")
SIZED = (SIZES, "Margins and exact answers, in percent; NKL in nats", "")
DRIFTED = (DRIFT, "What else moved", "")
SAID = (
    ("says", "says_exact", "says_paraphrase", "says_paraphrase_exact", "says_attacked"),
    "What the model writes: the new target, in percent",
    "exactly: and nothing else; P: to paraphrases; attacked: behind prefixes that name the old target",
)
AROUND = (
    ("says_negated", "old_attacked", "overflow", "others_right", "neighbours_overflow", "neighbours_right"),
    "And where it should not, and what should stay",
    "negated: the new target, under negation; old: the old one, attacked; overflow: the new one in the subject's other "
    "relations, others: these right; N new, N right: what is said of neighbours",
)
VARIANTS = tuple(name for score, parts in SCORES.items() if score != "S" for name in (score, *parts))
NAMES: Mapping[str, str] = {"NS_plus": "NS+", "drift_kl": "drift KL", "drift_perplexity": "drift perplexity"}
HEADS = {
    **{name: metric.head for name, metric in METRICS.items() if metric.head},
    "S_first": "S 1st",
    "S_sum": "S sum",
    "drift_loss": "loss, nats",
    "change": "‖ΔW‖/‖W‖",
    "norm": "‖W‖/‖W₀‖",
}


def score_tables(summary: pd.DataFrame, column: str, *tables: tuple[Sequence[str], str, str]) -> dict[str, Table]:
    """By title, for each group of metrics and what its headings mean, a table where any of them was measured.

    A row for each value of a column; the mean of a metric above its interval.
    """
    known = set(summary.dropna(subset="mean")["metric"])
    found: dict[str, Table] = {}
    for names, title, legend in tables:
        measured = [name for name in names if name in known]
        if not measured:
            continue
        columns = [Column(name, left=False) for name in ("n", *(HEADS.get(name, name) for name in measured))]
        shown = rows(column, *columns)
        for value, group in summary.groupby(column, sort=False):
            means = group.set_index("metric")
            counted = [name for name in measured if name in means.index and not name.startswith("drift")]
            n = format_counts([int(means.loc[name, "n"]) for name in counted])
            shown.add(str(value), n, *(format_mean(means, name) for name in measured))
        few = too_few(summary, [name for name in measured if name not in DRIFT])
        found[title] = shown.table(title, caption="; ".join(filter(None, (legend, few))))
    return found


def too_few(summary: pd.DataFrame, names: Sequence[str]) -> str:
    """Why means over facts have no interval, where some are over too few; else empty."""
    rows = summary[summary["metric"].isin(names) & summary["mean"].notna()]
    least = min(rows["n"], default=FEW)
    return f"no interval over fewer than {FEW} facts" if least < FEW else ""


def list_variants(summary: pd.DataFrame) -> list[tuple[Sequence[str], str, str]]:
    """The table of scores by the first token and by the whole string, where any is other than by the mean."""
    means = summary.pivot_table(index="editor", columns="metric", values="mean", sort=False)
    known = [name for name in VARIANTS if name in means and name.split("_")[0] in means]
    if not any((means[name] - means[name.split("_")[0]]).abs().max() > 0 for name in known):
        return []
    return [(VARIANTS, "The same by the first token that differs, and by the whole string's probability", "")]


def format_counts(counts: Sequence[int]) -> str:
    """How many facts metrics are means over: not all have all kinds of prompts."""
    if not counts:
        return "–"
    least, most = min(counts), max(counts)
    return f"{most:,}" if least == most else f"{least:,}–{most:,}"


def format_mean(means: pd.DataFrame, name: str) -> tuple[Line, ...]:
    """A mean, and below it its interval; a dash where there is none."""
    if name not in means.index or not math.isfinite(means.loc[name, "mean"]):
        return (line("–"),)
    mean, low, high = (float(means.loc[name, part]) for part in ("mean", "low", "high"))
    first = line(Span(digits_of(name, mean, True), "strong" if name == "S" else ""))
    return (
        (first,) if math.isnan(low) else (first, line(Span(f"{digits_of(name, low)}–{digits_of(name, high)}", "soft")))
    )


def digits_of(name: str, value: float, fine: bool = False) -> str:
    """As many digits as mean something: of an interval's ends fewer than of the mean."""
    if not math.isfinite(value):
        return "–"
    if name == "drift_kl" or abs(value) >= 1000:
        return f"{value:.{int(fine)}e}" if value else "0"
    places = {"drift_perplexity": 3, "change": 2, "norm": 2, "drift_loss": 1, "NKL": 1}.get(name, 0) + int(fine)
    return f"{value:.{places}f}"


def relation_table(relations: pd.DataFrame) -> Table:
    """The main scores of each relation, without their intervals."""
    measured = set(relations.dropna(subset="mean")["metric"])
    known = [name for name in MAIN if name in measured]
    heads = [Column(HEADS.get(name, name), "number", places=1) for name in known]
    shown = rows("relation", "editor", Column("n", left=False), *heads)
    for (editor, relation), group in relations.groupby(["editor", "relation"], sort=False):
        means = group.set_index("metric")
        n = format_counts([int(means.loc[name, "n"]) for name in known if name in means.index])
        figures = [float(means.loc[name, "mean"]) if name in means.index else math.nan for name in known]
        shown.add(str(relation), str(editor), n, *figures)
    return shown.table("By relation", caption="JSON has the intervals")


def missing_table(missing: Mapping[str, str]) -> pd.DataFrame:
    """What was not measured, a row a reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in missing.items():
        by_reason.setdefault(reason, []).append(NAMES.get(name, name))
    rows = [(", ".join(names), reason) for reason, names in by_reason.items()]
    return pd.DataFrame(rows, columns=["metrics", "reason"], dtype=object)


# `Scores`: what an evaluation of editors measured, case by case and over records.

DRAWS = 1000
WON = {"ES": "prompts", "PS": "paraphrases"}
MOST_EDITORS = 3  # that have a sentence each


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Scores(Result):
    """Edits of many facts, each made and measured by itself. Made by :func:`ffnmem.evaluate`.

    Attributes:
        cases: one row an editor and fact: editor, id, relation, subject, target_true, target (the new one), the metrics
            as means over the fact's prompts, ``NAME_before`` of the unedited model, change (‖ΔW‖/‖W‖, the largest of
            the layers), steps and loss of v*, reached (whether greedy decoding gives the target with ΔW), unasked
            (prompts that are longer than the model reads), failure (why the fact was not edited, or what the model says
            where the edit is not reached; else empty), and with written answers ``written``, which ``transcripts``
            reads. NaN: the record has no such prompt, or was not edited.
        settings: everything that was asked for, as plain values.
        provenance: of the model.
        draws: of the bootstrap. seed: of every random step.
        edits: by editor and fact (its id, or its text where it has none), the edits that were made, of ``evaluate``
            with ``keep_edits``; empty otherwise. No part of JSON, nor of what is saved: each has a ``save`` of its own.
    """

    cases: pd.DataFrame
    settings: Mapping[str, Any]
    provenance: Provenance
    draws: int = DRAWS
    seed: Seed = 0
    edits: Mapping[str, Mapping[str, Edit]] = field(default_factory=dict, metadata=NOT_SAVED)

    heading = "facts"
    tables: ClassVar = {
        "overview": "",
        "transcripts": "kind editor id prompt before after",
        "failures": "editor id failure",
        "not_measured": "metrics reason",
        "relations": "|",
        "cases": "|editor id target ES PS NS reached",
        "made_with": "|*",
    }
    main, only_shown, in_full = "means", "overview", "means"

    @property
    def editors(self) -> tuple[str, ...]:
        """The editors that were compared."""
        return tuple(dict.fromkeys(self.cases["editor"]))

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that were measured."""
        return tuple(name for name in METRICS if name in self.cases)

    @property
    def failures(self) -> pd.DataFrame:
        """The facts that were not edited, then those whose edit is not reached: editor, id, subject, target, failure.

        The latter are measured like all others, and count in every mean.
        """
        rows = self.cases[self.cases["failure"] != ""]
        rows = rows.iloc[rows["change"].notna().argsort(kind="stable").to_numpy()]
        return rows[["editor", "id", "subject", "target", "failure"]].reset_index(drop=True)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Columns editor, metric, mean, low, high, n: means over records with 95% bootstrap intervals.

        Times 100, but for NKL and drift_kl (nats), drift_perplexity (a ratio) and what an editor measured. S is the
        harmonic mean of ES, PS and NS. Means over fewer than five records have no interval: low and high are NaN.
        """
        return self.by("editor")

    @cached_property
    def relations(self) -> pd.DataFrame:
        """The same by relation: editor, relation, metric, mean, low, high, n."""
        return self.by("editor", "relation")

    def by(self, *columns: str) -> pd.DataFrame:
        """The summary of slices of the cases, by columns of theirs."""
        names = (*self.metrics, *NUMBERS)
        tables = [
            summarise(rows, names, self.draws, self.seed).assign(**dict(zip(columns, values, strict=True)))
            for values, rows in self.cases.groupby(list(columns), sort=False)
        ]
        return pd.concat(tables, ignore_index=True)[[*columns, *COLUMNS]]

    @cached_property
    def missing(self) -> dict[str, str]:
        """The metrics that no fact gives a value (n is 0), and why: ``{"NS": "no fact has neighbours"}``."""
        return explain_missing(self.summary, self.cases)

    @cached_property
    def transcripts(self) -> pd.DataFrame:
        """What was written in answer, a row a prompt; empty without ``protocol="generated"``.

        Columns editor, id, kind (:data:`ffnmem.evaluation.written.KINDS`), question (prompts of one kind with the same
        number ask the same), prompt, wanted and unwanted (answers, " | " between them), before and after (what the
        unedited and the edited model wrote), and as 1, 0 or NaN whether it holds what is wanted, is exactly that, and
        holds what is unwanted: wanted_before, wanted_after, exact_before, exact_after, unwanted_before, unwanted_after.
        """
        return read_transcripts(self.cases) if "written" in self.cases else pd.DataFrame(columns=list(TRANSCRIPT))

    def of(self, editor: str | None = None) -> pd.DataFrame:
        """The cases of an editor, by default the first. Raises InputError."""
        name = self.editors[0] if editor is None else check_choice("editor", editor, self.editors)
        return self.cases[self.cases["editor"] == name].reset_index(drop=True)

    def versus(self, first: str, second: str) -> pd.DataFrame:
        """How much larger the first editor's means are: metric, mean, low, high, n.

        Over facts that both edited, which are drawn for both alike, so that what facts have in common cancels. Raises
        InputError for an editor that is not here.
        """
        return summarise(self.of(first), self.metrics, self.draws, self.seed, minus=self.of(second))

    def __len__(self) -> int:
        return len(self.of())

    @property
    def unedited(self) -> pd.DataFrame | None:
        """The unedited model's scores on the same prompts, as in ``summary``; None where it was an editor itself."""
        if "none" in self.editors:
            return None
        names = [name for name in self.metrics if f"{name}_before" in self.cases]
        cases = self.of()[[f"{name}_before" for name in names]].set_axis(names, axis=1)
        return summarise(cases, names, self.draws, self.seed).assign(editor="(unedited)")

    @property
    def means(self) -> pd.DataFrame:
        """``summary`` below the unedited model's rows, whose editor is "(unedited)"."""
        unedited = self.unedited
        every = self.summary if unedited is None else pd.concat([unedited[list(self.summary)], self.summary])
        frame = every.reset_index(drop=True)
        frame.attrs = {"settings": dict(self.settings), "provenance": self.provenance.to_dict()}
        return frame

    @property
    def facts(self) -> str:
        """How many."""
        return f"{len(self):,}, each edited by itself"

    @property
    def verdict(self) -> str:
        """What the edits of each editor do, and how many were not made or not reached."""
        means = self.summary.pivot_table(index="editor", columns="metric", values="mean", sort=False)
        failed = f"{counted(len(self.failures), 'edit')} not made or not reached." if len(self.failures) else ""
        if len(means) > MOST_EDITORS and "S" in means:
            best = str(means["S"].idxmax())
            return f"Of {len(means)} editors {best} has the best score S, {means['S'].max():.1f}. {failed}".rstrip()
        said = []
        for editor, row in means.iterrows():
            shares = {name: f"{row[name]:.1f}%" for name in ("ES", "PS", "NS") if name in row.dropna()}
            new = [f"{shares[name]} of the {words}" for name, words in WON.items() if name in shares]
            parts = [f"the new target is likelier than the true one after {' and '.join(new)}"] if new else []
            if "NS" in shares:
                parts.append(f"the true one stays likelier after {shares['NS']} of the prompts about neighbours")
            said += [f"With {editor}, {', and '.join(parts)}."] if parts else []
        return " ".join(filter(None, [*said, failed]))

    @property
    def overview(self) -> dict[str, Table]:
        """Means over the facts, above their intervals, beside those of the unedited model."""
        summary = self.means
        main = (MAIN, "Scores, in percent", ""), SIZED, *list_variants(summary), DRIFTED
        return score_tables(summary, "editor", SAID, AROUND, *main, (PROBES, "More, in percent", ""))

    @property
    def not_measured(self) -> pd.DataFrame:
        """The metrics that no fact gives a value, and why."""
        return missing_table(self.missing)

    def shown_relations(self, top: int | None) -> Table:
        """The main scores of each relation."""
        return relation_table(self.relations)

    def shown_cases(self, top: int | None) -> pd.DataFrame:
        """A row an editor and fact; what was written stands in ``transcripts``."""
        return self.cases.drop(columns="written", errors="ignore").head(len(self.cases) if top is None else top)

    @property
    def made_with(self) -> pd.DataFrame:
        """What was asked for."""
        return pd.DataFrame([*self.settings.items()], columns=["setting", "is"], dtype=object)

    def __repr__(self) -> str:
        return f"Scores({self.verdict})"
