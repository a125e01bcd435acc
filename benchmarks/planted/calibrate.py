"""How well the measures find what was planted: the tables and the figure of docs/results/calibration.md.

    python benchmarks/planted/calibrate.py --plot calibration.png
    python benchmarks/planted/calibrate.py --kind meanings --superposition 1.5 --experts 4

Models whose memories are known are built, a model a seed, and measured as any other model is. Thresholds were chosen on
seeds 0 to 4; leave those out to test them. Meanings (``fm.polysemanticity``): tables are of superposition 1.5 (or of
the smallest, if that is not asked for), the figure of all. Roles: ``fm.roles``. Facts: ``fm.attribute``,
``fm.attribute_paths``, ``fm.ablate`` and ``fm.interventions.knowledge_neurons``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from planting import plant
from recovery import (
    K,
    example_nulls,
    fact_scores,
    meaning_scores,
    null_rates,
    role_scores,
    scrambled,
    verdict_counts,
    with_truth,
)
from skeleton import Planted

import ffnmem as fm
from ffnmem.core.types import VERDICTS
from ffnmem.neurons.measuring import begin
from ffnmem.neurons.verdicts import RULE

KINDS = ("meanings", "roles", "facts")
STANDARD = 1.5
Tables = dict[str, pd.DataFrame]


@contextmanager
def scanned(planted: Planted) -> Iterator[fm.scanning.Store]:
    """A store of the planted model on its own texts, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="ffnmem-") as folder:
        yield fm.scan(planted.model, list(planted.texts), out=Path(folder) / "store")


def calibrate(
    kinds: Sequence[str], seeds: Sequence[int], superposition: Sequence[float], draws: int, **parameters: Any
) -> Tables:
    """Tables by name. ``draws``: of every bootstrap and null; ``parameters``: further ones of ``plant("meanings")``."""
    found: Tables = {}
    if "meanings" in kinds:
        found |= of_meanings(seeds, sorted(superposition), draws, parameters)
    if "roles" in kinds:
        models = []
        for seed in seeds:
            planted = plant("roles", seed=seed)
            with scanned(planted) as store:
                models.append((planted, fm.roles(planted.model, store).neurons))
        found["roles"] = role_scores(models)
    if "facts" in kinds:
        found["facts"] = fact_scores(seeds)
    return found


def of_meanings(seeds: Sequence[int], levels: list[float], draws: int, parameters: dict[str, Any]) -> Tables:
    """Verdicts and null rates at the standard superposition, and how well each measure does (curves) at all."""
    standard = STANDARD if STANDARD in levels else levels[0]
    tables: dict[float, list[pd.DataFrame]] = {level: [] for level in levels}
    examples, weights = [], []
    for level in levels:
        for seed in seeds:
            planted = plant("meanings", seed=seed, superposition=level, **parameters)
            with scanned(planted) as store:
                table = fm.polysemanticity(store, planted.model, draws=draws, seed=seed).neurons
                tables[level].append(with_truth(planted, table))
                if level == standard:
                    layers = range(store.n_layers)
                    examples.append(example_nulls(begin(store, planted.model, layers, seed, draws, RULE)))
            if level == standard:
                nothing = scrambled(planted, seed)
                with scanned(nothing) as store:
                    weights.append(fm.polysemanticity(store, nothing.model, draws=draws, seed=seed).neurons)
    curves = [meaning_scores(tables[level]).assign(superposition=level) for level in levels]
    chance = pd.concat(weights)["verdict"].value_counts()
    return {
        "measures": curves[levels.index(standard)],
        "verdicts": verdict_counts(tables[standard]),
        "random_keys": pd.DataFrame([{name: int(chance.get(name, 0)) for name in VERDICTS}]),
        "nulls": null_rates(examples, weights),
        "curves": pd.concat(curves, ignore_index=True),
    }


# What is printed: tables as docs/results/calibration.md has them.


def markdown(head: Sequence[str], rows: Sequence[Sequence[Any]], left: int = 1) -> str:
    """A table of Markdown, the first columns (``left``) left-aligned."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in (head, *rows)]
    lines.insert(1, "|" + "|".join("---" if i < left else "--:" for i in range(len(head))) + "|")
    return "\n".join(lines)


def ranged(row: dict[Any, Any], name: str, ends: Sequence[str]) -> str:
    low, high = (row[end] for end in ends)
    return f"{row[name]:.2f} <sub>{low:.2f}–{high:.2f}</sub>"


def report(tables: Tables, models: int) -> Iterator[str]:
    """Each table that there is."""
    if "measures" in tables:
        rows, nulls = [], tables["nulls"].set_index("measure")
        for row in tables["measures"].to_dict("records"):
            null = 100 * nulls.loc[row["measure"], ["rate", "low", "high"]]
            scores = (ranged(row, s, (f"{s}_low", f"{s}_high")) for s in ("auroc", "spearman", "precision_at_k"))
            rows.append([row["measure"], *scores, "{:.1f}% <sub>{:.1f}–{:.1f}</sub>".format(*null)])
        level = tables["measures"]["superposition"].iloc[0]
        head = f"superposition {level:g}, {models} model{'s' * (models > 1)}"
        yield markdown([head, "AUROC", "Spearman", f"precision at {K}", "null: p < .05"], rows)
        counts = tables["verdicts"].assign(true_meanings=tables["verdicts"]["true_meanings"].replace(0, "dead"))
        yield markdown(["planted meanings", *VERDICTS], counts.to_numpy().tolist(), left=0)
        share = tables["random_keys"].iloc[0] / tables["random_keys"].iloc[0].sum()
        yield (
            f"Of the neurons of models with random keys {share['polysemantic']:.0%} are polysemantic and "
            f"{share['monosemantic']:.1%} monosemantic."
        )
    if "roles" in tables:
        columns = ["role", "precision", "recall", "planted", "found"]
        rows = [[name, f"{p:.3f}", f"{r:.3f}", *n] for name, p, r, *n in tables["roles"][columns].to_numpy().tolist()]
        yield markdown(columns, rows)
    if "facts" in tables:
        rows = [
            [row["measure"], row["site"], ranged(row, "first", ("low", "high")), f"{row['second']:.2f}"]
            for row in tables["facts"].to_dict("records")
        ]
        yield markdown(["measure of a fact", "recalled", "ranks its neuron first", "first or second"], rows, left=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--seed", type=int, nargs="+", default=range(110, 115), help="a model for each")
    parser.add_argument("--superposition", type=float, nargs="+", default=[1.0, 1.5, 2.0, 2.5], help="of meanings")
    parser.add_argument("--neurons", type=int, default=192, help="of each layer of the models of meanings")
    parser.add_argument("--experts", type=int, default=0, help="of each layer of these, which share its neurons")
    parser.add_argument("--draws", type=int, default=200, help="of bootstraps and nulls")
    parser.add_argument("--plot", type=Path, help="draw the figure into this file")
    asked = parser.parse_args()
    sizes = {"neurons": asked.neurons, "experts": asked.experts}
    tables = calibrate(asked.kind, list(asked.seed), asked.superposition, asked.draws, **sizes)
    print(*report(tables, len(asked.seed)), sep="\n\n")
    if asked.plot:
        from drawing import draw

        draw(tables).savefig(asked.plot)


if __name__ == "__main__":
    main()
