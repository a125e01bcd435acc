"""Are the neurons of experts less polysemantic than those of one dense FFN?

``make atlas-moe`` (or ``data/recipe/mixture.py --small``) trains a mixture and dense models alike. All are scanned on
the same text that none was trained on. A sample of neurons of each layer is judged by the same rule, and each neuron
beside a direction of its own: its key and gate, turned together at random among whitened inputs. In a mixture the
direction stands behind the neuron's router, so that it fires at tokens of the same expert.

What a row says: the share of each verdict among neurons and among directions; ``fewer``, by how many meanings a neuron
has fewer than its direction, and ``alike``, by how much its examples are more alike (MS); both are means over neurons
with 95% intervals, by a bootstrap over neurons. The last row is the mixture's minus the dense model's.
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from by_chance import chance_verdicts, shares
from common import machine

import ffnmem as fm

DRAWS = 2000
VERDICTS = ("monosemantic", "polysemantic", "unclear", "inactive")


def judged(folder: Path, texts: list[str], per_layer: int, seed: int, work: Path) -> pd.DataFrame:
    """The verdicts on neurons and on their directions."""
    model = fm.load(str(folder))
    store = fm.scan(model, texts, work / folder.name, seed=seed, project=False)
    return chance_verdicts(store, model, per_layer=per_layer, kinds=("matched",), seed=seed)


def paired(table: pd.DataFrame) -> pd.DataFrame:
    """By neuron, what it has fewer of than its direction, where both have examples: fewer, alike."""
    own, turned = (
        table[table["kind"] == kind].set_index(["layer", "neuron"])[["meanings", "ms"]] for kind in ("own", "matched")
    )
    return pd.DataFrame({"fewer": turned["meanings"] - own["meanings"], "alike": own["ms"] - turned["ms"]}).dropna()


def means(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The mean, and those of the bootstrap's draws."""
    drawn = values[rng.integers(0, len(values), (DRAWS, len(values)))].mean(1)
    return np.concatenate([[values.mean()], drawn])


def said(all_means: np.ndarray) -> str:
    low, high = np.quantile(all_means[1:], [0.025, 0.975])
    return f"{all_means[0]:.2f} ({low:.2f} to {high:.2f})"


def report(tables: dict[str, pd.DataFrame], seed: int) -> pd.DataFrame:
    """A row for each model's neurons, one for their directions, and the first model's effects minus the others'."""
    rng = np.random.default_rng(seed)
    drawn, rows = {}, []
    for name, table in tables.items():
        effects = paired(table)
        drawn[name] = {effect: means(effects[effect].to_numpy(), rng) for effect in effects}
        for kind, row in shares(table).set_index("kind").iterrows():
            part = table[table["kind"] == kind]
            rows.append({"model": name, "of": kind, "n": str(len(part)), "firing": f"{part['firing_rate'].mean():.3f}"})
            for verdict in VERDICTS:
                ends = (100 * row[f"{verdict}{end}"] for end in ("", "_low", "_high"))
                rows[-1][verdict] = "{:.1f}% ({:.1f} to {:.1f})".format(*ends)
            rows[-1] |= {name: f"{part[name].mean():.2f}" for name in ("meanings", "ms")}
            if kind == "own":
                rows[-1] |= {effect: said(one) for effect, one in drawn[name].items()}
    first, *others = tables
    for name in others:
        differ = {effect: said(one - drawn[name][effect]) for effect, one in drawn[first].items()}
        rows.append({"model": f"{first} - {name}", **differ})
    return pd.DataFrame(rows).fillna("")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where make atlas-moe wrote: out/atlas-moe")
    parser.add_argument(
        "--names", nargs="+", default=["mixture", "dense"], help="of models there; the first against each"
    )
    parser.add_argument("--text", default="atlas")
    parser.add_argument("--documents", type=int, help="of that text; default: all")
    parser.add_argument("--neurons", type=int, default=128, help="of each layer")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    texts = [document.text for document in islice(fm.corpus.open_corpus(asked.text), asked.documents)]
    with TemporaryDirectory() as work:
        tables = {
            name: judged(asked.folder / name, texts, asked.neurons, asked.seed, Path(work)) for name in asked.names
        }
    print(report(tables, asked.seed).to_string(index=False))
    print(f"{len(texts)} documents of {asked.text}, {asked.neurons} neurons a layer, seed {asked.seed}; {machine()}")


if __name__ == "__main__":
    main()
