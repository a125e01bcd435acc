"""``calibrate``: the toolkit's own measures on models whose memories are known."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import pandas as pd

from .._version import __version__
from ..arguments import public
from ..core.choices import CALIBRATION_SEEDS, CALIBRATION_SUPERPOSITION, MEANING_DRAWS, PLANTED_KINDS
from ..errors import InputError, check_choice, check_count, check_seed, quoted
from ..planted import Planted, plant
from ..planted.planting import defaults
from ..progress import Progress
from ..scanning import Store, scan
from ..semantics.polysemanticity import begin, polysemanticity
from ..semantics.roles import roles
from ..semantics.verdicts import RULE, Rule
from .calibration import Calibration
from .meaning_scores import by_chance, meaning_scores, verdict_counts, with_truth
from .nulls import example_nulls, null_rates, scrambled
from .role_scores import role_scores

STANDARD = 1.5


@contextmanager
def scanned(planted: Planted) -> Iterator[Store]:
    """A store of the planted model on its own texts, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="ffnmem-") as folder:
        yield scan(planted.model, list(planted.texts), out=Path(folder) / "store")


@dataclass
class Steps:
    """Counts models done, for a progress bar."""

    total: int
    progress: Progress | None
    done: int = field(default=0)

    def step(self) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress("calibrate", self.done, self.total)


@public
def calibrate(
    kinds: str | Sequence[str] = PLANTED_KINDS,
    *,
    seeds: Sequence[int] = CALIBRATION_SEEDS,
    superposition: Sequence[float] = CALIBRATION_SUPERPOSITION,
    rule: Rule = RULE,
    draws: int = MEANING_DRAWS,
    progress: Progress | None = None,
    **parameters: Any,
) -> Calibration:
    """Build planted models, run the toolkit's measures on them, and compare what they say with what was planted.

    Args:
        kinds: "meanings" (:func:`ffnmem.polysemanticity`), "roles" (:func:`ffnmem.roles`), "facts"
            (:func:`ffnmem.attribute`, :func:`ffnmem.attribute_paths`, :func:`ffnmem.ablate`,
            :func:`ffnmem.knowledge_neurons`).
        seeds: a model each. Thresholds were chosen on seeds 0 to 4; leave those out to test them.
        superposition: features per dimension of the models of meanings; tables are of 1.5 (or of the smallest, if that
            is not among them), curves of all.
        rule: of the verdicts. draws: of every bootstrap and null.
        progress: called as ("calibrate", models done, all).
        parameters: further ones of ``ffnmem.plant("meanings")``; only where meanings are asked for.

    Returns:
        A :class:`Calibration`.

    Raises: InputError.
    """
    asked = list(dict.fromkeys([kinds] if isinstance(kinds, str) else kinds))
    seeds = list(dict.fromkeys(check_seed(seed) for seed in seeds))
    levels = sorted({float(level) for level in superposition})
    draws = check_count("draws", draws, least=20)
    check_asked(asked, seeds, levels, parameters)
    standard = STANDARD if STANDARD in levels else levels[0]
    count = sum({"meanings": len(levels), "roles": 1, "facts": 2}[kind] for kind in asked)
    steps = Steps(count * len(seeds), progress)
    found: dict[str, pd.DataFrame] = {}
    if "meanings" in asked:
        found |= meanings(seeds, levels, standard, rule, draws, steps, parameters)
    if "roles" in asked:
        found["roles"] = of_roles(seeds, steps)
    if "facts" in asked:
        from .fact_scores import of_facts

        found["facts"] = of_facts(seeds, steps.step)
    settings: dict[str, Any] = {"kinds": asked, "seeds": seeds}
    if "meanings" in asked:
        settings |= {
            "superposition": levels, "standard": standard, "above": rule.above, "examples": rule.examples,
            "alpha": rule.alpha, "draws": draws, **parameters,
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
    seeds: Sequence[int], levels: Sequence[float], standard: float, rule: Rule, draws: int, steps: Steps,
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
                    examples.append(example_nulls(begin(store, planted.model, "positive", seed, draws, rule, None)))
            if level == standard:
                nothing = scrambled(planted, seed)
                with scanned(nothing) as store:
                    weights.append(polysemanticity(store, nothing.model, draws=draws, rule=rule, seed=seed))
            steps.step()
    curves = [meaning_scores(tables[level]).assign(superposition=level) for level in levels]
    return {
        "measures": curves[list(levels).index(standard)].drop(columns="superposition"),
        "verdicts": verdict_counts(tables[standard]),
        "random_keys": by_chance(weights),
        "nulls": null_rates(examples, weights),
        "curves": pd.concat(curves, ignore_index=True),
    }


def of_roles(seeds: Sequence[int], steps: Steps) -> pd.DataFrame:
    """Of each role, over all models' neurons: role, precision, recall, and the numbers planted, found, and hit."""
    rows = []
    for seed in seeds:
        planted = plant("roles", seed=seed)
        with scanned(planted) as store:
            rows.append(role_scores(planted, roles(planted.model, store)))
        steps.step()
    both = pd.concat(rows).groupby("role", sort=False)[["planted", "found", "hits"]].sum().reset_index()
    both.insert(1, "precision", both["hits"] / both["found"].where(both["found"] > 0))
    both.insert(2, "recall", both["hits"] / both["planted"].where(both["planted"] > 0))
    return both
