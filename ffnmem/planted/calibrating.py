"""``calibrate``: the toolkit's own measures on models whose memories are known."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from math import inf
from pathlib import Path
from typing import Annotated, Any

import pandas as pd

from .._version import __version__
from ..core.defaults import CALIBRATION_SEEDS, CALIBRATION_SUPERPOSITION, MEANING_DRAWS
from ..core.errors import InputError, check_choice, quoted
from ..core.json_values import plain
from ..core.number_text import format_number, format_share
from ..core.progress import Progress
from ..core.sheets import Column, Line, Sheet, Span, Table, Words, line, rows
from ..core.types import PLANTED_KINDS, Seed, at_least, checked
from ..neurons.measuring import begin, polysemanticity
from ..neurons.role_assignment import roles
from ..neurons.verdicts import RULE, Rule
from ..scanning.scanning import scan
from ..scanning.store import Store
from ..show.result import Result
from .planting import Planted, defaults, plant
from .recovery import (
    K,
    by_chance,
    example_nulls,
    meaning_scores,
    null_rates,
    of_facts,
    role_scores,
    scrambled,
    verdict_counts,
    with_truth,
)

# `Calibration`: how well the toolkit's measures did on models whose memories are known.

TABLES = ("measures", "verdicts", "random_keys", "nulls", "curves", "roles", "facts")
NAMES = {"measures": "measure", "curves": "measure", "nulls": "measure", "roles": "role", "facts": "measure"}
SETTINGS = {"curves": "superposition", "facts": "site"}
"""The columns of each table that say what a row is of, and under which setting."""
COLUMNS = ("table", "name", "setting", "score", "value", "low", "high")
NOT_SHOWN = ("kinds", "standard")  # of the settings, in a sheet


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Calibration(Result):
    """Made by :func:`ffnmem.planted.calibrate`; a table is None where its kind was not asked for.

    Attributes:
        measures: one row a measure of polysemanticity: measure, auroc, spearman, precision_at_k with their ``_low`` and
            ``_high``, neurons.
        verdicts: true_meanings (0: dead) against the number of neurons with each verdict.
        random_keys: one row, the number of neurons with each verdict in models of random keys and values.
        nulls: measure, rate (of p < .05 where nothing is to be found), its exact 95% interval low and high, neurons.
        curves: as ``measures``, by superposition.
        roles: role, precision, recall, and the neurons planted, found, and hits.
        facts: measure, site, first (share of facts whose planted neuron it puts first), its exact 95% interval low
            and high, second (share where it is first or second), facts.
        settings: what it was run with.
    """

    measures: pd.DataFrame | None = None
    verdicts: pd.DataFrame | None = None
    random_keys: pd.DataFrame | None = None
    nulls: pd.DataFrame | None = None
    curves: pd.DataFrame | None = None
    roles: pd.DataFrame | None = None
    facts: pd.DataFrame | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Those that there are, by name."""
        return {name: table for name in TABLES if (table := getattr(self, name)) is not None}

    @property
    def false_polysemantic(self) -> float:
        """The share of monosemantic neurons that were called polysemantic; NaN if meanings were not asked for."""
        return self.share(1, "polysemantic")

    @property
    def random_polysemantic(self) -> float:
        """The share of neurons of random keys that were called polysemantic; NaN if meanings were not asked for."""
        if self.random_keys is None:
            return float("nan")
        return float(self.random_keys["polysemantic"].iloc[0]) / float(self.random_keys.to_numpy().sum())

    def share(self, meanings: int, verdict: str) -> float:
        """The share of neurons planted with so many meanings that got a verdict; NaN if there are none.

        Raises InputError for an unknown verdict.
        """
        if self.verdicts is None:
            return float("nan")
        row = self.verdicts[self.verdicts["true_meanings"] == meanings].drop(columns="true_meanings")
        check_choice("verdict", verdict, list(row.columns))
        total = float(row.to_numpy().sum())
        return float(row[verdict].sum()) / total if total else float("nan")

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**{name: plain(table) for name, table in self.tables.items()}, "settings": dict(self.settings)}

    def to_frame(self) -> pd.DataFrame:
        """Every number with where it comes from: table, name, setting, score, value, low, high.

        ``low`` and ``high`` are missing where there is no interval.
        """
        found: list[tuple[Any, ...]] = []
        for table, frame in self.tables.items():
            for row in frame.to_dict("records"):
                name, setting = row.get(NAMES.get(table, "")), row.get(SETTINGS.get(table, ""), "")
                if table == "verdicts":
                    name, setting = row["true_meanings"], ""
                for score, value in row.items():
                    label = score in (NAMES.get(table), SETTINGS.get(table), "true_meanings")
                    if label or str(score).endswith(("low", "high")):
                        continue
                    own = score in ("rate", "first")
                    ends = (row.get(end if own else f"{score}_{end}") for end in ("low", "high"))
                    found.append((table, name, setting, score, value, *ends))
        return pd.DataFrame(found, columns=COLUMNS, dtype=object)

    def summary(self) -> str:
        return f"{', '.join(self.tables)}; seeds {', '.join(map(str, self.settings.get('seeds', ())))}"

    def sheet(self) -> Sheet:
        """Measures, verdicts, nulls, roles and facts, as far as they were asked for."""
        made = {
            "measures": self.measure_table,
            "verdicts": self.verdict_table,
            "nulls": self.null_table,
            "roles": self.role_table,
            "facts": self.fact_table,
        }
        tables = [make(self.tables[name]) for name, make in made.items() if name in self.tables]
        shown = {name: value for name, value in self.settings.items() if name not in NOT_SHOWN}
        settings = " · ".join(f"{name} {setting_words(value)}" for name, value in shown.items())
        return Sheet.of(*tables, Words.of(settings, "soft"))

    def measure_table(self, frame: pd.DataFrame) -> Table:
        """How well measures tell polysemantic neurons, with their intervals."""
        heads = ("AUROC", "Spearman", f"precision at {K}")
        shown = rows("measure", *(Column(name, left=False) for name in heads))
        for row in frame.to_dict("records"):
            shown.add(row["measure"], *(ranged(row, name) for name in ("auroc", "spearman", "precision_at_k")))
        return shown.table(
            f"measures of polysemanticity, superposition {self.settings['standard']:g}",
            caption="AUROC: polysemantic against monosemantic neurons; Spearman: with the planted number of meanings; "
            "95% intervals over models and neurons.",
        )

    def verdict_table(self, frame: pd.DataFrame) -> Table:
        """Planted meanings against verdicts."""
        names = [str(name) for name in frame.columns if name != "true_meanings"]
        shown = rows(Column("planted meanings", left=False), *(Column(name, "count") for name in names))
        for row in frame.to_dict("records"):
            planted = row["true_meanings"]
            shown.add("dead" if planted == 0 else str(planted), *(row[name] for name in names))
        return shown.table(
            "verdicts",
            caption=f"{format_share(self.false_polysemantic)} of monosemantic neurons are called polysemantic, and "
            f"{format_share(self.random_polysemantic)} of neurons of random keys: what fires a random direction is of "
            "several kinds too.",
        )

    def null_table(self, frame: pd.DataFrame) -> Table:
        """How often nothing is found to be something."""
        shown = rows("measure", Column("p < .05", "percent"), Column("95%", left=False), Column("neurons", "count"))
        for row in frame.to_dict("records"):
            ends = " to ".join(format_share(row[end]) for end in ("low", "high"))
            shown.add(row["measure"], row["rate"], ends, row["neurons"])
        return shown.table("nulls", caption="Where nothing is to be found: random examples, or random keys and values.")

    def role_table(self, frame: pd.DataFrame) -> Table:
        """Precision and recall of each role."""
        shares = (Column(name, "number", places=2) for name in ("precision", "recall"))
        shown = rows("role", *shares, Column("planted", left=False), Column("found", left=False))
        for row in frame.to_dict("records"):
            shown.add(row["role"], row["precision"], row["recall"], str(row["planted"]), str(row["found"]))
        return shown.table("roles")

    def fact_table(self, frame: pd.DataFrame) -> Table:
        """How often each measure puts the planted neuron of a fact first."""
        shown = rows(
            "measure",
            "recalled",
            Column("first", "number", places=2),
            Column("95%", left=False),
            Column("first or second", "number", places=2),
            Column("facts", left=False),
        )
        for row in frame.to_dict("records"):
            ends = " to ".join(format_number(row[end], 2) for end in ("low", "high"))
            shown.add(row["measure"], row["site"], row["first"], ends, row["second"], str(row["facts"]))
        return shown.table(
            "facts",
            caption="The share of facts whose planted neuron is ranked first of all. Each subject has a neuron as "
            "well, without which nothing is recalled: so second is right too. attribute and knowledge_neurons look at "
            "the last token only; a fact recalled early is not there.",
        )


def ranged(row: Mapping[Any, Any], name: str) -> Line:
    """A score and its interval."""
    ends = " to ".join(format_number(row[f"{name}_{end}"], 2) for end in ("low", "high"))
    return line(format_number(row[name], 3), Span(f"  {ends}", "soft"))


def setting_words(value: Any) -> str:
    """A setting in words: numbers without trailing zeros."""
    return ", ".join(f"{one:g}" for one in value) if isinstance(value, list) else str(value)


STANDARD = 1.5


@contextmanager
def scanned(planted: Planted) -> Iterator[Store]:
    """A store of the planted model on its own texts, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="ffnmem-") as folder:
        yield scan(planted.model, list(planted.texts), out=Path(folder) / "store")


@checked
def calibrate(
    kinds: str | Sequence[str] = PLANTED_KINDS,
    *,
    seeds: Sequence[Seed] = CALIBRATION_SEEDS,
    superposition: Sequence[float] = CALIBRATION_SUPERPOSITION,
    rule: Rule = RULE,
    draws: Annotated[int, at_least(20)] = MEANING_DRAWS,
    progress: Progress | None = None,
    **parameters: Any,
) -> Calibration:
    """Build planted models, run the toolkit's measures on them, and compare what they say with what was planted.

    Args:
        kinds: "meanings" (:func:`ffnmem.polysemanticity`), "roles" (:func:`ffnmem.roles`), "facts"
            (:func:`ffnmem.attribute`, :func:`ffnmem.attribute_paths`, :func:`ffnmem.ablate`,
            :func:`ffnmem.interventions.knowledge_neurons`).
        seeds: a model each. Thresholds were chosen on seeds 0 to 4; leave those out to test them.
        superposition: features per dimension of the models of meanings; tables are of 1.5 (or of the smallest, if that
            is not among them), curves of all.
        rule: of the verdicts. draws: of every bootstrap and null.
        progress: called as ("calibrate", models done, all).
        parameters: further ones of ``ffnmem.planted.plant("meanings")``; only where meanings are asked for.

    Returns:
        A :class:`Calibration`.

    Raises: InputError.
    """
    asked = list(dict.fromkeys([kinds] if isinstance(kinds, str) else kinds))
    seeds = list(dict.fromkeys(seeds))
    levels = sorted({float(level) for level in superposition})
    check_asked(asked, seeds, levels, parameters)
    standard = STANDARD if STANDARD in levels else levels[0]
    models = len(seeds) * sum({"meanings": len(levels), "roles": 1, "facts": 2}[kind] for kind in asked)
    done = count(1)

    def step() -> None:
        if progress is not None:
            progress("calibrate", next(done), models)

    found: dict[str, pd.DataFrame] = {}
    if "meanings" in asked:
        found |= meanings(seeds, levels, standard, rule, draws, step, parameters)
    if "roles" in asked:
        found["roles"] = of_roles(seeds, step)
    if "facts" in asked:
        found["facts"] = of_facts(seeds, step)
    settings: dict[str, Any] = {"kinds": asked, "seeds": seeds}
    if "meanings" in asked:
        settings |= {
            "superposition": levels, "standard": standard, "above": rule.above, "examples": rule.examples,
            "enough": rule.enough, "alpha": rule.alpha, "draws": draws, **parameters,
        }  # fmt: skip
    return Calibration(**found, settings={**settings, "ffnmem": __version__})


def check_asked(
    kinds: Sequence[str], seeds: Sequence[int], levels: Sequence[float], parameters: dict[str, Any]
) -> None:
    """Raise InputError before any work is done for nothing."""
    for kind in kinds:
        check_choice("kind", kind, PLANTED_KINDS)
    if not kinds or not seeds or not levels:
        raise InputError("calibrate needs a kind, a seed and a superposition at least")
    for level in levels:
        if not 0 < level < inf:
            raise InputError(f"superposition must be above 0 and finite, not {level:g}")
    takes = [name for name in defaults("meanings") if name not in ("seed", "superposition")]
    for name in parameters:
        if name not in takes:
            raise InputError(
                f"calibrate has no parameter {quoted(name)}: of models of meanings it takes {', '.join(takes)}"
            )
        if "meanings" not in kinds:
            raise InputError(f"{name} is of the kind 'meanings' only, which is not asked for: leave it out")


def meanings(
    seeds: Sequence[int], levels: Sequence[float], standard: float, rule: Rule, draws: int, step: Callable[[], None],
    parameters: dict[str, Any],
) -> dict[str, pd.DataFrame]:  # fmt: skip
    """Measures, verdicts, null rates at the standard superposition, and curves over all."""
    tables: dict[float, list[pd.DataFrame]] = {level: [] for level in levels}
    examples, weights = [], []
    for level in levels:
        for seed in seeds:
            planted = plant("meanings", seed=seed, superposition=level, **parameters)
            with scanned(planted) as store:
                table = polysemanticity(store, planted.model, draws=draws, rule=rule, seed=seed)
                tables[level].append(with_truth(planted, table))
                if level == standard:
                    examples.append(
                        example_nulls(begin(store, planted.model, range(store.n_layers), seed, draws, rule))
                    )
            if level == standard:
                nothing = scrambled(planted, seed)
                with scanned(nothing) as store:
                    weights.append(polysemanticity(store, nothing.model, draws=draws, rule=rule, seed=seed))
            step()
    curves = [meaning_scores(tables[level]).assign(superposition=level) for level in levels]
    return {
        "measures": curves[list(levels).index(standard)].drop(columns="superposition"),
        "verdicts": verdict_counts(tables[standard]),
        "random_keys": by_chance(weights),
        "nulls": null_rates(examples, weights),
        "curves": pd.concat(curves, ignore_index=True),
    }


def of_roles(seeds: Sequence[int], step: Callable[[], None]) -> pd.DataFrame:
    """Of each role, over all models' neurons: role, precision, recall, and the numbers planted, found, and hit."""
    rows = []
    for seed in seeds:
        planted = plant("roles", seed=seed)
        with scanned(planted) as store:
            rows.append(role_scores(planted, roles(planted.model, store)))
        step()
    both = pd.concat(rows).groupby("role", sort=False)[["planted", "found", "hits"]].sum().reset_index()
    both.insert(1, "precision", both["hits"] / both["found"].where(both["found"] > 0))
    both.insert(2, "recall", both["hits"] / both["planted"].where(both["planted"] > 0))
    return both
